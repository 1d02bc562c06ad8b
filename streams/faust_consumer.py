"""Faust's consumer, as far as it has to be another one here."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from operator import attrgetter
from typing import Protocol

from ..schemas.errors import Unavailable
from .faust_types import Consumer, ConsumerThread, Message, Service

FETCH_TIMEOUT_S = 1.0
WATCH_S = 0.5
CEASED = "the assembler's Kafka consumer has ceased to work; nothing is lost, start again"
LEAVE_S = 2.0  # what the group gets to hear that its member leaves
CLOSE_S = 0.5  # what connections get: one with TLS waits for its peer


class Forward(Protocol):
    """The app, which takes what was fetched."""

    async def forward(self, messages: Sequence[Message]) -> None:
        """Takes it; waits while enough of it is waiting."""
        ...


class _Thread(ConsumerThread):
    async def on_start(self) -> None:
        await super().on_start()
        self.add_future(self._watch())

    async def _watch(self) -> None:
        """Raises what the client keeps for calls that Faust does not make: until then it stands still, silently."""
        coordinator, fetcher = attrgetter("_consumer._coordinator", "_consumer._fetcher")(self)
        while True:
            await asyncio.sleep(WATCH_S)
            if self.should_stop:
                return
            try:
                coordinator.check_errors()
                if not fetcher.error_future.done():
                    continue
                fetcher.error_future.result()
            except asyncio.CancelledError as error:  # of the client's own work, not of this
                raise Unavailable(CEASED) from error
            raise Unavailable(CEASED)

    async def on_thread_stop(self) -> None:
        """Ends a consumer whose broker is away, too: aiokafka cancels what then waits to fetch, and is cancelled by it.

        Faust would take that for its own end, and who stops it would wait a minute for a thread that is gone. A broker
        that does not answer is not waited for either: what is left behind here ends with the thread's loop.
        """
        ending = asyncio.ensure_future(super().on_thread_stop())
        await asyncio.wait([ending], timeout=LEAVE_S)
        if ending.done() and not ending.cancelled():
            ending.result()
            return
        ending.cancel()
        closing = asyncio.ensure_future(attrgetter("_consumer._client")(self).close())
        await asyncio.wait([closing], timeout=CLOSE_S)


class Batches(Consumer):
    """A consumer that hands on what it fetched at once; Faust's own makes two tasks, an event and a stream of each."""

    app: Forward

    def _new_consumer_thread(self) -> ConsumerThread:
        return _Thread(self, loop=self.loop, beacon=self.beacon)

    async def perform_seek(self) -> None:
        """Nothing: aiokafka begins at what is committed, and `app.py` seeks from there.

        Faust asks for the committed offsets again, one by one. Where they take longer than one request may, it takes
        the time-out for its own end: no rebalance is followed by records any more, and nothing tells of it.
        """

    async def _drain_messages(self, fetcher: Service) -> None:
        while not (self.should_stop or fetcher.should_stop):
            batch = [message async for _, message in self.getmany(timeout=FETCH_TIMEOUT_S)]
            if batch:
                await self.app.forward(batch)
            else:  # it may have returned without having waited
                await asyncio.sleep(0)
