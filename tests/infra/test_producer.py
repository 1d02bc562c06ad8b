from __future__ import annotations

import asyncio
import os
import random
import threading
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from uuid import uuid4

import pytest

from spanloop.infra.embedded_broker import EmbeddedBroker
from spanloop.infra.kafka import Reader
from spanloop.infra.producer import OVERHEAD_BYTES, Ack, Producer
from spanloop.infra.settings import Settings
from spanloop.schemas.errors import BackPressure, ConfigError, DeliveryFailed, MissingKey, RecordTooLarge
from spanloop.schemas.records import Assignment, Span, SpanBatch, Task
from spanloop.schemas.serde import Decoder, Encoder, LocalSchemas, local_ids
from spanloop.schemas.topics import ROLLOUTS, TASKS, TOPICS, partition_of

WAIT_S = 20.0
ENCODE = Encoder(local_ids())


@pytest.fixture
def own_broker() -> Iterator[EmbeddedBroker]:
    """A broker of this test's own, which it may take down."""
    with EmbeddedBroker({topic.full("p"): 4 if topic.spread else 1 for topic in TOPICS.values()}) as running:
        yield running


@pytest.fixture
def settings(own_broker: EmbeddedBroker, tmp_path: Path) -> Settings:
    return Settings(profile="embedded", bootstrap=own_broker.bootstrap, prefix="p", home=tmp_path, max_block_s=5.0)


@pytest.fixture
def producer(settings: Settings) -> Iterator[Producer]:
    made = Producer(settings, "test", encode=ENCODE)
    yield made
    made.close()


def task(number: int = 0, *, input: str = "null") -> Task:
    return Task(rollout_id=f"ro-{number}", run_id="run", input=input)


def read(settings: Settings, topic: str, count: int) -> list[tuple[int, int, bytes | None, bytes | None]]:
    """(partition, offset, key, value) of the first `count` records."""
    reader = Reader(settings, "test")
    try:
        reader.assign_topics([TOPICS[topic]])
        out: list[tuple[int, int, bytes | None, bytes | None]] = []
        deadline = time.monotonic() + WAIT_S
        while len(out) < count and time.monotonic() < deadline:
            out += [(m.partition, m.offset, m.key, m.value) for m in reader.poll()]
        return out
    finally:
        reader.close()


def test_a_record_is_acknowledged_where_it_lies_and_read_back_equal(settings: Settings, producer: Producer) -> None:
    assert producer.send_wait(task(1)) == Ack(0, 0)
    assert asyncio.run(producer.send_async(task(2))) == Ack(0, 1)
    found = read(settings, "tasks", 2)
    decoder = Decoder(LocalSchemas())
    assert [decoder.decode_topic(TASKS, value or b"") for *_, value in found] == [task(1), task(2)]
    assert [key for _, _, key, _ in found] == [b"ro-1", b"ro-2"]
    assert producer.delivered == 2


def test_a_record_without_its_key_is_refused_naming_the_topic(producer: Producer) -> None:
    with pytest.raises(MissingKey, match="topic 'tasks' needs a key"):
        producer.send(Task(rollout_id="", run_id="run"))
    with pytest.raises(MissingKey, match="topic 'assignments' needs a key"):
        producer.send(Assignment(worker_id="", attempt_id="at-1"))
    with pytest.raises(MissingKey, match="topic 'rollouts' needs a key"):
        producer.tombstone(ROLLOUTS, "")
    assert producer.queued() == 0


def test_a_record_over_its_topics_limit_is_refused_and_one_at_it_is_sent(
    settings: Settings, producer: Producer
) -> None:
    bare = len(ENCODE.encode(task())) + len("ro-0") + OVERHEAD_BYTES
    fits = TASKS.max_bytes - bare - 8  # what a longer string's length takes
    ack = producer.send_wait(task(input="x" * fits))
    with pytest.raises(RecordTooLarge, match=f"topic 'tasks', which takes {TASKS.max_bytes}; split or off-load"):
        producer.send(task(input="x" * (fits + 16)))
    assert len(read(settings, "tasks", 1)) == 1
    assert ack.offset == 0
    assert producer.queued() == 0


