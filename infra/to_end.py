"""Reads a log to an end that was asked for before, and no further."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping

from ..schemas.errors import Unavailable
from .kafka import Reader
from .message import Message, Position

POLL_S = 0.2
# For how long nothing may come while the end is not reached.
SILENCE_S = 10.0


def to_end(reader: Reader, ends: Mapping[Position, int], *, silence_s: float = SILENCE_S) -> Iterator[Message]:
    """Every record that an assigned reader has before `ends` (as of `Reader.ends`). Raises Unavailable, DataLost."""
    heard = time.monotonic()
    while not reader.reached(ends):
        messages = reader.poll(timeout_s=POLL_S)
        if not messages and time.monotonic() - heard > silence_s:
            names = ", ".join(f"{topic}[{partition}]" for topic, partition in sorted(ends))
            raise Unavailable(f"reading {names} to the end: nothing came for {silence_s:g} s; is the broker well?")
        yield from (m for m in messages if m.offset < ends[m.topic, m.partition])
        if messages:  # only now: whoever takes them may have waited for something else
            heard = time.monotonic()
