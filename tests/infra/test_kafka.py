"""Reader and Member on the embedded broker: nothing is skipped silently, and nothing is lost by a failure."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterator
from typing import cast

import pytest
from confluent_kafka import Consumer, KafkaError, KafkaException, TopicPartition

from spanloop.infra.embedded_broker import KEPT_BYTES, EmbeddedBroker
from spanloop.infra.kafka import Member, Message, Reader, wait_for_broker
from spanloop.infra.kafka_config import Names, admin, consumer_config, watermarks
from spanloop.infra.lag import Lag
from spanloop.infra.producer import Producer, producer_config
from spanloop.infra.settings import Settings
from spanloop.schemas.errors import ConfigError, DataLost, Unavailable
from spanloop.schemas.records import Task
from spanloop.schemas.serde import Encoder, local_ids
from spanloop.schemas.topics import TASKS

WAIT_S = 20.0
CLIENTS: dict[str, Callable[[Settings], object]] = {
    "consumer": lambda settings: Member(settings, "g", [TASKS]),
    "producer": lambda settings: Producer(settings, "p", encode=Encoder(local_ids())),
    "lag": lambda settings: Lag(settings, "g", [TASKS]),
    "broker": wait_for_broker,
    "admin": admin,
}
KB = 100_000


@pytest.fixture
def producer(embedded_settings: Settings) -> Iterator[Producer]:
    made = Producer(embedded_settings, "test")
    yield made
    made.close()


def send(producer: Producer, count: int, size: int = 10) -> None:
    text = random.Random(0).randbytes(size // 2).hex()  # what can be compressed would take less room
    for i in range(count):
        producer.send(Task(rollout_id=f"ro-{i}", run_id="run", input=text))
    producer.flush()


def overflow(producer: Producer) -> None:
    """More than the embedded broker keeps of a partition."""
    send(producer, KEPT_BYTES // KB + 30, KB)


def read(client: Reader | Member, count: int) -> list[Message]:
    out: list[Message] = []
    deadline = time.monotonic() + WAIT_S
    while len(out) < count and time.monotonic() < deadline:
        out += client.poll()
    return out


def poll_on(client: Reader | Member, into: list[Message] | None = None) -> None:
    """Polls until it raises, or time is up."""
    found: list[Message] = [] if into is None else into
    deadline = time.monotonic() + WAIT_S
    while time.monotonic() < deadline:
        found += client.poll()


def raised(client: Reader | Member) -> DataLost:
    """The DataLost that polling must end in; a record before it would have been skipped to."""
    deadline = time.monotonic() + WAIT_S
    while time.monotonic() < deadline:
        try:
            assert client.poll() == []
        except DataLost as error:
            return error
    raise AssertionError("records were lost without a word")


def test_a_reader_behind_what_the_embedded_broker_keeps_raises_and_says_what_to_do(
    embedded_settings: Settings, producer: Producer
) -> None:
    send(producer, 10)
    reader = Reader(embedded_settings, "test")
    reader.assign({("tasks", 0): 0})
    assert len(read(reader, 10)) == 10
    overflow(producer)
    reader.assign({("tasks", 0): 5})
    told = str(raised(reader))
    low, high = reader.watermarks(("tasks", 0))
    assert low > 10
    assert "consumer test-reader on tasks[0]: its records were removed before they were read" in told
    assert f"offset 5 was wanted, {low} to {high - 1} are kept" in told
    assert "keeps 5 MiB a partition" in told
    assert "Redpanda" in told
    assert "spanloop up --kafka" in told
    reader.close()


def test_a_reader_that_falls_behind_while_it_reads_raises(embedded_settings: Settings, producer: Producer) -> None:
    send(producer, 10)
    reader = Reader(embedded_settings, "test")
    reader.assign({("tasks", 0): 0})
    assert len(read(reader, 10)) == 10
    reader.pause([("tasks", 0)])
    overflow(producer)
    reader.resume([("tasks", 0)])
    raised(reader)
    reader.close()


def test_lost_data_is_raised_again_until_the_position_is_changed(
    embedded_settings: Settings, producer: Producer
) -> None:
    overflow(producer)
    reader = Reader(embedded_settings, "test")
    reader.assign({("tasks", 0): 0})
    raised(reader)
    with pytest.raises(DataLost):
        reader.poll()
    low, high = reader.watermarks(("tasks", 0))
    reader.seek(("tasks", 0), low)
    assert [m.offset for m in read(reader, high - low)] == list(range(low, high))
    reader.close()


def test_a_member_behind_its_committed_offset_raises_and_commits_nothing(
    embedded_settings: Settings, producer: Producer
) -> None:
    send(producer, 10)
    first = Member(embedded_settings, "test", [TASKS])
    assert len(read(first, 10)) == 10
    first.commit({("tasks", 0): 3})
    first.close()
    overflow(producer)
    second = Member(embedded_settings, "test", [TASKS])
    assert "consumer test on tasks[0]" in str(raised(second))
    assert second.committed() == {("tasks", 0): 3}
    second.close()


def test_an_offset_beyond_the_end_is_lost_data_too(embedded_settings: Settings, producer: Producer) -> None:
    """A checkpoint of an embedded broker that was started anew."""
    send(producer, 2)
    reader = Reader(embedded_settings, "test")
    reader.assign({("tasks", 0): 500})
    assert "offset 500 was wanted, 0 to 1 are kept" in str(raised(reader))
    reader.close()


def test_records_before_a_failure_are_handed_out_first(embedded_settings: Settings, producer: Producer) -> None:
    send(producer, 3)
    reader = Reader(embedded_settings, "test")
    reader.assign({("tasks", 0): 0, ("rewards", 0): 500})
    found: list[Message] = []
    with pytest.raises(DataLost, match=r"rewards\[0\]"):
        poll_on(reader, found)
    reader.assign({("tasks", 0): len(found)})
    found += read(reader, 3 - len(found))
    assert [m.offset for m in found] == [0, 1, 2]
    reader.close()


def test_what_a_callback_raises_comes_out_of_poll(embedded_settings: Settings) -> None:
    def refuse(positions: list[tuple[str, int]]) -> None:
        raise Unavailable(f"cannot take {positions}")

    member = Member(embedded_settings, "test", [TASKS], on_assign=refuse)
    with pytest.raises(Unavailable, match=r"cannot take \[\('tasks', 0\)\]"):
        poll_on(member)
    member.close()


def test_a_poll_waits_for_the_first_record_and_no_longer(embedded_settings: Settings, producer: Producer) -> None:
    send(producer, 5)
    reader = Reader(embedded_settings, "test")
    reader.assign_topics([TASKS])
    begun = time.monotonic()
    assert read(reader, 1)
    assert time.monotonic() - begun < 10
    assert len(reader.poll(2, 0)) <= 2
    reader.close()


def test_a_missing_topic_is_named_with_what_to_do(broker: EmbeddedBroker) -> None:
    settings = Settings(profile="embedded", bootstrap=broker.bootstrap, prefix="nothing")
    member = Member(settings, "test", [TASKS])
    with pytest.raises(Unavailable, match=r"topic tasks\[.*run `spanloop init`"):
        poll_on(member)
    member.close()


def test_a_broker_that_is_away_is_named_with_its_address() -> None:
    settings = Settings(bootstrap="127.0.0.1:1")
    with pytest.raises(Unavailable, match=r"127\.0\.0\.1:1 within 0\.5 s"):
        wait_for_broker(settings, 0.5)
    with pytest.raises(Unavailable, match="SPANLOOP_BOOTSTRAP"):
        wait_for_broker(Settings(), 0.5)


def test_a_reader_goes_on_by_itself_when_the_broker_is_back() -> None:
    with EmbeddedBroker({"p-tasks": 1}) as broker:
        settings = Settings(profile="embedded", bootstrap=broker.bootstrap, prefix="p")
        reader = Reader(settings, "test")
        reader.assign({("tasks", 0): 0})
        assert reader.poll(timeout_s=0.2) == []
        broker.set_down()
        assert reader.poll(timeout_s=0.2) == []
        broker.set_up()
        from confluent_kafka import Producer as KafkaProducer

        client = KafkaProducer(producer_config(settings, "raw"))
        client.produce("p-tasks", b"value", b"key", 0)
        client.flush(WAIT_S)
        assert [m.value for m in read(reader, 1)] == [b"value"]
        reader.close()


class Leaderless:
    """A client that is told so many times that the broker it asks leads the partition no more."""

    def __init__(self, times: int) -> None:
        self.left = times

    def get_watermark_offsets(self, at: TopicPartition, timeout: float) -> tuple[int, int]:
        del at, timeout
        self.left -= 1
        if self.left >= 0:
            raise KafkaException(KafkaError(KafkaError.NOT_LEADER_FOR_PARTITION))
        return 3, 9


def test_offsets_are_asked_for_again_while_a_leader_is_chosen() -> None:
    at = TopicPartition("spans", 0)
    assert watermarks(cast("Consumer", Leaderless(2)), at) == (3, 9)
    with pytest.raises(KafkaException, match="NOT_LEADER"):
        watermarks(cast("Consumer", Leaderless(1000)), at, 0.2)


def test_settings_for_librdkafka_may_tune_but_not_weaken() -> None:
    settings = Settings(
        kafka={"fetch.wait.max.ms": "7", "auto.offset.reset": "latest", "acks": "0", "enable.auto.commit": "true"}
    )
    consumer = consumer_config(settings, "g", isolation="read_committed")
    assert (consumer["fetch.wait.max.ms"], consumer["auto.offset.reset"]) == ("7", "error")
    assert consumer["enable.auto.commit"] is False
    assert producer_config(settings, "p")["acks"] == "all"


@pytest.mark.parametrize("kafka", [{"no.such.setting": "1"}, {"security.protocol": "none"}])
@pytest.mark.parametrize("make", CLIENTS.values(), ids=CLIENTS)
def test_a_setting_that_librdkafka_takes_not_is_named(
    make: Callable[[Settings], object], kafka: dict[str, str]
) -> None:
    settings = Settings(bootstrap="127.0.0.1:1", registry_url="http://127.0.0.1:1", kafka=kafka)
    with pytest.raises(ConfigError, match=f"setting kafka: .*{next(iter(kafka))}.*SPANLOOP_KAFKA"):
        make(settings)


def test_names_with_and_without_the_prefix() -> None:
    names = Names("pool")
    assert (names.full("tasks"), names.short("pool-tasks")) == ("pool-tasks", "tasks")
    assert (names.full("otlp"), names.short("other-tasks")) == ("otlp", "other-tasks")
