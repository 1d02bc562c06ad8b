"""One suite for the embedded twins and a real Kafka with its registry: order, groups, positions.

What the twin lacks is a table beside it (`embedded_broker.LACKS`); those tests run on a real broker only.
"""

from __future__ import annotations

import pytest
from conformance import batch, read_to_end, sequences, take, task
from waiting import until

from spanloop.infra.kafka import OFFSET_END, Member, Message, Reader
from spanloop.infra.producer import Producer
from spanloop.infra.registry import Registry
from spanloop.infra.settings import Settings
from spanloop.schemas.records import Rollout
from spanloop.schemas.serde import Decoder
from spanloop.schemas.topics import ROLLOUTS, SPANS, TASKS, partition_of


@pytest.fixture
def settings(conforming: Settings) -> Settings:
    """Each broker in turn, but for what the embedded one lacks."""
    return conforming


def test_records_of_one_key_are_read_in_the_order_they_were_sent(
    settings: Settings, producer: Producer, lookup: Registry
) -> None:
    keys = [f"ro-{i}" for i in range(7)]
    for sequence in range(50):
        for key in keys:
            producer.send(batch(key, sequence))
    producer.flush()
    found = read_to_end(settings, SPANS)
    assert sequences(found, Decoder(lookup)) == {key: list(range(50)) for key in keys}
    assert {(m.key, m.partition) for m in found} == {(k.encode(), partition_of(k, settings.partitions)) for k in keys}


def test_a_tombstone_is_read_as_a_null_value(settings: Settings, producer: Producer) -> None:
    producer.send(Rollout(rollout_id="ro-1", status="queuing", task=task(1)), partition=0)
    producer.tombstone(ROLLOUTS, "ro-1", partition=0)
    producer.flush()
    first, second = read_to_end(settings, ROLLOUTS)
    assert first.value is not None
    assert (second.key, second.value, second.offset) == (b"ro-1", None, 1)


def test_a_reader_starts_where_it_is_told_and_seeks(settings: Settings, producer: Producer) -> None:
    for i in range(10):
        producer.send(task(i))
    producer.flush()
    reader = Reader(settings, "test")
    reader.assign({("tasks", 0): 7})
    found: list[Message] = []

    def read_to(offset: int) -> None:
        found.clear()
        until(lambda: found.extend(reader.poll()) or reader.reached({("tasks", 0): offset}), f"offset {offset}")

    read_to(10)
    assert [m.offset for m in found] == [7, 8, 9]
    reader.seek(("tasks", 0), 3)
    read_to(10)
    assert [m.offset for m in found] == [3, 4, 5, 6, 7, 8, 9]
    reader.assign_topics([TASKS], OFFSET_END)
    assert reader.positions == {("tasks", 0): 10}
    producer.send_wait(task(10))
    read_to(11)
    assert [m.offset for m in found] == [10]
    reader.close()


def test_a_group_goes_on_from_its_committed_offsets(settings: Settings, producer: Producer) -> None:
    for i in range(10):
        producer.send(task(i))
    producer.flush()
    first = Member(settings, "test", [TASKS])
    found: list[Message] = []
    take([first], 10, found)
    first.commit({("tasks", 0): 6})
    assert first.committed() == {("tasks", 0): 6}
    first.close()
    second = Member(settings, "test", [TASKS])
    again: list[Message] = []
    take([second], 4, again)
    second.close()
    assert [m.offset for m in found] == list(range(10))
    assert [m.offset for m in again] == [6, 7, 8, 9]


def test_a_new_groups_first_offsets_are_committed_before_it_reads(settings: Settings, producer: Producer) -> None:
    producer.send_wait(task(0))
    latest = Member(settings, "late", [TASKS], start="latest")
    until(lambda: latest.poll() == [] and bool(latest.assignment()), "an assignment")
    assert latest.committed() == {("tasks", 0): 1}
    latest.close()  # dies before it has read anything
    producer.send_wait(task(1))
    later = Member(settings, "late", [TASKS], start="latest")
    found: list[Message] = []
    take([later], 1, found)
    later.close()
    assert [m.offset for m in found] == [1]


def test_a_pause_ends_with_the_assignment_it_was_made_under(settings: Settings, producer: Producer) -> None:
    first = Member(settings, "test", [SPANS])
    until(lambda: first.poll() == [] and len(first.assignment()) == settings.partitions, "the whole assignment")
    first.pause(first.assignment())
    second = Member(settings, "test", [SPANS])

    def holds(count: int) -> bool:
        first.poll(timeout_s=0.05)
        second.poll(timeout_s=0.05)
        return len(first.assignment()) == count

    until(lambda: holds(settings.partitions // 2), "a shared assignment")
    second.close()
    until(lambda: first.poll() == [] and len(first.assignment()) == settings.partitions, "the whole assignment again")
    for i in range(16):
        producer.send(batch(f"ro-{i}", 0))
    producer.flush()
    take([first], 16, [])
    first.close()


def test_what_a_member_leaves_behind_is_taken_over_without_gap(
    settings: Settings, producer: Producer, lookup: Registry
) -> None:
    revoked: list[tuple[str, int]] = []
    keys = [f"ro-{i}" for i in range(16)]
    first = Member(settings, "test", [SPANS], on_revoke=revoked.extend)
    found: list[Message] = []
    until(lambda: first.poll() == [] and len(first.assignment()) == settings.partitions, "the whole assignment")
    second = Member(settings, "test", [SPANS])

    def shared() -> bool:
        first.poll(timeout_s=0.05)
        second.poll(timeout_s=0.05)
        return len(first.assignment()) == len(second.assignment()) == settings.partitions // 2

    until(shared, "a shared assignment")
    assert set(revoked) == {("spans", p) for p in range(settings.partitions)}
    assert not set(first.assignment()) & set(second.assignment())
    for key in keys:
        producer.send(batch(key, 0))
    producer.flush()
    take([first, second], len(keys), found)
    for member in (first, second):
        held = member.assignment()
        member.commit({p: o for p, o in member.positions.items() if p in held})
    first.close()
    for key in keys:
        producer.send(batch(key, 1))
    producer.flush()

    def whole() -> bool:
        found.extend(second.poll(timeout_s=0.05))
        return len({(m.partition, m.offset) for m in found}) == 2 * len(keys)

    until(whole, "every record")
    assert len(second.assignment()) == settings.partitions
    second.close()
    # what was read and not committed may be read again; nothing is left out, and the order stands
    assert {k: [*dict.fromkeys(s)] for k, s in sequences(found, Decoder(lookup)).items()} == {k: [0, 1] for k in keys}


def test_a_paused_partition_is_not_read_and_loses_nothing(settings: Settings, producer: Producer) -> None:
    producer.send_wait(task(0))
    reader = Reader(settings, "test")
    reader.assign_topics([TASKS])
    found: list[Message] = []
    until(lambda: found.extend(reader.poll()) or len(found) == 1, "the first record")
    reader.pause([("tasks", 0)])
    producer.send_wait(task(1))
    assert reader.poll(timeout_s=0.5) == []
    reader.resume([("tasks", 0)])
    until(lambda: found.extend(reader.poll()) or len(found) == 2, "the second record")
    reader.close()
    assert [m.offset for m in found] == [0, 1]
