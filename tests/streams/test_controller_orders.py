"""Orders about rollouts, tasks that cannot be run, and what a restart must go on with."""

from __future__ import annotations

from dataclasses import replace

import pytest
from controller_rig import TASK, Play, limits

from spanloop.schemas.records import Assignment, Attempt, SpanBatch, Task, Worker
from spanloop.streams.controller import Refused


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
