"""Workers whose agents, processes, clocks or brokers misbehave."""

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import slot_agents
from fake_controller import Controller, running
from waiting import GONE_WITHIN_S, gone, until

from spanloop.infra.clock import NS_PER_S, SystemClock
from spanloop.infra.embedded_broker import EmbeddedBroker
from spanloop.producers import rollout
from spanloop.producers.worker import WorkerPolicy, WorkerService
from spanloop.schemas.errors import ConfigError, DeliveryFailed
from spanloop.schemas.records import Limits, SpanBatch, Task, Worker

INIT_PRODUCER_ID, CLUSTER_AUTHORIZATION_FAILED = 22, 31  # of Kafka's protocol
AGENT = f"{Path(slot_agents.__file__)}:agent"


@contextmanager
def worker_process(controller: Controller, *options: str) -> Generator[tuple[subprocess.Popen[bytes], str]]:
    """A worker as a process of its own; yields it and its worker id."""
    command = [sys.executable, "-m", "spanloop.producers.worker", AGENT, *options]
    child = subprocess.Popen(command, env={**os.environ, **controller.settings.environment()})
    try:
        until(lambda: controller.all(Worker))
        yield child, controller.all(Worker)[0].worker_id
    finally:
        child.kill()
        child.wait()


def said(controller: Controller, n: int) -> list[tuple[int, Any]]:
    """(timestamp in ms, span) of what the agent of attempt n said."""
    controller.read()
    return [
        (ms, s)
        for ms, r in controller.records
        if isinstance(r, SpanBatch) and r.attempt_id == f"at-{n}"
        for s in r.spans
        if s.name == "spanloop.message"
    ]


def test_an_agent_that_holds_the_interpreter_delays_neither_its_spans_nor_heartbeats(controller: Controller) -> None:
    with running(controller.settings, AGENT, isolation="process") as worker:  # PS-11
        controller.ready()
        controller.give(worker, 1, "hold 600", limits=Limits(timeout_s=600.0))
        until(lambda: said(controller, 1))
        beats = len(controller.all(Worker))
        until(lambda: len(controller.all(Worker)) >= beats + 2)
        assert not [b for b in controller.all(SpanBatch) if b.end]


def test_a_worker_outlives_its_agents_and_says_goodbye_in_time(controller: Controller) -> None:
    with running(controller.settings, AGENT, isolation="process", slots=2) as worker:
        controller.ready()
        controller.give(worker, 1, "exit 3")
        controller.give(worker, 2, "sleep")
        end = controller.end(1)
        assert (end.status, end.failure_class) == ("failed", "infra")
        assert end.reason == "the agent's process exited with status 3 in the middle of the attempt"
        controller.give(worker, 3)
        assert controller.end(3).status == "succeeded"
        controller.beat(lambda w: w.running == ["at-2"])
        started = time.monotonic()
    took_s = time.monotonic() - started
    assert controller.end(2).status == "returned"
    controller.beat(lambda w: not w.alive)
    assert took_s < GONE_WITHIN_S


def test_an_agent_that_takes_longer_than_the_broker_lets_a_consumer_be_silent_is_run_once(
    controller: Controller,
) -> None:  # BR-7: more than one second of work where one without polling is allowed, for 400 s and 300 s
    ran: list[Any] = []
    go_on = threading.Event()

    def agent(task: object) -> None:
        ran.append(task)
        assert task == "short" or go_on.wait(120)

    settings = controller.settings.with_(session_timeout_s=1.0, kafka={"max.poll.interval.ms": "1000"})
    with running(settings, agent, slots=2) as worker:
        controller.ready()
        controller.give(worker, 1, "long")
        controller.beat(lambda w: w.running == ["at-1"])
        time.sleep(1.5)
        controller.give(worker, 2, "short")
        assert controller.end(2).status == "succeeded"
        assert not [b for b in controller.all(SpanBatch) if b.end and b.attempt_id == "at-1"]
        go_on.set()
        assert controller.end(1).status == "succeeded"
    assert sorted(ran) == ["long", "short"]


class Skewed(SystemClock):
    """A wall clock that is wrong."""

    def __init__(self, seconds: float) -> None:
        self._ns = int(seconds * NS_PER_S)

    def now_ns(self) -> int:
        return super().now_ns() + self._ns


@pytest.mark.parametrize("hours", [-1, 1])
def test_a_clock_that_is_an_hour_off_refuses_no_assignment_and_times_nothing_out(
    controller: Controller, hours: int
) -> None:  # injected: a test cannot set the machine's clock
    def agent(task: object) -> float:
        del task
        return 1.0

    with running(controller.settings, agent, clock=Skewed(3600 * hours)) as worker:
        controller.ready()
        controller.give(worker, 1, limits=Limits(timeout_s=60.0, claim_s=30.0))
        end = controller.end(1)
    assert end.status == "succeeded"
    assert abs(end.end_ns - time.time_ns() - hours * 3600 * NS_PER_S) < 600 * NS_PER_S  # raw times are kept
    assert worker.refused == 0


