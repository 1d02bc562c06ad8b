"""The part of Faust that is used, with types: Faust's own annotations leave most of it unknown."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from asyncio import Future
    from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Mapping, MutableSet, Sequence
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

    class Service:
        """A service of mode."""

        should_stop: bool

    class ConsumerThread(Service):
        """The thread in which aiokafka's consumer lives."""

        def __init__(self, consumer: Consumer, *, loop: object, beacon: object) -> None: ...
        async def on_start(self) -> None: ...
        async def on_thread_stop(self) -> None: ...
        def add_future(self, coro: Coroutine[object, object, None]) -> Future[None]: ...

    class Consumer(Service):
        """The group member."""

        loop: object
        beacon: object

        def _new_consumer_thread(self) -> ConsumerThread: ...
        def highwater(self, tp: TP) -> int | None: ...
        def assignment(self) -> set[TP]: ...
        async def perform_seek(self) -> None: ...
        async def seek_wait(self, partitions: Mapping[TP, int]) -> None: ...
        def getmany(self, timeout: float) -> AsyncIterator[tuple[TP, Message]]: ...

    class Transport:
        """How Kafka is reached."""

        Consumer: type[Consumer]

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
        should_stop: bool
        on_partitions_assigned: Signal
        rebalancing: bool
        rebalancing_count: int
        topics: MutableSet[object]

        def __init__(self, *, id: str, datadir: str, **settings: object) -> None: ...
        def _new_transport(self) -> Transport: ...
        def topic(self, *topics: str, key_serializer: str, value_serializer: str, acks: bool) -> object: ...
        def add_future(self, coro: Coroutine[object, object, None]) -> Future[None]: ...
        async def start(self) -> None: ...
        async def stop(self) -> bool: ...
        async def crash(self, reason: BaseException) -> None: ...
        async def on_first_start(self) -> None: ...
        async def on_started(self) -> None: ...
        async def on_stop(self) -> None: ...
        async def on_shutdown(self) -> None: ...

    class KafkaError(Exception):
        """aiokafka: what its errors have in common."""

        retriable: bool

    class BrokerResponseError(KafkaError):
        """aiokafka: what a broker answered."""

        errno: int

    class OffsetOutOfRangeError(KafkaError):
        """aiokafka: records were removed before they were read."""

    class NoOffsetForPartitionError(KafkaError):
        """aiokafka: nothing is committed, and nothing is to be assumed."""

else:
    from aiokafka.errors import BrokerResponseError, KafkaError, NoOffsetForPartitionError, OffsetOutOfRangeError
    from faust import App
    from faust.app.base import BootStrategy
    from faust.transport.base import Transport
    from faust.transport.drivers.aiokafka import AIOKafkaConsumerThread as ConsumerThread
    from faust.transport.drivers.aiokafka import Consumer
    from faust.types import TP, Message
    from mode import Service

__all__ = [
    "TP",
    "App",
    "BootStrategy",
    "BrokerResponseError",
    "Consumer",
    "ConsumerThread",
    "KafkaError",
    "Message",
    "NoOffsetForPartitionError",
    "OffsetOutOfRangeError",
    "Service",
    "Transport",
]
