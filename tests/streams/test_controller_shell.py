"""The controller as a service on the embedded broker and on a real Kafka; worker and assembler are played here."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Generator
from contextlib import closing, contextmanager
from dataclasses import replace

import pytest
from confluent_kafka import Consumer, TopicPartition
from confluent_kafka import Producer as KafkaProducer
from in_thread import in_thread

from spanloop.infra.kafka import Reader, consumer_config
from spanloop.infra.producer import Producer, producer_config
from spanloop.infra.registry import Registry, encoder
from spanloop.infra.settings import Settings
from spanloop.schemas.errors import Fenced, Unavailable
from spanloop.schemas.records import Assignment, Attempt, DeadLetter, Limits, Resource, Rollout, SpanBatch, Task, Worker
from spanloop.schemas.serde import Decoder
from spanloop.schemas.topics import ASSIGNMENTS, DEAD_LETTERS, ROLLOUTS, SPANS, TASKS, TOPICS, WORKERS
from spanloop.streams.controller_limits import TASK_MAX_BYTES
from spanloop.streams.controller_shell import ControllerService
from spanloop.streams.controller_term import transactional_id

DEADLINE_S = 60.0


class Peers:
    """Worker and assembler: an assignment is answered by `answer`, an end marker by attempts(ended)."""

    def __init__(self, settings: Settings, answer: Callable[[Assignment], list[Attempt]]) -> None:
        self.settings = settings
        self.producer = Producer(settings, "peers")
        self.registry = Registry(settings.registry_url)
        self.decoder = Decoder(self.registry)
        self.answer = answer
        self.given: list[Assignment] = []
        self.rollouts: dict[str, Rollout] = {}
        self.finals: list[str] = []
        self.dead: list[DeadLetter] = []
        self.ended: set[str] = set()
        self.beaten = 0.0
        self.reader = Reader(settings, "peers")
        self._assign()

    def _assign(self) -> None:
        end = time.monotonic() + DEADLINE_S
        while True:  # a topic just made may have no leader yet
            try:
                return self.reader.assign_topics([ASSIGNMENTS, SPANS, ROLLOUTS, DEAD_LETTERS])
            except Unavailable:
                if time.monotonic() > end:
                    raise
                time.sleep(0.1)

    def until(self, done: Callable[[], bool]) -> None:
        """Plays on until `done`, with a heartbeat a second."""
        end = time.monotonic() + DEADLINE_S
        while not done():
            assert time.monotonic() < end, f"{len(self.given)} given, {len(self.finals)} final: {self.rollouts}"
            if time.monotonic() - self.beaten > 1.0:
                self.beaten = time.monotonic()
                self.producer.send(Worker("wo-1", slots=50, beat_ns=time.time_ns()))
            for message in self.reader.poll(500, 0.02):
                assert message.value is not None
                self.take(self.decoder.decode_topic(TOPICS[message.topic], message.value, message.headers))

    def take(self, record: object) -> None:
        match record:
            case Assignment(action="run"):
                self.given.append(record)
                for event in self.answer(record):
                    self.producer.send(event)
            case SpanBatch(end=end) if end is not None and record.attempt_id not in self.ended:
                self.ended.add(record.attempt_id)
                event = Attempt(record.rollout_id, record.attempt_id, "ended", outcome=end.status, final=end.final)
                self.producer.send(replace(event, error_type=end.error_type, reason=end.reason))
            case Rollout():
                self.rollouts[record.rollout_id] = record
                self.finals += [record.rollout_id] if record.final else []
            case DeadLetter():
                self.dead.append(record)
            case _:
                pass

    def close(self) -> None:
        self.producer.close()
        self.reader.close()
        self.registry.close()


@contextmanager
def running(settings: Settings) -> Generator[ControllerService, None, None]:
    """A controller in a thread; what it raised is raised here."""
    service = ControllerService(settings)
    with in_thread(service, within_s=30):
        yield service


def succeed(order: Assignment) -> list[Attempt]:
    assert order.task is not None
    rollout_id, attempt_id = order.task.rollout_id, order.attempt_id
    return [
        Attempt(rollout_id, attempt_id, "running"),
        Attempt(rollout_id, attempt_id, "ended", outcome="succeeded", final=True),
    ]


def never(order: Assignment) -> list[Attempt]:
    del order
    return []


@contextmanager
def peers(settings: Settings, answer: Callable[[Assignment], list[Attempt]] = succeed) -> Generator[Peers, None, None]:
    made = Peers(settings, answer)
    try:
        yield made
    finally:
        made.close()


def test_a_hundred_rollouts_are_given_out_once_and_end_once(each_settings: Settings) -> None:
    with running(each_settings), peers(each_settings) as world:
        for i in range(100):
            world.producer.send(Task(f"ro-{i}", "run", group_id=f"gr-{i // 4}", sample=i % 4, group_size=4))
        world.until(lambda: len(world.finals) == 100)
        assert len({a.attempt_id for a in world.given}) == 100
        assert {r.status for r in world.rollouts.values()} == {"succeeded"}
        assert len(world.finals) == len(set(world.finals))


def test_an_attempt_without_an_end_is_timed_out_and_tried_again(
    each_settings: Settings, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", "spanloop.streams.controller_term")

    def late_once(order: Assignment) -> list[Attempt]:
        return succeed(order) if order.attempt_number == 2 else succeed(order)[:1]

    limits = Limits(max_attempts=2, timeout_s=0.3, retry_on=["timeout"])
    with running(each_settings), peers(each_settings, late_once) as world:
        world.producer.send(Task("ro-1", "run", limits=limits))
        world.until(lambda: world.finals == ["ro-1"])
        assert [a.attempt_number for a in world.given] == [1, 2]
        assert (world.rollouts["ro-1"].status, world.rollouts["ro-1"].tries) == ("succeeded", 2)
    told = [line for line in caplog.messages if "given out" in line]
    assert [line.split(";")[0] for line in told] == ["is closed as timeout", "waits to be given out again"]


def test_cancelling_in_the_queue_ends_with_an_empty_attempt(each_settings: Settings) -> None:
    with running(each_settings), peers(each_settings, never) as world:
        world.producer.send(Task("ro-1", "run", requirements=["nobody"]))
        world.producer.send(Task("ro-1", "run", action="cancel"))
        world.until(lambda: world.finals == ["ro-1"])
        assert world.rollouts["ro-1"].status == "cancelled"
        assert world.given == []


def test_a_second_controller_goes_on_with_what_the_first_one_left(each_settings: Settings) -> None:
    with peers(each_settings, never) as world:
        with running(each_settings):
            world.producer.send(Resource("prompt", 1, "prompt"))
            world.producer.send(Task("ro-1", "run", pins={"prompt": None}, limits=Limits(timeout_s=1e4)))
            world.until(lambda: len(world.given) == 1)
        with running(each_settings) as second:
            world.producer.send(Task("ro-1", "run"))
            world.producer.send(Task("ro-2", "run", pins={"prompt": 1}))
            world.until(lambda: len(world.given) == 2)
            for event in [e for order in world.given for e in succeed(order)]:
                world.producer.send(event)
            world.until(lambda: len(world.finals) == 2)
            assert second.state is not None
            assert second.state.ignored >= 1
        assert [a.pins for a in world.given] == [{"prompt": 1}] * 2
        assert world.given[1].epoch > world.given[0].epoch


def test_a_second_controller_beside_the_first_gives_nothing_out_twice(each_settings: Settings) -> None:
    with peers(each_settings) as world, running(each_settings):
        for i in range(20):
            world.producer.send(Task(f"ro-{i}", "run"))
        world.until(lambda: len(world.finals) >= 5)
        with running(each_settings):
            for i in range(20, 60):
                world.producer.send(Task(f"ro-{i}", "run"))
            world.until(lambda: len(set(world.finals)) == 60)
        attempts = [a.attempt_id for a in world.given]
        assert len(attempts) == len(set(attempts))


def test_bad_records_are_quarantined_and_what_is_too_large_fails_clearly(each_settings: Settings) -> None:
    with running(each_settings), peers(each_settings) as world:
        world.producer.client.produce(TASKS.full(each_settings.prefix), b"garbage", b"ro-bad")
        world.producer.send(Task("ro-big", "run", input='"' + "x" * TASK_MAX_BYTES + '"'))
        world.producer.send(Task("ro-1", "run"))
        world.until(lambda: len(world.finals) == 2 and len(world.dead) == 1)
        assert (world.dead[0].consumer, world.dead[0].topic, world.dead[0].reason) == (
            "controller",
            "tasks",
            "bad_framing",
        )
        assert world.rollouts["ro-1"].status == "succeeded"
        assert (world.rollouts["ro-big"].status, world.rollouts["ro-big"].error_type) == ("failed", "invalid_task")


def test_what_only_its_own_records_make_too_large_fails_clearly_and_a_large_order_is_obeyed(
    each_settings: Settings,
) -> None:
    with running(each_settings), peers(each_settings, never) as world:
        world.producer.send(Worker("w" * 400_000, slots=50, beat_ns=time.time_ns()))
        world.producer.send(Task("r" * 400_000, "run"))
        world.producer.send(Task("ro-pins", "run", pins={"p" * 600_000: 1}))
        world.producer.send(Task("ro-labels", "run", requirements=["l" * TASK_MAX_BYTES]))
        world.producer.send(Task("ro-1", "run", input='"' + "x" * 700_000 + '"', requirements=["nobody"]))
        world.producer.send(Task("ro-2", "run", requirements=["nobody"]))
        world.producer.send(Task("ro-1", "run", action="cancel", reason="a mistake" + "y" * 500_000))
        world.producer.send(Task("ro-2", "run", action="cancel", reason="y" * TASK_MAX_BYTES))
        world.until(lambda: len(world.finals) == 4 and len(world.dead) == 2)
        assert [letter.reason for letter in world.dead] == ["unsupported"] * 2
        assert {name: world.rollouts[name].status for name in ("ro-pins", "ro-labels", "ro-1", "ro-2")} == {
            "ro-pins": "failed", "ro-labels": "failed", "ro-1": "cancelled", "ro-2": "cancelled",
        }  # fmt: skip
        assert (world.rollouts["ro-1"].reason or "").startswith("a mistakey")


def test_a_foreign_record_that_nothing_can_be_written_about_is_set_aside(each_settings: Settings) -> None:
    encode = encoder(each_settings).encode
    with running(each_settings), peers(each_settings) as world:
        for topic, record in ((TASKS, Task("", "run")), (WORKERS, Worker("", slots=5, beat_ns=time.time_ns()))):
            world.producer.client.produce(topic.full(each_settings.prefix), encode(record), b"foreign", 0)
        world.producer.send(Task("ro-1", "run"))
        world.until(lambda: len(world.finals) == 1 and len(world.dead) == 2)
        assert sorted((d.topic, d.reason) for d in world.dead) == [("tasks", "unsupported"), ("workers", "unsupported")]


@pytest.mark.kafka
def test_a_controller_whose_place_was_taken_stops_and_says_so(kafka_settings: Settings) -> None:
    raised = list[Fenced]()

    def run() -> None:
        try:
            ControllerService(kafka_settings).run(threading.Event())
        except Fenced as error:
            raised.append(error)

    with peers(kafka_settings) as world:
        thread = threading.Thread(target=run)
        thread.start()
        world.producer.send(Task("ro-1", "run"))
        world.until(lambda: world.finals == ["ro-1"])
        usurper = Producer(kafka_settings, "usurper", transactional_id=transactional_id(kafka_settings))
        usurper.client.init_transactions(DEADLINE_S)
        world.producer.send(Task("ro-2", "run"))
        thread.join(DEADLINE_S)
        usurper.close()
    assert not thread.is_alive()
    assert "another controller has taken over" in str(raised[0])
    assert [a.task.rollout_id for a in world.given if a.task] == ["ro-1"]


@pytest.mark.kafka
def test_offsets_that_a_transaction_without_an_end_may_still_change_hold_nobody_up(kafka_settings: Settings) -> None:
    config = producer_config(kafka_settings, "zombie", "zombie") | {"transaction.timeout.ms": 600_000}
    zombie = KafkaProducer(config)
    zombie.init_transactions()
    zombie.begin_transaction()
    with closing(Consumer(consumer_config(kafka_settings, "controller", isolation="read_committed"))) as nobody:
        at = TopicPartition(TASKS.full(kafka_settings.prefix), 0, 0)
        zombie.send_offsets_to_transaction([at], nobody.consumer_group_metadata())
    with running(kafka_settings), peers(kafka_settings) as play:
        play.producer.send(Task("ro-1", "run"))
        play.until(lambda: play.finals == ["ro-1"])