def test_a_span_batch_may_be_sixteen_times_larger(settings: Settings, producer: Producer) -> None:
    span = Span(trace_id="0" * 32, span_id="1" * 16, name="big", start_ns=0, attributes="x" * (15 << 20))
    batch = SpanBatch(rollout_id="ro-1", attempt_id="at-1", producer_id="p", spans=[span])
    assert producer.send_wait(batch).offset == 0
    (found,) = read(settings, "spans", 1)
    assert len(found[3] or b"") > 15 << 20


def test_a_tombstone_is_a_null_value_under_its_key(settings: Settings, producer: Producer) -> None:
    producer.tombstone(ROLLOUTS, "ro-1", partition=2)
    producer.flush()
    assert read(settings, "rollouts", 1) == [(2, 0, b"ro-1", None)]


def test_a_full_queue_blocks_for_the_limit_and_then_raises(own_broker: EmbeddedBroker, settings: Settings) -> None:
    own_broker.set_down()
    producer = Producer(settings.with_(queue_records=10, max_block_s=0.2), "test", encode=ENCODE)
    for i in range(10):
        producer.send(task(i))
    begun = time.monotonic()
    with pytest.raises(BackPressure, match="queue of 10 records stayed full"):
        producer.send(task(10))
    assert time.monotonic() - begun >= 0.2
    own_broker.set_up()
    producer.close()
    assert producer.delivered == 10


def test_a_thousand_spans_sent_while_the_broker_is_away_arrive_once_each(
    own_broker: EmbeddedBroker, settings: Settings
) -> None:
    """PS-8: queue limit 10, broker down, 1,000 spans from an agent's thread, up again after 2 s."""
    producer = Producer(settings.with_(queue_records=10), "test", encode=ENCODE)
    own_broker.set_down()
    timer = threading.Timer(2.0, own_broker.set_up)
    timer.start()
    dropped, longest = 0, 0.0
    for i in range(1000):
        span = Span(trace_id="0" * 32, span_id=f"{i:016x}", name="s", start_ns=0)
        begun = time.monotonic()
        try:
            producer.send(
                SpanBatch(rollout_id="ro-1", attempt_id="at-1", producer_id="p", first_sequence=i, spans=[span])
            )
        except BackPressure:
            dropped += 1
        longest = max(longest, time.monotonic() - begun)
    timer.join()
    producer.close()
    found = read(settings, "spans", 1000 - dropped)
    decoder = Decoder(LocalSchemas())
    batches = [decoder.decode(SpanBatch, value or b"") for *_, value in found]
    arrived = Counter(s.span_id for b in batches for s in b.spans)
    assert len(arrived) == 1000 - dropped
    assert set(arrived.values()) == {1}
    assert (producer.delivered, producer.failed) == (1000 - dropped, 0)
    assert dropped == 0 or longest >= settings.max_block_s


def test_a_delivery_that_fails_is_raised_by_flush_unless_someone_was_told(settings: Settings) -> None:
    fast = settings.with_(bootstrap="127.0.0.1:1", kafka={"delivery.timeout.ms": "300"})
    told: list[DeliveryFailed | None] = []
    producer = Producer(fast, "test", encode=ENCODE)
    producer.send(task(1), on_delivery=lambda failure, _: told.append(failure))
    producer.flush()
    assert isinstance(told[0], DeliveryFailed)
    with pytest.raises(DeliveryFailed, match=r"topic 'tasks' on 127\.0\.0\.1:1"):
        producer.send_wait(task(2))
    producer.send(task(3))
    with pytest.raises(DeliveryFailed, match=r"topic 'tasks' on 127\.0\.0\.1:1"):
        producer.flush()
    producer.flush()  # it was told once
    assert (producer.delivered, producer.failed) == (0, 3)
    producer.close()


