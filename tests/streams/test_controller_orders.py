"""Orders about rollouts, tasks that cannot be run, and what a restart must go on with."""

from __future__ import annotations

from dataclasses import replace

import pytest
from controller_rig import T0, TASK, Play, limits, restarted

from spanloop.schemas import orders
from spanloop.schemas.records import Assignment, Attempt, Limits, Resource, Rollout, SpanBatch, Task, Worker
from spanloop.streams.controller import Refused
from spanloop.streams.controller_orders import why_refused
from spanloop.streams.controller_state import CHANGES_A_TICK
from spanloop.streams.texts import TEXT_MAX


def test_a_rollout_cancelled_in_the_queue_gets_an_empty_final_attempt() -> None:
    play = Play()
    play.do(Worker("wo-1", slots=4, alive=False), TASK)
    play.do(replace(TASK, action="cancel", reason="no longer wanted"))
    (marker,) = play.get(SpanBatch)
    assert marker.end is not None
    assert (marker.end.status, marker.end.failure_class, marker.end.final) == ("cancelled", "infra", True)
    assert (marker.end.reason, marker.end.context.worker_id, marker.end.context.group_id) == (
        "no longer wanted", "", "gr-1",
    )  # fmt: skip
    play.end("at-1", "cancelled")
    assert (play.rollout.status, play.rollout.final, play.rollout.dispatches) == ("cancelled", True, 0)


@pytest.mark.parametrize("slots", [0, 4])
def test_a_reason_too_long_to_be_handed_on_is_cut(slots: int) -> None:
    play = Play()
    play.do(Worker("wo-1", slots=slots), TASK)
    play.do(replace(TASK, action="cancel", reason="a" + "y" * 500_000))
    (marker,) = play.get(SpanBatch)
    assert marker.end is not None
    for reason in (marker.end.reason, play.rollout.reason, play.get(Attempt)[0].reason):
        assert reason is not None
        assert reason.startswith("ay")
        assert len(reason) < 2 * TEXT_MAX
    end = Attempt("ro-1", "at-1", "ended", outcome="failed", final=True, reason="z" * 500_000, error_type="E" * 500_000)
    play.do(end)
    assert len(play.rollout.reason or "") + len(play.rollout.error_type or "") < 3 * TEXT_MAX


def test_a_resource_with_a_name_too_long_to_be_handed_on_is_waited_for() -> None:
    play = Play()
    play.do(replace(TASK, pins={"p" * 500_000: None}))
    assert len(play.rollout.reason or "") < 2 * TEXT_MAX
    assert play.do(Resource("p" * 500_000, 1)) != []
    assert play.get(Assignment) != []


def test_cancelling_what_runs_tells_the_worker_and_closes_it() -> None:
    play = Play()
    play.do(TASK)
    play.begin("at-1")
    play.do(replace(TASK, action="cancel"))
    assert [(a.action, a.attempt_id) for a in play.get(Assignment)] == [("cancel", "at-1")]
    play.end("at-1", "cancelled")
    assert play.rollout.status == "cancelled"


def test_a_cancel_that_meets_a_retry_wins() -> None:
    play = Play()
    play.do(limits(max_attempts=3, retry_on=["failed"]))
    play.begin("at-1")
    play.do(replace(TASK, action="cancel"))
    play.end("at-1", "failed", final=False)
    assert play.get(Assignment) == []
    assert play.rollout.closing == "cancelled"
    play.end("at-2", "cancelled")
    assert (play.rollout.status, play.rollout.final) == ("cancelled", True)


def test_an_order_with_the_runs_id_as_rollout_id_goes_to_all_of_the_run() -> None:
    play = Play()
    play.do(TASK, replace(TASK, rollout_id="ro-2", sample=3))
    play.do(Task(rollout_id="run", run_id="run", action="cancel"))
    assert {m.rollout_id for m in play.get(SpanBatch)} == {"ro-1", "ro-2"}


def test_a_paused_rollout_is_not_given_out_until_resumed() -> None:
    play = Play()
    play.do(TASK, replace(TASK, action="pause"))
    assert play.get(Assignment) == []
    assert play.rollout.paused
    play.do(replace(TASK, action="resume"))
    assert [a.attempt_id for a in play.get(Assignment)] == ["at-1"]


