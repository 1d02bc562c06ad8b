"""Waiting for what other threads, processes and services do; how long they take decides no test."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path

# Only a test that fails waits for so long; a loaded machine may need much of it.
LIMIT_S = 120.0
# The five seconds in which a part is to be gone, and what a loaded machine adds.
GONE_WITHIN_S = 30.0
FIRST_REST_S, LONGEST_REST_S = 0.002, 0.1


def until(
    condition: Callable[[], object], what: Callable[[], str] | str = "the condition", within_s: float = LIMIT_S
) -> None:
    """Returns once a condition holds. Raises TimeoutError that says what was waited for."""
    deadline, rest_s = time.monotonic() + within_s, FIRST_REST_S
    while not condition():
        if time.monotonic() > deadline:
            raise TimeoutError(f"after {within_s:g} s: {what if isinstance(what, str) else what()}")
        time.sleep(rest_s)
        rest_s = min(2 * rest_s, LONGEST_REST_S)


def gone(pid: int) -> bool:
    """Whether a process has ended; one that nobody has asked about since is listed on."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    stat = Path(f"/proc/{pid}/stat")
    try:
        return stat.parent.parent.exists() and stat.read_text().rsplit(")", 1)[1].split()[0] == "Z"
    except (FileNotFoundError, ProcessLookupError):
        return True
