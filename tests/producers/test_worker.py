import asyncio
import json
import threading
import time

import pytest
from fake_controller import Controller, running
from waiting import GONE_WITHIN_S, until

from spanloop.producers import emit_message, rollout
from spanloop.producers.keys import verify
from spanloop.producers.llm import LLM
from spanloop.producers.prompt import PromptTemplate
from spanloop.producers.worker import FLUSH_S, WorkerPolicy, WorkerService
from spanloop.schemas.records import DeadLetter, Resource, Reward, SpanBatch, Worker
from spanloop.schemas.topics import ASSIGNMENTS, partition_of


def test_it_says_what_it_is_runs_what_it_is_given_and_says_goodbye(controller: Controller) -> None:
    def agent(task: dict[str, str], llm: LLM) -> float:
        emit_message(f"{task['q']} {llm.base_url} {llm.api_key}")
        return 0.5

    settings = controller.settings.with_(secret="s")
    with running(settings, agent, slots=2, prefetch=3, name="desk", labels=("gpu",)) as worker:
        first = controller.beat(lambda w: w.worker_id == worker.worker_id)
        assert (first.role, first.name, first.slots, first.labels, first.alive) == ("worker", "desk", 5, ["gpu"], True)
        assert (first.running, first.last_assignment_offset) == ([], -1)
        controller.give(worker, 1, {"q": "why"})
        end = controller.end(1)
        assert (end.status, end.span_count, end.reward_count, end.final) == ("succeeded", 2, 1, True)
        assert (end.context.run_id, end.context.worker_id) == ("run-1", worker.worker_id)
        until(lambda: controller.all(Reward))
        reward = controller.all(Reward)[0]
        assert (reward.rollout_id, reward.attempt_id, reward.value, reward.scope) == ("ro-1", "at-1", 0.5, "final")
        question, url, key = json.loads(
            next(s for b in controller.all(SpanBatch) for s in b.spans if s.name == "spanloop.message").attributes
        )["spanloop.body"].split()
        assert (question, url) == ("why", f"{settings.gateway_url}/rollout/ro-1/attempt/at-1/v1")
        assert verify("s", key) == ("ro-1", "at-1")
        controller.beat(lambda w: w.last_assignment_offset >= 0 and w.running == [])
    goodbye = controller.beat(lambda w: not w.alive)
    assert (goodbye.worker_id, goodbye.slots, goodbye.running) == (worker.worker_id, 0, [])


def test_begin_comes_before_the_spans_and_the_end_behind_them(controller: Controller) -> None:
    gate = threading.Event()

    def agent(task: object) -> None:
        del task
        gate.wait(60)
        for i in range(3):
            emit_message(str(i))

    with running(controller.settings, agent) as worker:
        controller.ready()
        controller.give(worker, 1)
        until(lambda: controller.all(SpanBatch))
        beat = controller.beat(lambda w: w.running == ["at-1"])
        assert beat.worker_id == worker.worker_id
        gate.set()
        controller.end(1)
    batches = controller.all(SpanBatch)
    assert [b.begin for b in batches] == [True] + [False] * (len(batches) - 1)
    assert [b.end is not None for b in batches] == [False] * (len(batches) - 1) + [True]
    assert [s.sequence for b in batches for s in b.spans] == [0, 1, 2, 3]


def test_a_blocked_event_loop_does_not_hold_spans_back(controller: Controller) -> None:  # PS-11
    go_on = threading.Event()

    async def agent(task: object) -> None:
        del task
        emit_message("before")
        assert go_on.wait(120)

    with running(controller.settings, agent) as worker:
        controller.ready()
        controller.give(worker, 1)
        until(lambda: [s for b in controller.all(SpanBatch) for s in b.spans])
        beats = len(controller.all(Worker))
        until(lambda: len(controller.all(Worker)) >= beats + 2)
        go_on.set()
        assert controller.end(1).status == "succeeded"


def test_other_workers_older_epochs_and_late_claims_are_left_alone(controller: Controller) -> None:
    ran: list[int] = []

    def agent(task: int) -> None:
        ran.append(task)

    with running(controller.settings, agent) as worker:
        controller.ready()
        partition = partition_of(worker.worker_id, controller.settings.partitions)
        other = next(
            f"wo-{i}" for i in range(99) if partition_of(f"wo-{i}", controller.settings.partitions) == partition
        )
        controller.give(other, 1, 1)
        controller.give(worker, 2, 2, epoch=7)
        controller.give(worker, 3, 3, epoch=6)
        controller.give(worker, 4, 4, epoch=7)
        controller.end(4)
    assert sorted(ran) == [2, 4]
    assert worker.refused == 1