def test_a_worker_that_was_stopped_past_its_session_gives_up_what_was_given_away(controller: Controller) -> None:
    limits = Limits(unresponsive_s=5.0, claim_s=60.0)
    with worker_process(controller, "--slots", "2", "--isolation", "process") as (child, worker_id):
        controller.give(worker_id, 1, "sleep", limits=limits)
        until(lambda: said(controller, 1))
        controller.beat(lambda w: w.running == ["at-1"])
        child.send_signal(signal.SIGSTOP)
        controller.give(worker_id, 2, claim_s=2.0)
        time.sleep(6)
        child.send_signal(signal.SIGCONT)
        end = controller.end(1)
        assert (end.status, end.failure_class) == ("unresponsive", "infra")
        controller.beat(lambda w: w.running == [] and w.last_assignment_offset >= 1)
        assert not [b for b in controller.all(SpanBatch) if b.attempt_id == "at-2"]
        controller.give(worker_id, 3)
        assert controller.end(3).status == "succeeded"


def test_a_worker_that_was_stopped_refuses_what_is_late_also_where_the_broker_is_far_away(
    controller: Controller, broker: EmbeddedBroker
) -> None:  # polls come back empty while the fetch takes its time
    with worker_process(controller) as (child, worker_id):
        broker.set_rtt(40)
        try:
            for n in range(2):
                child.send_signal(signal.SIGSTOP)
                controller.give(worker_id, n, claim_s=1.0)
                time.sleep(1.5)
                child.send_signal(signal.SIGCONT)
                controller.beat(lambda w, n=n: w.last_assignment_offset >= n)
            controller.give(worker_id, 2)
            assert controller.end(2).status == "succeeded"
        finally:
            broker.set_rtt(0)
    assert {b.attempt_id for b in controller.all(SpanBatch)} == {"at-2"}


def test_a_second_interrupt_ends_a_worker_that_drains_at_once(controller: Controller) -> None:  # UX-4
    with worker_process(controller, "--isolation", "process", "--drain-s", "600") as (child, worker_id):
        controller.give(worker_id, 1, "sleep")
        until(lambda: said(controller, 1))
        pid = int("".join(c if c.isdigit() else " " for c in said(controller, 1)[0][1].attributes).split()[0])
        child.send_signal(signal.SIGINT)
        assert controller.beat(lambda w: w.draining).running == ["at-1"]
        assert child.poll() is None
        child.send_signal(signal.SIGINT)
        assert child.wait(GONE_WITHIN_S) == 128 + signal.SIGINT
    until(lambda: gone(pid))


def test_told_to_stop_it_lets_agents_finish_for_as_long_as_it_was_told_and_takes_nothing_more(
    controller: Controller,
) -> None:
    go_on, stop = threading.Event(), threading.Event()

    @rollout
    def agent(task: object) -> float:
        del task
        assert go_on.wait(120)
        return 1.0

    worker = WorkerService(controller.settings, agent, WorkerPolicy(trace=False, slots=2, drain_s=60.0))
    thread = threading.Thread(target=worker.run, args=(stop,))
    thread.start()
    controller.ready()
    controller.give(worker, 1)
    controller.beat(lambda w: w.running == ["at-1"])
    stop.set()
    assert controller.beat(lambda w: w.draining).slots == 0
    controller.give(worker, 2)
    assert controller.end(2).status == "returned"
    go_on.set()
    assert controller.end(1).status == "succeeded"
    thread.join(60)
    assert not thread.is_alive()


def test_a_worker_leaves_in_time_though_the_broker_is_away(controller: Controller, broker: EmbeddedBroker) -> None:
    def agent(task: object) -> None:
        del task
        time.sleep(3600)

    try:
        with running(controller.settings, agent) as worker:
            controller.ready()
            controller.give(worker, 1)
            controller.beat(lambda w: w.running == ["at-1"])
            broker.set_down()
            started = time.monotonic()
        assert time.monotonic() - started < GONE_WITHIN_S
    finally:
        broker.set_up()


def test_a_worker_that_can_send_nothing_any_more_ends_loudly(controller: Controller, broker: EmbeddedBroker) -> None:
    controller.producer.send_wait(Task("ro-0", "run"))  # it has its producer id
    broker.refuse_next(INIT_PRODUCER_ID, CLUSTER_AUTHORIZATION_FAILED)
    worker = WorkerService(controller.settings, slot_agents.agent, WorkerPolicy(trace=False))
    with pytest.raises(DeliveryFailed, match="refuses producer worker"):
        worker.run(threading.Event())


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"slots": 0}, "at least one"),
        ({"isolation": "fork"}, "expected thread or process"),
        ({"recycle": 5}, "isolation process"),
    ],
)
def test_a_policy_that_cannot_be_followed_says_what_was_expected(options: dict[str, Any], says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        WorkerPolicy(**options)


def test_an_agent_that_cannot_be_loaded_stops_the_worker_before_its_first_heartbeat(controller: Controller) -> None:
    policy = WorkerPolicy(isolation="process", trace=False)
    worker = WorkerService(controller.settings, AGENT.replace(":agent", ":absent"), policy)
    with pytest.raises(ConfigError, match="absent"):
        worker.run(threading.Event())
    assert controller.all(Worker) == []
