"""One suite for the embedded twins and a real Kafka with its registry: what spanloop relies on holds on both.

What the twin lacks is a table beside it (`embedded_broker.LACKS`); those tests run on a real broker only.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from uuid import uuid4

import httpx
import pytest
from confluent_kafka import KafkaException, TopicPartition
from confluent_kafka import Producer as KafkaProducer

from spanloop.infra import admin
from spanloop.infra.embedded_broker import LACKS
from spanloop.infra.kafka import OFFSET_END, Isolation, Member, Message, Reader
from spanloop.infra.producer import Producer, producer_config
from spanloop.infra.registry import NOT_FOUND_TRIES, Registry
from spanloop.infra.settings import Settings
from spanloop.schemas.errors import SchemaMismatch, UnknownSchemaId
from spanloop.schemas.records import Rollout, SpanBatch, Task
from spanloop.schemas.serde import Decoder, schema_json
from spanloop.schemas.topics import ROLLOUTS, SPANS, TASKS, TOPICS, Topic, partition_of

WAIT_S = 30.0


@pytest.fixture
def settings(request: pytest.FixtureRequest, each_settings: Settings) -> Settings:
    """Each broker in turn, but for what the embedded one lacks."""
    lacking = [m.args[0] for m in request.node.iter_markers("needs")]
    if each_settings.profile == "embedded" and lacking:
        pytest.skip(f"the embedded broker has no {lacking[0]}: {LACKS[lacking[0]]}")
    return each_settings


@pytest.fixture
def producer(settings: Settings) -> Iterator[Producer]:
    made = Producer(settings, "test")
    yield made
    made.close()


@pytest.fixture
def lookup(settings: Settings) -> Iterator[Registry]:
    made = Registry(settings.registry_url)
    yield made
    made.close()


def task(number: int) -> Task:
    return Task(rollout_id=f"ro-{number}", run_id="run")


def batch(rollout: str, sequence: int) -> SpanBatch:
    return SpanBatch(rollout_id=rollout, attempt_id="at-1", producer_id="p", first_sequence=sequence)


def wait_for(done: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + WAIT_S
    while not done():
        assert time.monotonic() < deadline, f"{what} did not come within {WAIT_S:g} s"


def read_to_end(settings: Settings, topic: Topic, isolation: Isolation = "read_committed") -> list[Message]:
    """Everything that lies in a topic now."""
    reader = Reader(settings, "test", isolation=isolation)
    out: list[Message] = []

    def read() -> bool:
        out.extend(reader.poll())
        return reader.reached(ends)

    try:
        reader.assign_topics([topic])
        ends = reader.ends()
        wait_for(read, f"the end of {topic.name}")
    finally:
        reader.close()
    return out


def take(members: list[Member], count: int, into: list[Message]) -> None:
    """Polls members in turn until `count` records came."""

    def enough() -> bool:
        for member in members:
            into.extend(member.poll(timeout_s=0.05))
        return len(into) >= count

    wait_for(enough, f"{count} records")


def sequences(messages: list[Message], decoder: Decoder) -> dict[str, list[int]]:
    """Key -> first sequences in order of arrival."""
    out: dict[str, list[int]] = {}
    for m in messages:
        record = decoder.decode(SpanBatch, m.value or b"")
        out.setdefault(record.rollout_id, []).append(record.first_sequence)
    return out


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

    def until(offset: int) -> None:
        found.clear()
        wait_for(lambda: found.extend(reader.poll()) or reader.reached({("tasks", 0): offset}), f"offset {offset}")

    until(10)
    assert [m.offset for m in found] == [7, 8, 9]
    reader.seek(("tasks", 0), 3)
    until(10)
    assert [m.offset for m in found] == [3, 4, 5, 6, 7, 8, 9]
    reader.assign_topics([TASKS], OFFSET_END)
    assert reader.positions == {("tasks", 0): 10}
    producer.send_wait(task(10))
    until(11)
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
    wait_for(lambda: latest.poll() == [] and bool(latest.assignment()), "an assignment")
    assert latest.committed() == {("tasks", 0): 1}
    latest.close()  # dies before it has read anything
    producer.send_wait(task(1))
    later = Member(settings, "late", [TASKS], start="latest")
    found: list[Message] = []
    take([later], 1, found)
    later.close()
    assert [m.offset for m in found] == [1]


def test_what_a_member_leaves_behind_is_taken_over_without_gap(
    settings: Settings, producer: Producer, lookup: Registry
) -> None:
    revoked: list[tuple[str, int]] = []
    keys = [f"ro-{i}" for i in range(16)]
    first = Member(settings, "test", [SPANS], on_revoke=revoked.extend)
    found: list[Message] = []
    wait_for(lambda: first.poll() == [] and len(first.assignment()) == settings.partitions, "the whole assignment")
    second = Member(settings, "test", [SPANS])

    def shared() -> bool:
        first.poll(timeout_s=0.05)
        second.poll(timeout_s=0.05)
        return len(first.assignment()) == len(second.assignment()) == settings.partitions // 2

    wait_for(shared, "a shared assignment")
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

    wait_for(whole, "every record")
    assert len(second.assignment()) == settings.partitions
    second.close()
    # what was read and not committed may be read again; nothing is left out, and the order stands
    assert {k: [*dict.fromkeys(s)] for k, s in sequences(found, Decoder(lookup)).items()} == {k: [0, 1] for k in keys}


def test_a_paused_partition_is_not_read_and_loses_nothing(settings: Settings, producer: Producer) -> None:
    producer.send_wait(task(0))
    reader = Reader(settings, "test")
    reader.assign_topics([TASKS])
    found: list[Message] = []
    wait_for(lambda: found.extend(reader.poll()) or len(found) == 1, "the first record")
    reader.pause([("tasks", 0)])
    producer.send_wait(task(1))
    assert reader.poll(timeout_s=0.5) == []
    reader.resume([("tasks", 0)])
    wait_for(lambda: found.extend(reader.poll()) or len(found) == 2, "the second record")
    reader.close()
    assert [m.offset for m in found] == [0, 1]


# --- transactions


def transactional(settings: Settings, name: str) -> KafkaProducer:
    made = KafkaProducer(producer_config(settings, name, f"{settings.prefix}-{name}"))
    made.init_transactions(WAIT_S)
    return made


def produce(client: KafkaProducer, settings: Settings, *values: bytes) -> None:
    for value in values:
        client.produce(TASKS.full(settings.prefix), value, b"key", 0)


def test_records_of_a_committed_transaction_are_read_to_the_end(settings: Settings) -> None:
    client = transactional(settings, "tx")
    for value in (b"one", b"two"):
        client.begin_transaction()
        produce(client, settings, value)
        client.commit_transaction(WAIT_S)
    # the last offset holds a transaction's marker: the end is reached all the same
    assert [m.value for m in read_to_end(settings, TASKS)] == [b"one", b"two"]


@pytest.mark.needs("isolation")
def test_open_and_aborted_transactions_are_not_read(settings: Settings) -> None:
    client = transactional(settings, "tx")
    client.begin_transaction()
    produce(client, settings, b"aborted")
    client.flush()
    client.abort_transaction(WAIT_S)
    client.begin_transaction()
    produce(client, settings, b"committed")
    client.commit_transaction(WAIT_S)
    client.begin_transaction()
    produce(client, settings, b"open")
    client.flush()
    assert [m.value for m in read_to_end(settings, TASKS)] == [b"committed"]
    every = read_to_end(settings, TASKS, "read_uncommitted")
    assert [m.value for m in every] == [b"aborted", b"committed", b"open"]
    client.commit_transaction(WAIT_S)
    assert [m.value for m in read_to_end(settings, TASKS)] == [b"committed", b"open"]


@pytest.mark.needs("transaction_offsets")
def test_offsets_in_a_transaction_are_committed_with_its_records(settings: Settings, producer: Producer) -> None:
    producer.send_wait(task(0))
    member = Member(settings, "test", [TASKS])
    take([member], 1, [])
    client = transactional(settings, "tx")
    where = [TopicPartition(TASKS.full(settings.prefix), 0, 1)]

    def transact() -> None:
        client.begin_transaction()
        client.produce(ROLLOUTS.full(settings.prefix), b"out", b"key", 0)
        client.send_offsets_to_transaction(where, member.raw().consumer_group_metadata(), WAIT_S)

    transact()
    client.abort_transaction(WAIT_S)
    assert member.committed() == {("tasks", 0): 0}
    transact()
    client.commit_transaction(WAIT_S)
    assert member.committed() == {("tasks", 0): 1}
    assert len(read_to_end(settings, ROLLOUTS)) == 1
    member.close()


@pytest.mark.needs("fencing")
def test_an_older_producer_of_one_transactional_id_is_fenced(settings: Settings) -> None:
    older = transactional(settings, "tx")
    older.begin_transaction()
    produce(older, settings, b"zombie")
    transactional(settings, "tx")
    with pytest.raises(KafkaException, match=r"(?i)fenced|epoch"):
        older.commit_transaction(WAIT_S)
    assert read_to_end(settings, TASKS) == []


# --- the log


@pytest.mark.needs("size_limit")
def test_the_broker_refuses_what_is_over_its_topics_limit_and_takes_the_largest(settings: Settings) -> None:
    client = KafkaProducer({**producer_config(settings, "raw"), "compression.type": "none"})
    told: dict[str, str] = {}

    def send(topic: Topic, size: int) -> None:
        client.produce(
            topic.full(settings.prefix),
            b"x" * size,
            b"key",
            0,
            on_delivery=lambda error, _: told.update({f"{topic.name} {size}": error.name() if error else "taken"}),
        )

    for topic in TOPICS.values():
        send(topic, topic.max_bytes - 512 - len("key"))
    send(TASKS, TASKS.max_bytes)
    client.flush(WAIT_S)
    refused = f"tasks {TASKS.max_bytes}"
    assert told.pop(refused) == "MSG_SIZE_TOO_LARGE"
    assert set(told.values()) == {"taken"}
    assert len(told) == len(TOPICS)


@pytest.mark.needs("compaction")
@pytest.mark.slow
def test_a_compacted_topic_keeps_the_last_value_of_a_key(settings: Settings) -> None:
    from confluent_kafka.cimpl import NewTopic

    from spanloop.infra.kafka import admin as admin_client

    name = f"{settings.prefix}-compacted"
    config = {
        "cleanup.policy": "compact",
        "segment.ms": "100",
        "min.cleanable.dirty.ratio": "0.01",
        "max.compaction.lag.ms": "200",
    }
    client = admin_client(settings)
    for made in client.create_topics([NewTopic(name, num_partitions=1, replication_factor=1, config=config)]).values():  # pyright: ignore[reportUnknownMemberType, reportUnknownVariableType]  # its stub leaves the future's type open
        made.result()  # pyright: ignore[reportUnknownMemberType]
    raw = KafkaProducer(producer_config(settings, "raw"))
    for i in range(20):
        raw.produce(name, b"old %d" % i, b"key", 0)
    raw.produce(name, b"last", b"key", 0)
    raw.flush(WAIT_S)

    def left() -> list[bytes | None]:
        raw.produce(name, b"roll", uuid4().bytes, 0)  # a new segment lets the one before be cleaned
        raw.flush(WAIT_S)
        reader = Reader(settings, "test")
        found: list[Message] = []
        try:
            reader.assign({(name, 0): 0})
            ends = reader.ends()
            wait_for(lambda: found.extend(reader.poll()) or reader.reached(ends), "the end")
        finally:
            reader.close()
        return [m.value for m in found if m.key == b"key"]

    wait_for(lambda: left() == [b"last"], "compaction")


@pytest.mark.needs("create_topics")
def test_init_creates_every_topic_with_its_limits_and_may_be_run_again(settings: Settings) -> None:
    from confluent_kafka.admin._config import ConfigResource
    from confluent_kafka.admin._resource import ResourceType

    from spanloop.infra.kafka import admin as admin_client

    assert admin.init(settings) == admin.init(settings)
    assert admin.counts(settings) == {t.name: settings.partitions if t.spread else 1 for t in TOPICS.values()}
    client = admin_client(settings)
    asked = {t.name: ConfigResource(ResourceType.TOPIC, t.full(settings.prefix)) for t in TOPICS.values()}
    answers = client.describe_configs(list(asked.values()))  # pyright: ignore[reportUnknownMemberType, reportUnknownVariableType]  # its stub leaves the future's type open
    for name, resource in asked.items():
        topic, found = TOPICS[name], answers[resource].result(WAIT_S)  # pyright: ignore[reportUnknownMemberType, reportUnknownVariableType]
        have = {key: found[key].value for key in ("cleanup.policy", "retention.ms", "max.message.bytes")}  # pyright: ignore[reportUnknownMemberType, reportUnknownVariableType]
        assert have == {
            "cleanup.policy": topic.cleanup,
            "retention.ms": str(topic.retention_ms),
            "max.message.bytes": str(topic.max_bytes),
        }


# --- the registry


def test_a_schema_keeps_its_id_and_is_found_by_it(settings: Settings, lookup: Registry) -> None:
    ids = admin.register(settings)
    for name, schema_id in ids.items():
        assert json.loads(lookup.schema(schema_id)) == json.loads(schema_json(TOPICS[name].record))
    assert admin.register(settings) == ids
    assert {t.subject(settings.prefix) for t in TOPICS.values()} <= set(lookup.subjects())


def test_a_field_without_a_default_is_refused_and_one_with_a_default_is_taken(
    settings: Settings, lookup: Registry
) -> None:
    subject = TASKS.subject(settings.prefix)
    own = json.loads(schema_json(TASKS.record))
    without = {**own, "fields": [*own["fields"], {"name": "later", "type": "string"}]}
    with pytest.raises(SchemaMismatch, match=subject):
        lookup.register(subject, json.dumps(without))
    with_default = {**own, "fields": [*own["fields"], {"name": "later", "type": "string", "default": ""}]}
    assert lookup.register(subject, json.dumps(with_default)) != lookup.register(subject, json.dumps(own))


def test_an_id_that_was_never_given_out_is_unknown_after_bounded_tries(lookup: Registry) -> None:
    begun = time.monotonic()
    with pytest.raises(UnknownSchemaId):
        lookup.schema(2_000_000)
    assert time.monotonic() - begun >= 0.2 * (NOT_FOUND_TRIES - 1)


def test_a_schema_is_found_by_its_guid(settings: Settings, lookup: Registry) -> None:
    if settings.profile != "embedded":
        pytest.skip("Apicurio 3.0 has no GUIDs; Confluent's registry has them since 8.0")
    guid = httpx.get(f"{settings.registry_url}/subjects/{TASKS.subject(settings.prefix)}/versions/1").json()["guid"]
    assert json.loads(lookup.schema(guid)) == json.loads(schema_json(TASKS.record))
