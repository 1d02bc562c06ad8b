"""What the conformance suite reads and waits with."""

from __future__ import annotations

from waiting import until

from spanloop.infra.kafka import Isolation, Member, Message, Reader
from spanloop.infra.settings import Settings
from spanloop.schemas.records import SpanBatch, Task
from spanloop.schemas.serde import Decoder
from spanloop.schemas.topics import Topic

WAIT_S = 30.0


def task(number: int) -> Task:
    return Task(rollout_id=f"ro-{number}", run_id="run")


def batch(rollout: str, sequence: int) -> SpanBatch:
    return SpanBatch(rollout_id=rollout, attempt_id="at-1", producer_id="p", first_sequence=sequence)


def read_to_end(settings: Settings, topic: Topic, isolation: Isolation | None = None) -> list[Message]:
    """Everything that lies in a topic now; as a reader sees it that does not say how it reads."""
    reader = Reader(settings, "test") if isolation is None else Reader(settings, "test", isolation=isolation)
    out: list[Message] = []

    def read() -> bool:
        out.extend(reader.poll())
        return reader.reached(ends)

    try:
        reader.assign_topics([topic])
        ends = reader.ends()
        until(read, f"the end of {topic.name}")
    finally:
        reader.close()
    return out


def take(members: list[Member], count: int, into: list[Message]) -> None:
    """Polls members in turn until `count` records came."""

    def enough() -> bool:
        for member in members:
            into.extend(member.poll(timeout_s=0.05))
        return len(into) >= count

    until(enough, f"{count} records")


def sequences(messages: list[Message], decoder: Decoder) -> dict[str, list[int]]:
    """Key -> first sequences in order of arrival."""
    out: dict[str, list[int]] = {}
    for m in messages:
        record = decoder.decode(SpanBatch, m.value or b"")
        out.setdefault(record.rollout_id, []).append(record.first_sequence)
    return out