def test_nothing_given_before_its_first_heartbeat_is_run(controller: Controller) -> None:
    ran: list[int] = []

    def agent(task: int) -> None:
        ran.append(task)

    worker = WorkerService(controller.settings, rollout(agent), WorkerPolicy(trace=False))
    controller.give(worker, 1, 1)
    stop = threading.Event()
    thread = threading.Thread(target=worker.run, args=(stop,))
    thread.start()
    controller.beat(lambda w: w.worker_id == worker.worker_id)
    controller.give(worker, 2, 2)
    controller.end(2)
    stop.set()
    thread.join(60)
    assert ran == [2]


def test_a_cancel_stops_an_agent(controller: Controller) -> None:
    async def agent(task: object) -> None:
        del task
        await asyncio.sleep(3600)

    with running(controller.settings, agent) as worker:
        controller.ready()
        controller.give(worker, 1)
        controller.beat(lambda w: w.running == ["at-1"])
        controller.give(worker, 1, action="cancel", task=None)
        assert controller.end(1).status == "cancelled"
        controller.beat(lambda w: w.running == [] and w.last_assignment_offset >= 1)


@pytest.mark.parametrize("asynchronous", [False, True])
def test_told_to_stop_it_hands_back_what_does_not_finish_within_five_seconds(
    controller: Controller, asynchronous: bool
) -> None:
    release = threading.Event()

    def sync_agent(task: object) -> None:
        emit_message("started")
        if task == "long":
            release.wait(120)

    async def async_agent(task: object) -> None:
        emit_message("started")
        if task == "long":
            await asyncio.sleep(3600)

    with running(controller.settings, async_agent if asynchronous else sync_agent, prefetch=1) as worker:
        controller.ready()
        controller.give(worker, 1, "long")
        controller.give(worker, 2, "short")
        controller.beat(lambda w: set(w.running) == {"at-1", "at-2"})
        started = time.monotonic()
    took_s = time.monotonic() - started
    release.set()
    assert took_s < GONE_WITHIN_S
    assert WorkerPolicy().drain_s + FLUSH_S < 5
    for n in (1, 2):
        end = controller.end(n)
        assert (end.status, end.failure_class, end.final) == ("returned", "infra", False)
    assert any("started" in s.attributes for b in controller.all(SpanBatch) for s in b.spans)
    controller.beat(lambda w: not w.alive)


def test_told_to_stop_it_lets_a_short_agent_finish(controller: Controller) -> None:
    at_work = threading.Event()

    def agent(task: object) -> float:
        del task
        at_work.set()
        time.sleep(0.2)
        return 1.0

    with running(controller.settings, agent, drain_s=60.0) as worker:
        controller.ready()
        controller.give(worker, 1)
        assert at_work.wait(60)
    assert controller.end(1).status == "succeeded"


def test_a_prompt_is_taken_at_the_version_pinned(controller: Controller) -> None:
    for version in (1, 2, 3):
        controller.producer.send_wait(Resource("ask", version, "prompt", json.dumps(f"v{version} {{q}}")))

    def agent(task: object, prompt_template: PromptTemplate) -> None:
        emit_message(prompt_template.format(q=task))

    with running(controller.settings, agent) as worker:
        controller.ready()
        controller.give(worker, 1, "why", pins={"ask": 2})
        controller.end(1)
    assert any('"v2 why"' in s.attributes for b in controller.all(SpanBatch) for s in b.spans)


def test_a_poisoned_assignment_is_quarantined_and_the_next_one_is_run(controller: Controller) -> None:  # SP-22
    def agent(task: object) -> None:
        del task

    with running(controller.settings, agent) as worker:
        controller.ready()
        raw, topic = controller.producer.client, ASSIGNMENTS.full(controller.settings.prefix)
        raw.produce(topic, b"\x07\x08\x09", worker.worker_id.encode())
        raw.flush(10)
        controller.give(worker, 1)
        assert controller.end(1).status == "succeeded"
        until(lambda: controller.all(DeadLetter))
    (letter,) = controller.all(DeadLetter)
    assert (letter.consumer, letter.topic, letter.offset) == ("worker", "assignments", 0)
    assert (letter.reason, letter.raw) == ("bad_framing", b"\x07\x08\x09")
