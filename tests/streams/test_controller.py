"""A rollout's life: every transition, what is written, and who decides."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from controller_rig import T0, TASK, Play, limits

from spanloop.schemas.records import Assignment, Attempt, EndStatus, SpanBatch, Worker
from spanloop.streams.controller_table import TABLE, markdown


def test_a_task_is_given_to_a_free_worker_with_everything_it_needs() -> None:
    play = Play()
    play.do(TASK)
    (order,), (prepared,) = play.get(Assignment), play.get(Attempt)
    assert (order.worker_id, order.attempt_id, order.action, order.epoch) == ("wo-1", "at-1", "run", 7)
    assert (order.task, order.attempt_number, order.final, order.at_ns) == (TASK, 1, True, T0)
    assert (prepared.status, prepared.attempt_id, prepared.worker_id, prepared.mode) == (
        "preparing", "at-1", "wo-1", "train",
    )  # fmt: skip
    assert (play.rollout.status, play.rollout.attempt_status, play.rollout.dispatches) == ("running", "preparing", 1)


def test_a_task_without_a_worker_stays_queued_and_is_told() -> None:
    play = Play()
    play.do(Worker("wo-1", slots=4, alive=False))
    play.do(TASK)
    assert play.out == [play.rollout]
    assert play.rollout.status == "queuing"


def test_the_same_task_again_changes_nothing_while_open_and_when_final() -> None:
    play = Play()
    play.do(TASK, TASK)
    assert len(play.get(Assignment)) == 1
    assert play.do(TASK) == []
    play.end("at-1")
    assert play.do(TASK) == []


def test_begin_and_end_make_a_succeeded_rollout() -> None:
    play = Play()
    play.do(TASK)
    play.begin("at-1")
    assert (play.rollout.attempt_status, play.rollout.started_ns) == ("running", T0)
    play.end("at-1")
    assert (play.rollout.status, play.rollout.final, play.rollout.counting_attempt) == ("succeeded", True, "at-1")
    assert (play.rollout.tries, play.rollout.ended_ns) == (1, T0)


def test_an_attempt_not_begun_in_time_is_closed_unclaimed_and_the_rollout_given_out_anew() -> None:
    play = Play()
    play.do(limits(claim_s=5.0))
    play.wait(5.4)
    assert play.out == []
    play.wait(0.2)
    (marker,) = play.get(SpanBatch)
    assert marker.end is not None
    assert (marker.attempt_id, marker.end.status, marker.end.final) == ("at-1", "unclaimed", False)
    assert [a.action for a in play.get(Assignment)] == ["cancel"]
    play.end("at-1", "unclaimed", final=False)
    play.wait(1.0)
    (order,) = play.get(Assignment)
    assert (order.attempt_id, order.attempt_number) == ("at-2", 1)
    assert (play.rollout.tries, play.rollout.dispatches) == (0, 2)


def test_a_claim_that_a_heartbeat_names_is_waited_for() -> None:
    play = Play()
    play.do(limits(claim_s=5.0))
    play.wait(4.0)
    play.beat("at-1")
    assert play.wait(4.0) == []
    play.wait(4.0)
    assert play.get(Attempt)[0].outcome == "unclaimed"


def test_a_rollout_that_nobody_claims_ends_with_one_empty_final_attempt() -> None:
    play = Play()
    play.do(limits(claim_s=1.0))
    for _ in range(play.state.policy.max_handbacks):
        attempt_id = play.rollout.attempt_id or ""
        play.wait(2.0)
        play.beat()
        play.end(attempt_id, "unclaimed", final=False)
        play.beat()
        play.wait(9.0)
        play.beat()
        play.wait(31.0)
        play.beat()
    empty = play.rollout
    assert (empty.attempt_status, empty.closing, empty.worker_id, empty.tries) == ("closing", "failed", None, 0)
    play.end(empty.attempt_id or "", "failed")
    assert (play.rollout.status, play.rollout.final) == ("failed", True)


def test_an_attempt_past_its_time_limit_gets_an_end_marker_with_the_whole_context() -> None:
    play = Play()
    play.do(limits(timeout_s=10.0, failure_reward=-1.0))
    play.begin("at-1")
    play.wait(9.9)
    assert play.out == []
    play.wait(0.1)
    (marker,) = play.get(SpanBatch)
    assert marker.end is not None
    assert (marker.end.status, marker.end.failure_class, marker.end.final) == ("timeout", "agent", True)
    context = marker.end.context
    assert (context.run_id, context.group_id, context.sample, context.group_size) == ("run", "gr-1", 2, 4)
    assert (context.worker_id, context.attempt_number, context.failure_reward, context.data_id) == (
        "wo-1", 1, -1.0, "d7",
    )  # fmt: skip
    assert (play.rollout.attempt_status, play.rollout.closing, play.rollout.status) == ("closing", "timeout", "running")
    play.end("at-1", "timeout")
    assert play.rollout.status == "failed"


def test_an_attempt_that_no_heartbeat_names_is_unresponsive() -> None:
    play = Play()
    play.do(limits(unresponsive_s=10.0, max_attempts=2))
    play.begin("at-1")
    play.wait(8)
    play.beat("at-1")
    assert play.wait(8) == []
    play.wait(2)
    (marker,) = play.get(SpanBatch)
    assert marker.end is not None
    assert (marker.end.status, marker.end.failure_class, marker.end.final) == ("unresponsive", "infra", False)


def test_the_end_marker_is_written_again_until_the_end_is_told() -> None:
    play = Play()
    play.do(limits(timeout_s=10.0))
    play.begin("at-1")
    (first,) = [r for r in play.wait(10) if isinstance(r, SpanBatch)]
    assert play.wait(0.9) == []
    assert play.wait(0.1) == [first]
    assert play.wait(1.9) == []
    assert play.wait(0.1) == [first]
    play.end("at-1", "timeout")
    assert play.wait(1000) == []


def test_the_first_marker_decides_even_against_the_controllers_own() -> None:
    play = Play()
    play.do(limits(timeout_s=10.0))
    play.begin("at-1")
    play.wait(10)
    play.end("at-1", "succeeded")
    assert (play.rollout.status, play.rollout.counting_attempt) == ("succeeded", "at-1")


@pytest.mark.parametrize(
    ("mode", "retry_on", "outcome", "tried_again"),
    [
        ("train", [], "failed", False),
        ("train", [], "timeout", False),
        ("train", [], "unresponsive", True),
        ("val", [], "failed", True),
        ("train", ["failed"], "failed", True),
        ("train", ["timeout"], "unresponsive", False),
        ("val", [], "cancelled", False),
        ("val", [], "succeeded", False),
    ],
)
def test_retries_go_by_class_in_training_and_by_retry_on_where_it_is_given(
    mode: str, retry_on: list[str], outcome: EndStatus, tried_again: bool
) -> None:
    play = Play()
    play.do(replace(limits(max_attempts=2, retry_on=retry_on), mode=mode))  # pyright: ignore[reportArgumentType]  # a Mode
    play.begin("at-1")
    play.end("at-1", outcome, final=not tried_again)
    assert play.get(Assignment) == []
    play.wait(0.25)
    assert [(a.attempt_id, a.attempt_number) for a in play.get(Assignment)] == ([("at-2", 2)] if tried_again else [])
    assert play.rollout.final is not tried_again


def test_the_last_try_that_was_not_marked_final_is_followed_by_an_empty_final_attempt() -> None:
    play = Play()
    play.do(limits(max_attempts=1))
    play.end("at-1", "failed", final=False)
    (marker,) = play.get(SpanBatch)
    assert marker.end is not None
    assert (marker.attempt_id, marker.end.status, marker.end.final) == ("at-2", "failed", True)
    play.end("at-2", "failed")
    assert play.rollout.counting_attempt == "at-2"


def test_late_events_of_an_earlier_attempt_change_nothing() -> None:  # SP-7, TN-1
    play = Play()
    play.do(limits(max_attempts=2, timeout_s=10.0, retry_on=["timeout"]))
    play.begin("at-1")
    play.wait(10)
    play.beat()
    play.end("at-1", "timeout", final=False)
    play.wait(0.25)
    play.begin("at-2")
    play.end("at-2")
    assert (play.rollout.counting_attempt, play.rollout.tries) == ("at-2", 2)
    assert play.begin("at-1") == []
    assert play.end("at-1") == []
    assert play.end("at-2") == []
    assert play.rollout.counting_attempt == "at-2"


def test_finished_rollouts_keep_only_their_ids() -> None:
    play = Play()
    play.do(TASK)
    play.end("at-1")
    state = play.state
    assert (state.live, state.attempts, state.dirty, state.finished) == ({}, {}, {}, {"ro-1"})
    play.do(Worker("tr", role="trainer", run_id="run", credit=4, alive=False))
    assert [run.open for run in state.runs.values()] == [{}]


def test_the_page_on_the_lifecycle_holds_the_table() -> None:
    page = Path(__file__).parents[2] / "docs" / "lifecycle.md"
    assert markdown() in page.read_text("utf-8")


def test_the_table_names_no_way_out_of_a_final_rollout_and_leads_only_to_known_phases() -> None:
    assert not [key for key in TABLE if key[0] == "done"]
    phases = {phase for phase, _ in TABLE} | {"done"}
    assert {to for transition in TABLE.values() for to in transition.to} <= phases


def test_a_marker_names_its_own_error_and_not_an_earlier_trys() -> None:
    play = Play()
    play.do(limits(max_attempts=2, timeout_s=10.0, retry_on=["ValueError"], backoff_s=0.0))
    play.begin("at-1")
    play.do(Attempt("ro-1", "at-1", "ended", outcome="failed", error_type="ValueError"))
    play.begin("at-2")
    play.wait(11)
    (marker,) = play.get(SpanBatch)
    assert marker.end is not None
    assert (marker.end.status, marker.end.error_type) == ("timeout", "timeout")


def test_an_end_that_names_another_rollout_with_an_attempts_id_is_not_that_attempts() -> None:
    play = Play()
    play.do(TASK)
    play.begin("at-1")
    play.do(Attempt("ro-2", "at-1", "ended", outcome="failed", final=True))
    assert (play.rollout.attempt_id, play.state.ignored) == ("at-1", 1)
    play.end("at-1")
    assert play.rollout.status == "succeeded"
