"""A database with a sink in front of it, and records in the cases' notation."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, cast

from spanloop.consumers.sink import Sink
from spanloop.infra.clickhouse_client import Client
from spanloop.infra.kafka import Message
from spanloop.infra.producer import Producer
from spanloop.infra.quarantine import Quarantine
from spanloop.infra.settings import Settings
from spanloop.schemas.records import DeadLetter, Span, SpanBatch
from spanloop.schemas.serde import LocalSchemas, encode_body, frame, local_ids
from spanloop.schemas.topics import BY_RECORD, Record, key_of

T0_NS = 1_760_000_000_000_000_000


@dataclass
class Letters:
    """Stands for the producer of dead letters."""

    sent: list[DeadLetter] = field(default_factory=list[DeadLetter])

    def send_wait(self, record: DeadLetter) -> None:
        self.sent.append(record)


@dataclass
class Lab:
    """One database with a sink in front of it."""

    settings: Settings
    client: Client
    letters: Letters
    limit: int = 100
    offsets: dict[str, int] = field(default_factory=dict[str, int])

    def sink(self, lookup: Any = None) -> Sink:
        """A fresh sink, as after a restart."""
        quarantine = Quarantine(cast("Producer", self.letters), "sink", self.limit)
        return Sink(self.client, lookup or LocalSchemas(), quarantine)

    def store(self, *records: Record) -> list[Message]:
        """Writes records as one batch, at the next offsets of partition 0."""
        messages = [self.message(record) for record in records]
        self.sink().write(messages)
        return messages

    def message(self, record: Record, offset: int | None = None) -> Message:
        """A record as it lies in its topic, at the next offset or this one."""
        topic = BY_RECORD[type(record)].name
        offset = self.offsets[topic] = self.offsets.get(topic, -1) + 1 if offset is None else offset
        value = frame(local_ids()[topic], encode_body(record))
        return Message(topic, 0, offset, key_of(record).encode(), value)

    def rows(self, sql: str) -> list[tuple[Any, ...]]:
        """Rows of a query."""
        return [tuple(row) for row in self.client.query(sql).result_rows]

    @staticmethod
    def span(span_id: str = "s1", **changes: Any) -> Span:
        """A span in the cases' notation: start and end in ms after T0."""
        times = {f"{k}_ns": T0_NS + changes.pop(k) * 1_000_000 for k in ("start", "end") if k in changes}
        given: dict[str, Any] = {"trace_id": "a" * 32, "span_id": span_id, "name": "step", "start_ns": T0_NS}
        return Span(**(given | times | changes))

    @staticmethod
    def batch(*spans: Span, **changes: Any) -> SpanBatch:
        """Spans of the default attempt."""
        given: dict[str, Any] = {"rollout_id": "ro-1", "attempt_id": "at-1", "producer_id": "p1", "spans": list(spans)}
        return SpanBatch(**(given | changes))

    def one(self, sql: str) -> Any:
        """The one value of a query."""
        ((value,),) = self.rows(sql)
        return value
