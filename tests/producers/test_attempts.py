import asyncio
import json
import threading
import time

import pytest
from sdk import bench
from waiting import until

from spanloop.producers import emit_message, emit_reward, loop_slots, rollout
from spanloop.producers.attempts import RESOURCE_WAIT_S
from spanloop.producers.llm import LLM
from spanloop.producers.prompt import PromptTemplate
from spanloop.producers.slots import ThreadSlots
from spanloop.schemas import semconv
from spanloop.schemas.records import Resource


def test_a_returned_number_is_the_final_reward_before_the_end_marker() -> None:
    @rollout
    def agent(task: object, llm: LLM) -> float:
        emit_message(f"{task} {llm.api_key}")
        emit_reward(0.5, name="style", step=True)
        return 1.0

    with bench(agent) as b:
        b.accept(1, task_input="q")
        end = b.end(1)
        assert (end.status, end.span_count, end.reward_count, end.final) == ("succeeded", 2, 2, True)
        assert [(r.name, r.scope, r.value) for r in b.sender.rewards] == [
            ("style", "step", 0.5),
            ("reward", "final", 1.0),
        ]
        message, root = b.sender.spans
        assert (root.name, root.parent_span_id, message.parent_span_id) == ("agent", None, root.span_id)
        assert json.loads(message.attributes)[semconv.BODY] == "q ro-1/at-1"


def test_an_exception_fails_the_attempt_with_its_type_and_message_as_a_span() -> None:
    @rollout
    def agent(task: object) -> None:
        raise ValueError(f"boo {task}")

    with bench(agent) as b:
        b.accept(1, task_input=7)
        end = b.end(1)
        assert (end.status, end.error_type, end.reason) == ("failed", "ValueError", "ValueError: boo 7")
        (root,) = b.sender.spans
        assert json.loads(root.attributes)[semconv.EXCEPTION_MESSAGE] == "boo 7"
        assert b.sender.rewards == []


def test_an_agent_that_returns_no_number_fails_at_once_and_its_slot_is_free() -> None:
    @rollout
    def agent(task: object) -> object:
        return 10**400 if task else None

    @rollout
    async def asynchronous(task: object) -> object:
        return 10**400 if task else None

    for each in (agent, asynchronous):
        with bench(each, slots=1) as b:
            b.accept(1, task_input=1)
            b.accept(2, task_input=0)
            assert (b.end(1).failure_class, b.end(1).error_type) == ("agent", "TypeError")
            assert b.end(2).status == "succeeded"


@pytest.mark.parametrize("error", [SystemExit(3), KeyboardInterrupt(), asyncio.CancelledError()])
def test_an_agent_cannot_take_the_worker_down(error: BaseException) -> None:
    @rollout
    def agent(task: object) -> None:
        if task:
            raise error

    @rollout
    async def asynchronous(task: object) -> None:
        if task:
            raise error

    for each in (agent, asynchronous):
        with bench(each, slots=1) as b:
            b.accept(1, task_input=1)
            b.accept(2, task_input=0)
            assert (b.end(1).status, b.end(2).status) == ("failed", "succeeded")


@pytest.mark.parametrize("asynchronous", [False, True])
def test_no_more_attempts_run_at_once_than_there_are_slots(asynchronous: bool) -> None:
    lock, full, now, most = threading.Lock(), threading.Event(), 0, 0

    def count(change: int) -> None:
        nonlocal now, most
        with lock:
            now += change
            most = max(most, now)
            if now == 3:
                full.set()

    def sync_agent(task: object) -> None:
        del task
        count(1)
        assert full.wait(60)
        time.sleep(0.005)  # for more of them to come, if they could
        count(-1)

    async def async_agent(task: object) -> None:
        del task
        count(1)
        while not full.is_set():
            await asyncio.sleep(0.005)
        await asyncio.sleep(0.005)
        count(-1)

    with bench(rollout(async_agent if asynchronous else sync_agent), slots=3) as b:
        for n in range(20):
            b.accept(n)
        for n in range(20):
            assert b.end(n).status == "succeeded"
        until(lambda: b.attempts.named() == [])
    assert most == 3


def test_an_asynchronous_agent_is_cancelled_at_its_deadline() -> None:
    started, cancelled = threading.Event(), threading.Event()

    @rollout
    async def agent(task: object) -> None:
        del task
        started.set()
        try:
            await asyncio.sleep(3600)
        except asyncio.CancelledError:
            cancelled.set()
            raise

    with bench(agent) as b:
        b.accept(1)
        assert started.wait(60)
        b.clock.advance(9.9)
        b.attempts.tick()
        assert b.attempts.named() == ["at-1"]
        b.clock.advance(0.2)
        b.attempts.tick()
        end = b.end(1)
        assert (end.status, end.failure_class) == ("timeout", "agent")
        assert cancelled.wait(60)