@pytest.mark.parametrize(
    ("task", "said"),
    [
        (replace(TASK, action="unknown"), "action"),
        (replace(TASK, mode="unknown"), "mode"),
        (limits(max_attempts=0), "max_attempts"),
    ],
)
def test_a_task_that_cannot_be_run_fails_with_its_reason(task: Task, said: str) -> None:
    play = Play()
    play.do(task)
    assert play.get(Assignment) == []
    assert said in (play.rollout.reason or "")
    (marker,) = play.get(SpanBatch)
    assert marker.end is not None
    play.do(Attempt("ro-1", "at-1", "ended", outcome="failed", final=True, reason=marker.end.reason))
    assert (play.rollout.status, play.rollout.final) == ("failed", True)
    assert said in (play.rollout.reason or "")


def test_a_task_refused_by_the_shell_fails_once() -> None:
    play = Play()
    play.do(Refused(TASK, "too large"), Refused(TASK, "too large"))
    assert [m.attempt_id for m in play.get(SpanBatch)] == ["at-1"]
    assert play.rollout.reason == "too large"


def test_an_order_about_an_unknown_rollout_changes_nothing() -> None:
    assert Play().do(replace(TASK, action="cancel")) == []


def test_after_a_restart_a_preparing_attempt_is_still_waited_for_and_then_unclaimed() -> None:
    play = Play()
    play.do(limits(claim_s=5.0))
    play.restart()
    assert play.wait(1) == []
    play.wait(5)
    assert play.rollout.closing == "unclaimed"
    assert play.rollout.epoch == 8


def test_after_a_restart_a_running_attempt_keeps_its_deadline_and_its_pins() -> None:
    play = Play()
    play.do(limits(timeout_s=10.0))
    play.begin("at-1")
    play.wait(4)
    play.restart()
    assert play.wait(5) == []
    play.wait(1)
    assert play.rollout.closing == "timeout"


def test_after_a_restart_an_end_marker_is_written_again() -> None:
    play = Play()
    play.do(limits(timeout_s=10.0))
    play.begin("at-1")
    play.wait(10)
    play.restart()
    play.do()
    play.wait(1)
    assert [m.attempt_id for m in play.get(SpanBatch)] == ["at-1"]
    play.end("at-1", "timeout")
    assert play.rollout.final


def test_after_a_restart_what_was_queued_is_given_out_and_what_was_final_is_known() -> None:
    play = Play()
    play.do(TASK)
    play.end("at-1")
    play.do(Worker("wo-1", slots=4, alive=False), replace(TASK, rollout_id="ro-2", sample=3))
    play.restart()
    play.do(TASK)
    assert [a.task.rollout_id for a in play.get(Assignment) if a.task] == ["ro-2"]


def test_an_order_for_a_run_holds_for_what_comes_later_and_outlives_a_restart() -> None:
    play = Play()
    play.do(orders.pause_run("run"))
    play.do(TASK, Task("ro-other", "other"))
    assert [a.task.rollout_id for a in play.get(Assignment) if a.task] == ["ro-other"]
    play.restart()
    assert play.do() == []
    play.do(orders.resume_run("run"))
    assert [a.task.rollout_id for a in play.get(Assignment) if a.task] == ["ro-1"]
    assert play.rollouts["order/run/run"].final


def test_a_run_has_no_more_attempts_out_than_its_bound_until_that_is_lifted() -> None:
    play = Play()
    tasks = [replace(TASK, rollout_id=f"ro-{i}", limits=Limits(run_concurrency=2)) for i in range(1, 5)]
    play.do(*tasks)
    assert len(play.get(Assignment)) == 2
    assert len([r for r in play.get(Rollout) if r.status == "order"]) == 1
    play.restart()
    play.do(Task("ro-5", "run"))
    assert play.get(Assignment) == []
    play.end("at-1")
    assert len(play.get(Assignment)) == 1
    play.do(orders.limit_run("run", None))
    assert len(play.get(Assignment)) == 2  # the worker's other slots
    assert play.rollouts["order/run/run"].final


