"""Reading partitions on an event loop from given offsets to the end that they have now."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence

from confluent_kafka import OFFSET_BEGINNING

from ..infra.kafka import Message, Position, Reader
from ..infra.settings import Settings

# Small enough that a slice of catching up does not keep timers and rebalances waiting.
SLICE = 200
POLL_S = 0.05


def never() -> bool:
    """Reading that nothing supersedes."""
    return False


def untold(ends: Mapping[Position, int]) -> None:
    """For reading whose ends nobody asks for."""
    del ends


async def read(
    settings: Settings,
    name: str,
    starts: Mapping[Position, int | None],
    handle: Callable[[Sequence[Message]], Awaitable[None]],
    superseded: Callable[[], bool] = never,
    tell: Callable[[Mapping[Position, int]], None] = untold,
) -> bool:
    """Reads partitions from offsets (None = the first kept) to the end they have now; False where superseded before.

    `name` is the reader's for the broker, `tell` is told the ends. Raises DataLost.
    """
    reader = Reader(settings, name)
    try:
        offsets = {at: OFFSET_BEGINNING if offset is None else offset for at, offset in starts.items()}
        await asyncio.to_thread(reader.assign, offsets)
        ends = await asyncio.to_thread(reader.ends)
        tell(ends)
        while not reader.reached(ends):
            if superseded():
                return False
            await handle(await asyncio.to_thread(reader.poll, SLICE, POLL_S))
        return True
    finally:
        await asyncio.to_thread(reader.close)
