"""The two ways of reading Kafka. A `Reader` is assigned partitions and keeps its own position; a `Member` shares
partitions with its group. Both hand out `Message`s under topic names without the prefix, and both raise DataLost where
records are gone: nothing is ever skipped silently.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import cast

from confluent_kafka import OFFSET_BEGINNING, OFFSET_END, Consumer, KafkaError, KafkaException, TopicPartition
from confluent_kafka import Message as Received

from ..schemas.errors import SpanloopError, Unavailable
from ..schemas.serde import Headers
from ..schemas.topics import Topic
from .group_offsets import Start, commit_first, committed, first_offsets, patiently
from .kafka_config import (
    LOST,
    METADATA_TIMEOUT_S,
    Isolation,
    Names,
    admin,
    client_of,
    common_config,
    consumer_config,
    denied,
    failure,
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
log = logging.getLogger(__name__)


def _nothing(positions: list[Position]) -> None:
    del positions


class _Client:
    """What Reader and Member share."""

    def __init__(self, settings: Settings, group: str, isolation: Isolation) -> None:
        self.settings = settings
        self.group = group
        self.names = Names(settings.prefix)
        self.positions: dict[Position, int] = {}
        """Next offset of each partition, transaction markers at its end passed over; known once something came."""
        self._failure: SpanloopError | None = None
        self._closing = False
        self._revoked_now: set[Position] = set()
        self._consumer = client_of(Consumer, consumer_config(settings, group, isolation=isolation))

    def poll(self, max_records: int = 1000, timeout_s: float = 0.1) -> list[Message]:
        """Up to `max_records`, waiting at most `timeout_s` for the first. Raises DataLost, Unavailable, Fenced.

        Records that came before a failure are handed out first; the failure is raised by the next call. After
        DataLost every call raises it again, until the partition is assigned or sought anew.
        """
        if self._failure is not None:
            raise self._failure
        out = self._take(self._consumer.consume(1, timeout_s))
        if max_records > 1 and self._failure is None:
            # consume() waits until it is full or late, so what has come with the first record is asked for without
            # waiting. A rebalance in that call may take the first one's partition: then it is its next owner's.
            self._revoked_now.clear()
            more = self._take(self._consumer.consume(max_records - 1, 0))
            out = [m for m in out if (m.topic, m.partition) not in self._revoked_now] + more
        if not out and self._failure is not None:
            self._raise()
        return out

    def _raise(self) -> None:
        found = cast("SpanloopError", self._failure)
        if isinstance(found, Unavailable):  # may have passed by the next call
            self._failure = None
        raise found

    def _take(self, found: Sequence[Received]) -> list[Message]:
        out: list[Message] = []
        for m in found:
            topic, partition = self.names.short(m.topic() or "?"), m.partition()
            position = (topic, -1 if partition is None else partition)
            error, offset = m.error(), cast("int", m.offset())
            if error is not None:
                self._check(error, position, offset)
                continue
            self.positions[position] = offset + 1
            headers = cast("Headers", m.headers())
            out.append(Message(topic, position[1], offset, m.key(), m.value(), headers, m.timestamp()[1]))
        return out

    def _check(self, error: KafkaError, position: Position, offset: int) -> None:
        where = f"{position[0]}[{position[1]}]"
        if error.code() == KafkaError._PARTITION_EOF:
            self.positions[position] = max(offset, self.positions.get(position, 0))
        elif error.code() in LOST:
            self._failure = lost(self.settings, f"consumer {self.group} on {where}", self._kept(position, offset))
        elif found := failure(self.settings, error, self.group, where):
            self._failure = self._failure or found
        else:
            log.debug("consumer %s on %s: %s", self.group, where, error.str())

    def _kept(self, position: Position, offset: int) -> str:
        try:
            low, high = self.watermarks(position)
        except Unavailable:  # the loss is what has to be told
            return ""
        return f" (offset {offset} was wanted, {low} to {high - 1} are kept)"

    def watermarks(self, position: Position, timeout_s: float = METADATA_TIMEOUT_S) -> tuple[int, int]:
        """(first offset kept, end offset) of a partition; under read_committed the end is before open transactions.

        Raises Unavailable.
        """
        topic, partition = position
        try:
            return watermarks(self._consumer, TopicPartition(self.names.full(topic), partition), timeout_s)
        except KafkaException as error:
            where = f"{topic}[{partition}]"
            away = Unavailable(f"{where} on {self.settings.bootstrap}: {error}")
            raise denied(self.settings, error, self.group, where) or away from error

    def ends(self, of: Iterable[Position] | None = None, timeout_s: float = METADATA_TIMEOUT_S) -> dict[Position, int]:
        """The end offset now of some partitions, or of all it has; `timeout_s` for each."""
        return {p: self.watermarks(p, timeout_s)[1] for p in (self.assignment() if of is None else of)}

    def assignment(self) -> list[Position]:
        """Partitions it holds."""
        return [(self.names.short(tp.topic), tp.partition) for tp in self._consumer.assignment()]

    def pause(self, positions: Iterable[Position]) -> None:
        """Stops fetching partitions while staying in the group."""
        self._consumer.pause([TopicPartition(self.names.full(t), p) for t, p in positions])

    def resume(self, positions: Iterable[Position]) -> None:
        """Fetches them again."""
        self._consumer.resume([TopicPartition(self.names.full(t), p) for t, p in positions])

    def close(self) -> None:
        """Leaves and frees its connections; may be called again."""
        self._closing = True
        self._consumer.close()


class Reader(_Client):
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


class Member(_Client):
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
        if self._closing:  # leaving, it is still told of what it was about to be given
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

    def raw(self) -> Consumer:
        """The client underneath, for transactions."""
        return self._consumer