def test_what_another_run_may_have_is_not_touched_by_a_bound() -> None:
    play = Play()
    play.do(orders.limit_run("run", 1), TASK, replace(TASK, rollout_id="ro-2"), Task("a", "other"), Task("b", "other"))
    assert sorted(a.task.rollout_id for a in play.get(Assignment) if a.task) == ["a", "b", "ro-1"]


@pytest.mark.parametrize("target", ["wo-1", "desk", "*"])
def test_a_drained_worker_ends_what_it_has_and_gets_no_more(target: str) -> None:
    play = Play()
    desk = Worker("wo-1", "desk", slots=4)
    play.do(desk, TASK)
    play.do(orders.drain(target, "maintenance"), replace(TASK, rollout_id="ro-2"))
    assert play.get(Assignment) == []
    play.begin("at-1")
    play.end("at-1")
    assert play.rollout.status == "succeeded"
    play.restart()
    assert [r for r in play.do(desk) if isinstance(r, Assignment)] == []
    play.do(orders.undrain(target))
    assert [a.task.rollout_id for a in play.get(Assignment) if a.task] == ["ro-2"]


def test_a_worker_that_says_it_is_draining_gets_no_more_and_keeps_what_it_has() -> None:
    play = Play()
    play.do(TASK)
    play.begin("at-1")
    play.do(Worker("wo-1", slots=4, running=["at-1"], draining=True), replace(TASK, rollout_id="ro-2"))
    assert play.get(Assignment) == []
    play.end("at-1")
    assert play.rollout.status == "succeeded"
    play.beat()
    assert len(play.get(Assignment)) == 1


def test_an_order_about_a_worker_goes_with_it() -> None:
    play = Play()
    play.do(orders.drain("wo-1"))
    play.do(Worker("wo-1", alive=False))
    assert play.state.drained == set()
    assert play.rollouts["order/worker/wo-1"].final


def test_a_large_run_is_cancelled_over_several_ticks_and_across_a_restart_but_not_what_came_after() -> None:
    play = Play()
    play.do(Worker("wo-1", alive=False))
    play.do(*(Task(f"ro-{i}", "run") for i in range(CHANGES_A_TICK + 500)))
    play.do(orders.cancel_run("run", "a mistake"), Task("ro-after", "run"))
    assert len(play.get(SpanBatch)) == CHANGES_A_TICK
    assert play.get(Assignment) == []
    play.restart()
    play.do()
    cancelled = {r.rollout_id for r in play.rollouts.values() if r.closing == "cancelled" and r.status != "order"}
    assert cancelled == {f"ro-{i}" for i in range(CHANGES_A_TICK + 500)}
    assert play.rollouts["order/run/run"].final
    assert [a.task.rollout_id for a in play.get(Assignment) if a.task] == ["ro-after"]


@pytest.mark.parametrize(
    ("task", "said"),
    [
        (Task("order/run/run", "run"), "kept for orders"),
        (Task("", "run"), "rollout_id is empty"),
        (Task("r" * 1001, "run"), "rollout_id has 1001 characters"),
        (Task("ro-1", "r" * 1001), "run_id has 1001 characters"),
        (Task("ro-1", "run", group_id="g" * 1001), "group_id has 1001 characters"),
        (orders.limit_run("run", 0), "at least 1"),
        (replace(orders.limit_run("run", 3), rollout_id="ro-1"), "whole run"),
    ],
)
def test_an_order_that_cannot_be_obeyed_is_refused_with_its_reason(task: Task, said: str) -> None:
    assert said in (why_refused(task) or "")
    assert why_refused(TASK) is None


def test_a_restart_does_nothing_for_what_is_finished_but_remember_its_id() -> None:
    done = [
        Rollout(f"ro-{i}", "succeeded", Task(f"ro-{i}", "run", mode="val"), final=True, ended_ns=T0)
        for i in range(20_000)
    ]
    waiting = [Rollout(f"open-{i}", "queuing", Task(f"open-{i}", "run"), taken_ns=T0 + i) for i in range(10)]
    state = restarted([*done, *waiting], T0)
    assert len(state.finished) == 20_000
    assert state.count <= 2 * len(waiting)  # queue tickets, ages and timers made
    assert len(state.live) + len(state.timers) + sum(len(run.open) for run in state.runs.values()) <= 2 * len(waiting)