def test_a_thread_is_left_alone_at_its_deadline_and_its_slot_is_free() -> None:
    go_on, done = threading.Event(), threading.Event()

    @rollout
    def agent(task: object) -> float:
        if task == "stuck":
            go_on.wait(60)
            emit_message("too late")
            done.set()
        return 1.0

    threads = ThreadSlots(agent)
    with bench(agent, slots=1, places=threads) as b:
        b.accept(1, task_input="stuck")
        b.clock.advance(11)
        b.attempts.tick()
        b.accept(2)
        assert (b.end(1).status, b.end(2).status) == ("timeout", "succeeded")
        assert threads.lost == 1
        go_on.set()
        assert done.wait(60)
        until(lambda: b.attempts.named() == [])
        until(lambda: threads.lost == 0)
    assert [batch.end.status for batch in b.sender.batches if batch.end and batch.attempt_id == "at-1"] == ["timeout"]
    assert all("too late" not in s.attributes for s in b.sender.spans)


def test_an_event_loop_that_an_agent_blocks_is_left_alone_and_replaced(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loop_slots, "BLOCKED_S", 0.1)
    at_work, go_on = threading.Event(), threading.Event()

    @rollout
    async def agent(task: object) -> None:
        if task == "block":
            at_work.set()
            assert go_on.wait(60)

    loops = loop_slots.LoopSlots(agent)
    with bench(agent, slots=2, places=loops) as b:
        b.accept(1, task_input="block")
        assert at_work.wait(60)
        b.clock.advance(11)
        until(lambda: b.attempts.tick() or loops.lost)
        assert b.end(1).status == "timeout"
        b.accept(2)
        assert b.end(2).status == "succeeded"
        go_on.set()


def test_a_cancelled_attempt_is_stopped_whether_it_runs_or_waits() -> None:
    @rollout
    async def agent(task: object) -> None:
        del task
        await asyncio.sleep(3600)

    with bench(agent, slots=1) as b:
        b.accept(1)
        b.accept(2)
        b.attempts.cancel("at-2", "by hand")
        b.attempts.cancel("at-1", "by hand")
        b.attempts.cancel("at-9", "by hand")
        for n in (1, 2):
            end = b.end(n)
            assert (end.status, end.failure_class, end.reason) == ("cancelled", "infra", "by hand")
    begun = {batch.attempt_id for batch in b.sender.batches if batch.begin}
    assert begun == {"at-1"}


def test_a_claim_that_expires_while_it_waits_for_a_slot_is_not_begun() -> None:
    gate = threading.Event()

    @rollout
    def agent(task: object) -> None:
        del task
        gate.wait(60)

    with bench(agent, slots=1) as b:
        b.accept(1)
        b.accept(2, age_s=25.0)
        b.accept(3)
        b.clock.advance(6)
        gate.set()
        assert b.end(3).status == "succeeded"
        until(lambda: b.attempts.named() == [])
    assert {batch.attempt_id for batch in b.sender.batches} == {"at-1", "at-3"}


def test_an_attempt_is_named_until_its_end_marker_is_acknowledged() -> None:
    @rollout
    def agent(task: object) -> None:
        del task

    with bench(agent) as b:
        b.sender.hold = True
        b.accept(1)
        b.end(1)
        assert b.attempts.named() == ["at-1"]
        assert b.attempts.idle()
        b.sender.release()
        until(lambda: b.attempts.named() == [])


def test_an_attempt_waits_for_a_pinned_resource_that_is_on_its_way() -> None:
    @rollout
    def agent(task: object, prompt_template: PromptTemplate) -> None:
        del task
        emit_message(prompt_template.template)

    with bench(agent) as b:
        b.accept(1, pins={"ask": 2})
        b.attempts.tick()
        assert b.sender.batches == []
        b.resources.put(Resource("ask", 2, "prompt", '"hello"'))
        b.attempts.tick()
        assert b.end(1).status == "succeeded"
        assert "hello" in b.sender.spans[0].attributes


def test_a_pinned_resource_that_never_comes_is_the_infrastructures_failure() -> None:
    @rollout
    def agent(task: object) -> None:
        del task

    with bench(agent) as b:
        b.accept(1, pins={"ask": 2})
        b.clock.advance(RESOURCE_WAIT_S + 0.1)
        b.attempts.tick()
        end = b.end(1)
        assert (end.status, end.failure_class, end.reason) == ("failed", "infra", "no resource ask@2")