def test_no_acknowledgement_in_time_is_told_and_close_fails_what_is_left(
    own_broker: EmbeddedBroker, settings: Settings
) -> None:
    own_broker.set_down()
    producer = Producer(settings, "test", encode=ENCODE)
    told: list[DeliveryFailed | None] = []
    producer.send(task(1), on_delivery=lambda failure, _: told.append(failure))
    with pytest.raises(DeliveryFailed, match="no acknowledgement of a Task within"):
        producer.send_wait(task(2), timeout_s=0.1)
    with pytest.raises(DeliveryFailed, match="2 records were not acknowledged"):
        producer.close(0.1)
    assert isinstance(told[0], DeliveryFailed)
    assert producer.queued() == 0


def test_a_closed_producer_refuses_records_and_may_be_closed_again(producer: Producer) -> None:
    producer.close()
    with pytest.raises(DeliveryFailed, match="closed"):
        producer.send(task())
    producer.close()


def test_a_callback_that_raises_stops_no_other_delivery(producer: Producer, caplog: pytest.LogCaptureFixture) -> None:
    def broken(failure: DeliveryFailed | None, ack: Ack | None) -> None:
        raise RuntimeError(f"a bug of the caller's: {failure} {ack}")

    producer.send(task(1), on_delivery=broken)
    assert producer.send_wait(task(2)).offset == 1
    assert producer.send_wait(task(3)).offset == 2
    assert "a delivery callback for topic tasks failed" in caplog.text


def test_a_caller_that_gives_up_waiting_leaves_the_producer_whole(
    own_broker: EmbeddedBroker, settings: Settings
) -> None:
    producer = Producer(settings, "test", encode=ENCODE)

    async def give_up() -> None:
        own_broker.set_down()
        with pytest.raises(asyncio.TimeoutError):
            await asyncio.wait_for(producer.send_async(task(1)), 0.1)
        own_broker.set_up()

    asyncio.run(give_up())
    assert producer.send_wait(task(2)).offset == 1
    producer.close()


def test_threads_may_share_a_producer_and_no_delivery_goes_uncounted(settings: Settings, producer: Producer) -> None:
    def work(worker: int) -> None:
        for i in range(200):
            producer.send(task(worker * 1000 + i))
            if i % 50 == 0:
                producer.flush()

    threads = [threading.Thread(target=work, args=(w,)) for w in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    producer.flush()
    assert producer.delivered == 800
    assert len({key for _, _, key, _ in read(settings, "tasks", 800)}) == 800


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork on this platform")
@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_forked_child_is_told_to_make_its_own(producer: Producer) -> None:
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            producer.send(task())
        except ConfigError as error:
            os.write(writing, str(error).encode())
        os._exit(0)
    os.waitpid(child, 0)
    os.close(writing)
    told = os.read(reading, 4096).decode()
    os.close(reading)
    assert "make a Producer after the fork" in told
    assert producer.send_wait(task()).offset == 0


def test_partition_of_is_the_partition_librdkafka_chooses(producer: Producer) -> None:
    rng = random.Random(0)
    keys = [uuid4().hex for _ in range(50)] + [
        "".join(chr(rng.randint(1, 0x10FFF) if rng.random() < 0.5 else rng.randint(1, 127)) for _ in range(n))
        for n in range(1, 101)
    ]
    keys = [k.encode("utf-8", "replace").decode() for k in keys]
    chosen: dict[str, int] = {}

    def note(key: str, ack: Ack | None) -> None:
        assert ack is not None
        chosen[key] = ack.partition

    for key in keys:
        batch = SpanBatch(rollout_id=key, attempt_id="at-1", producer_id="p")
        producer.send(batch, on_delivery=lambda _, ack, key=key: note(key, ack))
    producer.flush()
    assert chosen == {key: partition_of(key, 4) for key in keys}
    assert set(chosen.values()) == {0, 1, 2, 3}


def test_what_a_record_is_keyed_by_decides_its_partition_unless_one_is_given(producer: Producer) -> None:
    batch = SpanBatch(rollout_id="ro-1", attempt_id="at-1", producer_id="p")
    assert producer.send_wait(batch).partition == partition_of("ro-1", 4)
    for partition in range(4):
        assert producer.send_wait(batch, partition=partition).partition == partition
