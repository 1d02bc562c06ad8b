"""Identifiers: a two-letter prefix and 32 hex digits.

From a generator of our own: programs seed the global one, which would repeat ids, and the operating system's costs a
system call per id, which is felt at tens of thousands of spans a second.
"""

from __future__ import annotations

import hashlib
import os
import re
from random import Random

_random = Random()
_ATTEMPT_HEX = re.compile(r"at-([0-9a-f]{32})")
if hasattr(os, "register_at_fork"):  # a child would go on with its parent's numbers
    os.register_at_fork(after_in_child=_random.seed)


def _hex(digits: int) -> str:
    return f"{_random.getrandbits(4 * digits) or 1:0{digits}x}"


def rollout_id() -> str:
    """A new rollout id, ro-…"""
    return f"ro-{_hex(32)}"


def attempt_id() -> str:
    """A new attempt id, at-…"""
    return f"at-{_hex(32)}"


def reward_id() -> str:
    """A new reward id, rw-…"""
    return f"rw-{_hex(32)}"


def worker_id() -> str:
    """A new worker id, wo-…; minted per process start."""
    return f"wo-{_hex(32)}"


def group_id() -> str:
    """A new group id, gr-…; minted per enqueue."""
    return f"gr-{_hex(32)}"


def trace_id() -> str:
    """A new OpenTelemetry trace id, 32 hex digits."""
    return _hex(32)


def trace_of(attempt_id: str) -> str:
    """The trace id of an attempt: its own 32 hex digits, so that every producer arrives at the same one.

    Ids of another shape, such as a test's, are hashed.
    """
    found = _ATTEMPT_HEX.fullmatch(attempt_id)
    return found[1] if found else hashlib.sha256(attempt_id.encode()).hexdigest()[:32]


def span_id() -> str:
    """A new OpenTelemetry span id, 16 hex digits, not all zero."""
    return _hex(16)
