"""Commands that keep a deployment going."""
