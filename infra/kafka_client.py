"""What a `Reader` and a `Member` share: see `kafka`."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence
from typing import cast

from confluent_kafka import Consumer, KafkaError, KafkaException, TopicPartition
from confluent_kafka import Message as Received

from ..schemas.errors import SpanloopError, Unavailable
from ..schemas.serde import Headers
from .kafka_config import (
    LOST,
    METADATA_TIMEOUT_S,
    Isolation,
    Names,
    client_of,
    consumer_config,
    denied,
    failure,
    lost,
    watermarks,
)
from .message import Message, Position
from .settings import Settings

log = logging.getLogger(__name__)


class Client:
    """Polls; hands out records, then raises what has failed."""

    def __init__(self, settings: Settings, group: str, isolation: Isolation) -> None:
        self.settings = settings
        self.group = group
        self.names = Names(settings.prefix)
        self.positions: dict[Position, int] = {}
        """Next offset of each partition, transaction markers at its end passed over; known once something came."""
        self._failure: SpanloopError | None = None
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
        """Frees its connections; may be called again."""
        self._consumer.close()
