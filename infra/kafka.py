"""The two ways of reading Kafka. A `Reader` is assigned partitions and keeps its own position; a `Member` shares
partitions with its group. Both hand out `Message`s under topic names without the prefix, and both raise DataLost where
records are gone: nothing is ever skipped silently.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence

from confluent_kafka import OFFSET_BEGINNING, OFFSET_END, Consumer, KafkaException, TopicPartition

from ..schemas.errors import SpanloopError, Unavailable
from ..schemas.topics import Topic
from .group_offsets import Start, commit_first, committed, first_offsets, patiently
from .kafka_client import Client
from .kafka_config import (
    METADATA_TIMEOUT_S,
    Isolation,
    Names,
    admin,
    common_config,
    consumer_config,
    denied,
    lost,
    partitions,
    wait_for_broker,
    watermarks,
)
from .message import Message, Position
from .settings import Settings

__all__ = [
    "METADATA_TIMEOUT_S",
    "OFFSET_BEGINNING",
    "OFFSET_END",
    "Isolation",
    "Member",
    "Message",
    "Names",
    "Position",
    "Reader",
    "admin",
    "common_config",
    "consumer_config",
    "lost",
    "partitions",
    "wait_for_broker",
    "watermarks",
]

REBALANCE_S = 1.0  # what a member that leaves gives a rebalance to end, of the five seconds to end in
LOOK_S = 0.005  # between two looks at whether the group has let it go
THROWN_AWAY = 1000  # records at a time: they go to the next owners of their partitions


def _nothing(positions: list[Position]) -> None:
    del positions


class Reader(Client):
    """Reads partitions it was given, from offsets it was given, outside any group."""

    def __init__(self, settings: Settings, name: str, *, isolation: Isolation = "read_committed") -> None:
        super().__init__(settings, f"{name}-reader", isolation)

    def assign(self, offsets: Mapping[Position, int]) -> None:
        """Starts at the given offsets; OFFSET_BEGINNING and OFFSET_END are resolved here, once, to numbers."""
        self.positions = {}
        for position, offset in offsets.items():
            if offset in (OFFSET_BEGINNING, OFFSET_END):
                low, high = self.watermarks(position)
                offset = low if offset == OFFSET_BEGINNING else high
            self.positions[position] = offset
        self._assign()

    def assign_topics(self, topics: Sequence[Topic], offset: int = OFFSET_BEGINNING) -> None:
        """Every partition of some topics, from one kind of offset."""
        self.assign({(t.name, p): offset for t in topics for p in range(partitions(self.settings, t))})

    def seek(self, position: Position, offset: int) -> None:
        """Reads an assigned partition on from `offset`. Ends pauses."""
        self.positions[position] = offset
        self._assign()

    def _assign(self) -> None:
        self._failure = None
        self._consumer.assign(
            [TopicPartition(self.names.full(t), p, offset) for (t, p), offset in self.positions.items()]
        )

    def reached(self, ends: Mapping[Position, int]) -> bool:
        """True once everything before `ends` has been read, transaction markers and compacted records included."""
        return all(self.positions.get(p, -1) >= end for p, end in ends.items())


class Member(Client):
    """A member of a consumer group with range assignment and offsets committed by hand."""

    def __init__(
        self,
        settings: Settings,
        group: str,
        topics: Sequence[Topic],
        *,
        start: Start = "earliest",
        isolation: Isolation = "read_committed",
        on_assign: Callable[[list[Position]], Mapping[Position, int] | None] = _nothing,
        on_revoke: Callable[[list[Position]], None] = _nothing,
    ) -> None:
        """Commits the group's first offsets itself (`start`), so that no reset ever skips records later.

        The callbacks run inside `poll`; what they raise comes out of it. `on_assign` comes first: where it returns next
        offsets, those count, and the group's are not asked for.
        """
        super().__init__(settings, group, isolation)
        self._leaving = False
        self._start: Start = start
        self._on_assign = on_assign
        self._on_revoke = on_revoke
        self._consumer.subscribe(
            [self.names.full(t.name) for t in topics],
            on_assign=self._assigned,
            on_revoke=self._revoked,
            on_lost=self._revoked,
        )

    def _assigned(self, consumer: Consumer, parts: list[TopicPartition]) -> None:
        if self._leaving:  # it is still told of what it was about to be given
            self._on_revoke = _nothing  # all it held was taken from it before
            consumer.assign([])
            return
        consumer.resume(parts)  # in the client a pause outlives its assignment, and who paused may not know any more
        given = self._on_assign([(self.names.short(tp.topic), tp.partition) for tp in parts])
        if given is None:
            given = self._first(consumer, parts)
        if given:  # else the client asks for the committed offsets itself, after the callback
            for tp in parts:
                tp.offset = given.get((self.names.short(tp.topic), tp.partition), tp.offset)
            consumer.assign(parts)

    def _first(self, consumer: Consumer, parts: list[TopicPartition]) -> Mapping[Position, int]:
        """Commits first offsets; those that could not be committed, as another rebalance has begun."""
        try:
            fresh = patiently(lambda: first_offsets(consumer, committed(consumer, parts), self._start))
            refused = bool(fresh) and not patiently(lambda: commit_first(consumer, fresh))
        except KafkaException as error:
            raise self._meaning(error, "its offsets cannot be read") from error
        return {(self.names.short(tp.topic), tp.partition): tp.offset for tp in fresh} if refused else {}

    def _revoked(self, consumer: Consumer, parts: list[TopicPartition]) -> None:
        del consumer
        gone = [(self.names.short(tp.topic), tp.partition) for tp in parts]
        self._revoked_now.update(gone)
        for position in gone:
            self.positions.pop(position, None)
        self._on_revoke(gone)

    def seek(self, position: Position, offset: int) -> None:
        """Reads a partition it holds on from `offset`. Raises Unavailable where it is not held."""
        try:
            self._consumer.seek(TopicPartition(self.names.full(position[0]), position[1], offset))
        except KafkaException as error:
            raise Unavailable(f"group {self.group}: {position[0]}[{position[1]}] cannot be sought: {error}") from error
        self._failure = None
        self.positions[position] = offset

    def commit(self, offsets: Mapping[Position, int]) -> None:
        """Commits next offsets and waits. Raises Unavailable where the group refused (a rebalance took place)."""
        if not offsets:
            return
        wanted = [TopicPartition(self.names.full(t), p, o) for (t, p), o in offsets.items()]
        try:
            done = self._consumer.commit(offsets=wanted, asynchronous=False)
        except KafkaException as error:
            raise self._meaning(error, "commit refused") from error
        for tp in done or ():
            if tp.error is not None:
                raise Unavailable(f"group {self.group}: commit of {tp.topic}[{tp.partition}] refused: {tp.error}")

    def committed(self) -> dict[Position, int]:
        """Committed next offset of each partition it holds. Raises Unavailable."""
        try:
            found = patiently(lambda: committed(self._consumer, self._consumer.assignment()))
        except KafkaException as error:
            raise self._meaning(error, "its offsets cannot be read") from error
        return {(self.names.short(tp.topic), tp.partition): tp.offset for tp in found}

    def _meaning(self, error: KafkaException, what: str) -> SpanloopError:
        return denied(self.settings, error, self.group) or Unavailable(f"group {self.group}: {what}: {error}")

    def close(self) -> None:
        """Leaves the group, runs `on_revoke` for what it holds, and frees its connections; may be called again."""
        try:
            if not self._leaving:
                self._leaving = True
                self._leave()
        finally:
            super().close()

    def _leave(self) -> None:
        """Leaves while it can still take part in a rebalance.

        Where the client learns of one while it closes, its answer may be queued when the group's handler has just
        ended. It is then dropped without a reply, for which the client waits for ever, in C and with the interpreter's
        lock (librdkafka #4884).
        """
        try:
            self._consumer.unsubscribe()  # put off until a rebalance that has begun is over
        except KafkaException:  # after a fatal error
            return
        until = time.monotonic() + REBALANCE_S
        while time.monotonic() < until:
            if not self._consumer.consume(THROWN_AWAY, LOOK_S) and not self._consumer.memberid():
                return

    def raw(self) -> Consumer:
        """The client underneath, for transactions."""
        return self._consumer
