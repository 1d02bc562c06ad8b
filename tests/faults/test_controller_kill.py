"""A controller killed in mid-work: nothing is lost, nothing is given out twice, each rollout ends once."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Generator
from contextlib import contextmanager
from functools import partial
from typing import Any, cast

import pytest
from confluent_kafka import ConsumerGroupState
from confluent_kafka.admin import AdminClient

from spanloop.infra.kafka import Reader
from spanloop.infra.kafka_config import admin
from spanloop.infra.producer import Producer
from spanloop.infra.registry import Registry
from spanloop.infra.settings import Settings
from spanloop.schemas.errors import Unavailable
from spanloop.schemas.records import Assignment, Attempt, Limits, Rollout, SpanBatch, Task, Worker
from spanloop.schemas.serde import Decoder
from spanloop.schemas.topics import ASSIGNMENTS, ROLLOUTS, SPANS, TOPICS
from spanloop.streams.controller_shell import GROUP

ROLLOUTS_ASKED = 500
# For the take-over, beside the session of the one that is stopped: what is held must not time out before.
HELD_S = 24.0
# What a controller may take to hear of a begin, from which on it counts the time.
HEARD_S = 1.0
SLOTS = 20
DEADLINE_S = 180.0


class Peers:
    """A worker of SLOTS slots and an assembler. What is given out is begun at once and ended a little later."""

    def __init__(self, settings: Settings) -> None:
        self.producer = Producer(settings, "peers")
        self.registry = Registry(settings.registry_url)
        self.decoder = Decoder(self.registry)
        self.held: set[str] = set()  # rollouts that do not end yet
        self.running: dict[str, tuple[str, float]] = {}  # attempt -> (rollout, when it ends)
        self.most = 0
        self.begun: list[str] = []  # rollout ids, once for each begin
        self.finals: Counter[str] = Counter()
        self.epochs: list[int] = []
        self.markers: list[SpanBatch] = []
        self.seen = -1
        self.beaten = 0.0
        self.reader = Reader(settings, "peers")
        _assign(self.reader)

    def until(self, done: Callable[[], bool]) -> None:
        end = time.monotonic() + DEADLINE_S
        while not done():
            assert time.monotonic() < end, f"{len(self.begun)} begun, {len(self.finals)} final, {self.running}"
            for message in self.reader.poll(500, 0.02):
                assert message.value is not None
                record = self.decoder.decode_topic(TOPICS[message.topic], message.value, message.headers)
                if isinstance(record, Assignment):
                    self.seen = message.offset
                self.take(record)
            self.work()

    def take(self, record: object) -> None:
        match record:
            case Assignment(action="run", task=Task() as task):
                self.begun.append(task.rollout_id)
                self.epochs.append(record.epoch)
                self.running[record.attempt_id] = (task.rollout_id, time.monotonic() + 0.05)
                self.most = max(self.most, len(self.running))
                self.producer.send(Attempt(task.rollout_id, record.attempt_id, "running"))
            case SpanBatch():
                self.markers.append(record)
            case Rollout(final=True):
                self.finals[record.rollout_id] += 1
            case _:
                pass

    def work(self) -> None:
        now = time.monotonic()
        for attempt_id in [a for a, (r, due) in self.running.items() if due <= now and r not in self.held]:
            rollout_id, _ = self.running.pop(attempt_id)
            self.producer.send(Attempt(rollout_id, attempt_id, "ended", outcome="succeeded", final=True))
        if now - self.beaten > 0.5:
            self.beaten = now
            beat = Worker("wo-1", slots=SLOTS, running=list(self.running), last_assignment_offset=self.seen)
            self.producer.send(beat)

    def close(self) -> None:
        self.producer.close()
        self.reader.close()
        self.registry.close()


def _assign(reader: Reader) -> None:
    end = time.monotonic() + DEADLINE_S
    while True:  # a topic just made may have no leader yet
        try:
            return reader.assign_topics([ASSIGNMENTS, SPANS, ROLLOUTS])
        except Unavailable:
            if time.monotonic() > end:
                raise
            time.sleep(0.1)


@contextmanager
def controller(settings: Settings) -> Generator[subprocess.Popen[bytes], None, None]:
    process = subprocess.Popen(
        [sys.executable, "-m", "spanloop.streams.controller_shell"], env={**os.environ, **settings.environment()}
    )
    try:
        yield process
    finally:
        process.kill()
        process.wait()


@contextmanager
def controller_beside(settings: Settings, world: Peers) -> Generator[subprocess.Popen[bytes], None, None]:
    """A second controller, once the first has given something out and both are members of the group."""
    world.producer.send(Task("ro-first", "run"))
    world.until(lambda: world.finals["ro-first"] == 1)
    with controller(settings) as process:
        client, group = admin(settings), f"{settings.prefix}-{GROUP}"
        world.until(lambda: _members(client, group) == 2)
        yield process


def stop_the_one_in_office(world: Peers, *processes: subprocess.Popen[bytes]) -> subprocess.Popen[bytes]:
    """Stops a controller without ending it, and returns once the other has given something out in its place."""
    for n, process in enumerate(processes):
        before = world.epochs[-1]
        process.send_signal(signal.SIGSTOP)
        world.producer.send(Task(f"ro-probe-{n}", "run"))
        world.until(partial(world.finals.__contains__, f"ro-probe-{n}"))
        if world.epochs[-1] > before:
            return process
        process.send_signal(signal.SIGCONT)  # it was the one that stands by
    raise AssertionError(f"no controller took over from the other: {world.epochs}")


def _members(client: AdminClient, group: str) -> int:
    asked = cast("dict[str, Any]", client.describe_consumer_groups([group]))  # pyright: ignore[reportUnknownMemberType]  # futures without a type
    found = asked[group].result(30)
    return len(found.members) if found.state == ConsumerGroupState.STABLE else 0


@pytest.mark.kafka
@pytest.mark.slow
def test_killing_the_controller_loses_nothing_and_gives_nothing_out_twice(kafka_settings: Settings) -> None:
    world = Peers(kafka_settings)
    try:
        with controller(kafka_settings) as first:
            for i in range(ROLLOUTS_ASKED):
                world.producer.send(Task(f"ro-{i}", "run"))
            world.until(lambda: len(world.begun) >= ROLLOUTS_ASKED // 5)
            first.kill()
        with controller(kafka_settings) as second:
            world.until(lambda: len(world.begun) >= ROLLOUTS_ASKED // 2)
            second.kill()
        with controller(kafka_settings):
            world.until(lambda: len(world.finals) == ROLLOUTS_ASKED)
    finally:
        world.close()
    assert Counter(world.begun) == Counter(f"ro-{i}" for i in range(ROLLOUTS_ASKED))
    assert set(world.finals.values()) == {1}
    assert world.markers == []
    assert world.most <= SLOTS
    assert len(set(world.epochs)) == 3
    assert world.epochs == sorted(world.epochs)


@pytest.mark.kafka
@pytest.mark.slow
def test_a_standby_takes_over_from_a_stopped_controller_which_does_no_harm_when_it_wakes(
    kafka_settings: Settings,
) -> None:
    world = Peers(kafka_settings)
    held = Task("ro-held", "run", limits=Limits(timeout_s=kafka_settings.session_timeout_s + HELD_S))
    try:
        with controller(kafka_settings) as first, controller_beside(kafka_settings, world) as second:
            world.held.add(held.rollout_id)
            world.producer.send(held)
            world.until(lambda: held.rollout_id in world.begun)
            due_s = time.monotonic() + held.limits.timeout_s + HEARD_S
            at_work = stop_the_one_in_office(world, first, second)
            # It ends under the new controller; only the old one, which does not know that, would close it as timed out.
            world.held.clear()
            world.until(lambda: world.finals["ro-held"] == 1)
            world.until(lambda: time.monotonic() >= due_s)
            at_work.send_signal(signal.SIGCONT)
            for i in range(50):
                world.producer.send(Task(f"ro-late-{i}", "run"))
            world.until(lambda: {f"ro-late-{i}" for i in range(50)} <= world.finals.keys())
    finally:
        world.close()
    assert Counter(world.begun) == Counter(world.finals.keys())
    assert set(world.finals.values()) == {1}
    assert world.markers == []
    assert world.epochs == sorted(world.epochs)
