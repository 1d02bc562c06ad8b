"""The assembler's group offsets as Faust's consumer has them; `first_offsets.py` is about those outside of Faust."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Mapping
from contextlib import suppress
from operator import methodcaller
from typing import cast

from ..infra.kafka import Names, Position
from .faust_types import TP, Consumer
from .messages import SOURCES


async def commit(consumer: Consumer, names: Names, offsets: Mapping[Position, int]) -> bool:
    """Commits next offsets; False where one of their partitions is no longer assigned, or the broker refuses."""
    wanted = {TP(names.full(t), p): offset for (t, p), offset in offsets.items()}
    ask = cast("Callable[[object], Awaitable[bool]]", methodcaller("_commit", wanted))
    return wanted.keys() <= consumer.assignment() and await ask(consumer)


def end_offsets(consumer: Consumer, names: Names, partitions: Iterable[int]) -> dict[Position, int]:
    """End offsets as the last fetches told them."""
    found: dict[Position, int] = {}
    for source, p in ((source, p) for p in partitions for source in SOURCES):
        with suppress(AssertionError):  # the consumer's own thread has lost the partition just now
            if (end := consumer.highwater(TP(names.full(source), p))) is not None:
                found[source, p] = end
    return found
