"""Kafka clients on confluent-kafka: one place for their settings, errors and the two ways of reading.

A `Reader` is assigned partitions and keeps its own position; a `Member` shares partitions with its group. Both hand
out `Message`s under topic names without the prefix, and both raise DataLost where records are gone.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, cast

from confluent_kafka import OFFSET_BEGINNING, OFFSET_END, Consumer, KafkaError, KafkaException, TopicPartition
from confluent_kafka.admin import AdminClient

from ..schemas.errors import DataLost, Unavailable
from ..schemas.serde import Headers
from ..schemas.topics import DEAD_LETTER_MAX_BYTES, TOPICS, Topic
from .settings import Settings

log = logging.getLogger(__name__)

FETCH_MAX_BYTES = 2 * DEAD_LETTER_MAX_BYTES
METADATA_TIMEOUT_S = 10.0
Position = tuple[str, int]  # (topic without prefix, partition)
Isolation = Literal["read_committed", "read_uncommitted"]


@dataclass(frozen=True, slots=True)
class Message:
    """One record as it lay in the log; value None = tombstone."""

    topic: str
    partition: int
    offset: int
    key: bytes | None
    value: bytes | None
    headers: Headers = None
    timestamp_ms: int = 0


def common_config(settings: Settings, client_id: str) -> dict[str, Any]:
    """What every client gets."""
    return {
        "bootstrap.servers": settings.bootstrap,
        "client.id": client_id,
        "reconnect.backoff.max.ms": 2000,
        "allow.auto.create.topics": False,
        "log_level": 3,
        **settings.kafka,
    }


def consumer_config(settings: Settings, group: str, *, isolation: Isolation) -> dict[str, Any]:
    """A consumer that never skips: data lost to retention is an error, offsets are committed by hand."""
    return {
        **common_config(settings, group),
        "group.id": f"{settings.prefix}-{group}",
        "enable.auto.commit": False,
        "enable.auto.offset.store": False,
        "auto.offset.reset": "error",
        "isolation.level": isolation,
        "session.timeout.ms": int(settings.session_timeout_s * 1000),
        "heartbeat.interval.ms": int(settings.session_timeout_s * 1000 / 3),
        "fetch.message.max.bytes": FETCH_MAX_BYTES,
        "fetch.max.bytes": FETCH_MAX_BYTES,
        "receive.message.max.bytes": FETCH_MAX_BYTES + 1_000_000,
        "fetch.wait.max.ms": 50,
        "queued.max.messages.kbytes": 65536,
        "partition.assignment.strategy": "range",
    }


def _nothing(positions: list[Position]) -> None:
    del positions


def lost(settings: Settings, what: str) -> DataLost:
    """The error for records that are gone, with what to do about it."""
    hint = (
        "the embedded broker keeps 5 MiB a partition; for more use Redpanda (infra/compose.yaml) or "
        "`spanloop up --kafka`"
        if settings.profile == "embedded"
        else "raise the topic's retention, or reset the group's offsets by hand if the loss is accepted"
    )
    return DataLost(f"{what}: its records were removed before they were read; {hint}")


class Names:
    """Topic names with and without the prefix."""

    def __init__(self, prefix: str) -> None:
        self._short = {t.full(prefix): t.name for t in TOPICS.values()}
        self._full = {t.name: t.full(prefix) for t in TOPICS.values()}

    def short(self, full: str) -> str:
        """The name in TOPICS; other topics keep theirs."""
        return self._short.get(full, full)

    def full(self, short: str) -> str:
        """The name on the broker."""
        return self._full.get(short, short)


class _Client:
    """What Reader and Member share."""

    def __init__(self, settings: Settings, group: str, isolation: Isolation, extra: Mapping[str, Any]) -> None:
        self.settings = settings
        self.group = group
        self.names = Names(settings.prefix)
        self._consumer = Consumer({**consumer_config(settings, group, isolation=isolation), **extra})

    def poll(self, max_records: int = 1000, timeout_s: float = 0.1) -> list[Message]:
        """Up to `max_records`, waiting at most `timeout_s`. Raises DataLost, Unavailable."""
        out: list[Message] = []
        # consume() waits until it is full or late: ask for one record first, then for what has come with it
        found = self._consumer.consume(1, timeout_s)
        if found and max_records > 1:
            found += self._consumer.consume(max_records - 1, 0)
        for m in found:
            error = m.error()
            if error is not None:
                self._check(error, f"{self.names.short(m.topic() or '?')}[{m.partition()}]")
                continue
            out.append(
                Message(
                    self.names.short(cast("str", m.topic())),
                    cast("int", m.partition()),
                    cast("int", m.offset()),
                    m.key(),
                    m.value(),
                    cast("Headers", m.headers()),
                    m.timestamp()[1],
                )
            )
        return out

    def _check(self, error: KafkaError, where: str) -> None:
        code = error.code()
        if code in (KafkaError._AUTO_OFFSET_RESET, KafkaError.OFFSET_OUT_OF_RANGE, KafkaError._NO_OFFSET):
            raise lost(self.settings, f"consumer {self.group} on {where}")
        if code in (KafkaError.UNKNOWN_TOPIC_OR_PART, KafkaError._UNKNOWN_TOPIC):
            raise Unavailable(f"topic {where} does not exist on {self.settings.bootstrap}; run `spanloop init`")
        if error.fatal():
            raise Unavailable(f"consumer {self.group}: {error.str()}")
        log.debug("consumer %s on %s: %s", self.group, where, error.str())

    def watermarks(self, position: Position, timeout_s: float = METADATA_TIMEOUT_S) -> tuple[int, int]:
        """(first offset kept, end offset) of a partition. Raises Unavailable."""
        topic, partition = position
        try:
            low, high = self._consumer.get_watermark_offsets(
                TopicPartition(self.names.full(topic), partition), timeout=timeout_s
            )
        except KafkaException as error:
            raise Unavailable(f"{topic}[{partition}] on {self.settings.bootstrap}: {error}") from error
        return low, high

    def seek(self, position: Position, offset: int) -> None:
        """Reads an assigned partition on from `offset`."""
        self._consumer.seek(TopicPartition(self.names.full(position[0]), position[1], offset))

    def pause(self, positions: Iterable[Position]) -> None:
        """Stops fetching partitions while staying in the group."""
        self._consumer.pause([TopicPartition(self.names.full(t), p) for t, p in positions])

    def resume(self, positions: Iterable[Position]) -> None:
        """Fetches them again."""
        self._consumer.resume([TopicPartition(self.names.full(t), p) for t, p in positions])

    def close(self) -> None:
        """Leaves and frees its connections."""
        self._consumer.close()


class Reader(_Client):
    """Reads partitions it was given, from offsets it was given, outside any group."""

    def __init__(self, settings: Settings, name: str, *, isolation: Isolation = "read_committed") -> None:
        super().__init__(settings, f"{name}-reader", isolation, {})
        self.positions: dict[Position, int] = {}

    def assign(self, offsets: Mapping[Position, int]) -> None:
        """Starts at the given offsets; OFFSET_BEGINNING and OFFSET_END are resolved here, once, to numbers."""
        self.positions = {}
        for position, offset in offsets.items():
            if offset in (OFFSET_BEGINNING, OFFSET_END):
                low, high = self.watermarks(position)
                offset = low if offset == OFFSET_BEGINNING else high
            self.positions[position] = offset
        self._consumer.assign(
            [TopicPartition(self.names.full(t), p, offset) for (t, p), offset in self.positions.items()]
        )

    def assign_topics(self, topics: Sequence[Topic], offset: int = OFFSET_BEGINNING) -> None:
        """Every partition of some topics, from one kind of offset."""
        self.assign({(t.name, p): offset for t in topics for p in range(partitions(self.settings, t))})

    def poll(self, max_records: int = 1000, timeout_s: float = 0.1) -> list[Message]:
        out = super().poll(max_records, timeout_s)
        for m in out:
            self.positions[m.topic, m.partition] = m.offset + 1
        return out

    def ends(self) -> dict[Position, int]:
        """The end offset of each assigned partition now."""
        return {position: self.watermarks(position)[1] for position in self.positions}

    def reached(self, ends: Mapping[Position, int]) -> bool:
        """True once everything before `ends` has been read.

        Asks the client rather than the last message: transaction markers and compacted records have no message.
        """
        found = self._consumer.position([TopicPartition(self.names.full(t), p) for t, p in ends])
        at = {(self.names.short(tp.topic), tp.partition): tp.offset for tp in found}
        return all(max(at.get(p, -1), self.positions.get(p, -1)) >= end for p, end in ends.items())


class Member(_Client):
    """A member of a consumer group with range assignment and offsets committed by hand."""

    def __init__(
        self,
        settings: Settings,
        group: str,
        topics: Sequence[Topic],
        *,
        start: Literal["earliest", "latest"] = "earliest",
        isolation: Isolation = "read_committed",
        on_assign: Callable[[list[Position]], None] | None = None,
        on_revoke: Callable[[list[Position]], None] | None = None,
    ) -> None:
        """Commits the group's first offsets itself (`start`), so that no reset ever skips records later."""
        super().__init__(settings, group, isolation, {})
        self._start = start
        self._on_assign = on_assign or _nothing
        self._on_revoke = on_revoke or _nothing
        self._consumer.subscribe(
            [self.names.full(t.name) for t in topics],
            on_assign=self._assigned,
            on_revoke=self._revoked,
            on_lost=self._revoked,
        )

    def _assigned(self, consumer: Consumer, parts: list[TopicPartition]) -> None:
        fresh = [tp for tp in consumer.committed(parts, timeout=METADATA_TIMEOUT_S) if tp.offset < 0]
        for tp in fresh:
            low, high = consumer.get_watermark_offsets(tp, timeout=METADATA_TIMEOUT_S)
            tp.offset = low if self._start == "earliest" else high
        if fresh:
            consumer.commit(offsets=fresh, asynchronous=False)
        self._on_assign([(self.names.short(tp.topic), tp.partition) for tp in parts])

    def _revoked(self, consumer: Consumer, parts: list[TopicPartition]) -> None:
        del consumer
        self._on_revoke([(self.names.short(tp.topic), tp.partition) for tp in parts])

    def assignment(self) -> list[Position]:
        """Partitions it holds."""
        return [(self.names.short(tp.topic), tp.partition) for tp in self._consumer.assignment()]

    def commit(self, offsets: Mapping[Position, int]) -> None:
        """Commits next offsets and waits. Raises Unavailable where the group refused (a rebalance took place)."""
        wanted = [TopicPartition(self.names.full(t), p, o) for (t, p), o in offsets.items()]
        try:
            self._consumer.commit(offsets=wanted, asynchronous=False)
        except KafkaException as error:
            raise Unavailable(f"group {self.group}: commit refused: {error}") from error

    def committed(self) -> dict[Position, int]:
        """Committed next offset of each partition it holds."""
        found = self._consumer.committed(self._consumer.assignment(), timeout=METADATA_TIMEOUT_S)
        return {(self.names.short(tp.topic), tp.partition): tp.offset for tp in found}

    def raw(self) -> Consumer:
        """The client underneath, for transactions."""
        return self._consumer


def partitions(settings: Settings, topic: Topic) -> int:
    """How many partitions a topic has, as the settings promise it; `spanloop init` and `doctor` hold them to it."""
    return settings.partitions if topic.spread else 1


def admin(settings: Settings) -> AdminClient:
    """An admin client. Keep it until its futures are resolved."""
    return AdminClient(common_config(settings, "admin"))


def wait_for_broker(settings: Settings, timeout_s: float = METADATA_TIMEOUT_S) -> None:
    """Returns once a broker answers. Raises Unavailable naming host and port."""
    try:
        admin(settings).list_topics(timeout=timeout_s)
    except KafkaException as error:
        raise Unavailable(
            f"no Kafka broker answers at {settings.bootstrap} after {timeout_s:g} s; is it running? "
            "(`spanloop up` starts an embedded one)"
        ) from error
