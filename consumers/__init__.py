"""Topic to somewhere else: batch, write, then commit. Start with `pump` and `sink`.

Nothing is handed on from here: what reads topics only must not load the ClickHouse client.
"""
