"""Trajectories to better resources. Start with `loop`; `loader` is its counterpart at each engine.

Nothing is handed on from here: torch takes seconds to load, and the loader does without.
"""
