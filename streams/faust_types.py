"""The part of Faust that is used, with types: Faust's own annotations leave most of it unknown."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from asyncio import Future
    from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Mapping, Sequence
    from typing import NamedTuple

    class TP(NamedTuple):
        """A topic's partition."""

        topic: str
        partition: int

    class Message:
        """One record."""

        topic: str
        partition: int
        offset: int
        key: bytes | None
        value: bytes | None
        headers: Mapping[str, bytes] | Sequence[tuple[str, bytes]] | None

    class Event:
        """One record in a stream."""

        message: Message

    class Stream:
        """Records of the topics an agent reads."""

        def noack_take(self, max_: int, within: float) -> AsyncIterator[Sequence[Event]]: ...

    class Consumer:
        """The group member."""

        def assignment(self) -> set[TP]: ...
        async def seek_wait(self, partitions: Mapping[TP, int]) -> None: ...

    class Signal:
        """Something an app tells."""

        def connect(self, fun: Callable[..., Awaitable[None]]) -> object: ...

    class BootStrategy:
        """What is started with an app."""

        enable_kafka_producer: bool | None
        enable_web: bool | None

    class App:
        """A Faust app, which is a service of mode."""

        BootStrategy: type[BootStrategy]
        consumer: Consumer
        crashed: bool
        crash_reason: BaseException | None
        on_partitions_assigned: Signal
        rebalancing: bool

        def __init__(self, *, id: str, datadir: str, **settings: object) -> None: ...
        def topic(self, *topics: str, key_serializer: str, value_serializer: str, acks: bool) -> object: ...
        def agent(self, channel: object, *, name: str) -> Callable[[Callable[[Stream], Awaitable[None]]], object]: ...
        def add_future(self, coro: Coroutine[object, object, None]) -> Future[None]: ...
        async def start(self) -> None: ...
        async def stop(self) -> bool: ...
        async def on_first_start(self) -> None: ...
        async def on_started(self) -> None: ...
        async def on_stop(self) -> None: ...
        async def on_shutdown(self) -> None: ...

    class OffsetOutOfRangeError(Exception):
        """aiokafka: records were removed before they were read."""

    class NoOffsetForPartitionError(Exception):
        """aiokafka: nothing is committed, and nothing is to be assumed."""

else:
    from aiokafka.errors import NoOffsetForPartitionError, OffsetOutOfRangeError
    from faust import App
    from faust.app.base import BootStrategy
    from faust.types import TP
    from faust.types import EventT as Event
    from faust.types import StreamT as Stream

__all__ = ["TP", "App", "BootStrategy", "Event", "NoOffsetForPartitionError", "OffsetOutOfRangeError", "Stream"]
