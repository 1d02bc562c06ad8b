"""The contract: records, the closed list of topics, bytes in and out; no network. Start with `records`."""
