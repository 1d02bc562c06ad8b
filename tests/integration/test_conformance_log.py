"""One suite for the embedded twins and a real Kafka with its registry: transactions, limits, compaction.

What the twin lacks is a table beside it (`embedded_broker.LACKS`); those tests run on a real broker only.
"""

from __future__ import annotations

from uuid import uuid4

import pytest
from confluent_kafka import KafkaException, TopicPartition
from confluent_kafka import Producer as KafkaProducer
from conformance import WAIT_S, read_to_end, take, task
from waiting import until

from spanloop.infra import admin
from spanloop.infra.kafka import Member, Message, Reader
from spanloop.infra.producer import Producer, producer_config
from spanloop.infra.settings import Settings
from spanloop.schemas.topics import ROLLOUTS, TASKS, TOPICS, Topic


@pytest.fixture
def settings(conforming: Settings) -> Settings:
    """Each broker in turn, but for what the embedded one lacks."""
    return conforming


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
    member, taken = Member(settings, "test", [TASKS]), list[Message]()
    take([member], 2, taken)
    assert [m.value for m in taken] == [b"committed", b"open"]
    member.close()


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
            until(lambda: found.extend(reader.poll()) or reader.reached(ends), "the end")
        finally:
            reader.close()
        return [m.value for m in found if m.key == b"key"]

    until(lambda: left() == [b"last"], "compaction")


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
        wanted = ("cleanup.policy", "retention.ms", "max.message.bytes", "message.timestamp.type")
        have = {key: found[key].value for key in wanted}  # pyright: ignore[reportUnknownMemberType, reportUnknownVariableType]
        assert have == {
            "cleanup.policy": topic.cleanup,
            "retention.ms": str(topic.retention_ms),
            "max.message.bytes": str(topic.max_bytes),
            "message.timestamp.type": "LogAppendTime" if topic.broker_time else "CreateTime",
        }
