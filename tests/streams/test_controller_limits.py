"""Limits over all tries, back-off, and limits that no rollout can be run under."""

from __future__ import annotations

from dataclasses import replace

import pytest
from controller_rig import SECOND, T0, TASK, Play, limits

from spanloop.schemas.records import Assignment, Attempt, Credit, EndStatus, SpanBatch, Task, Worker
from spanloop.streams.controller import ControllerState, Tick, step
from spanloop.streams.controller_limits import doubled
from spanloop.streams.controller_state import CHANGES_A_TICK, TIMERS_SPARE


def end_of(play: Play) -> tuple[EndStatus, str | None, str | None, bool]:
    (marker,) = play.get(SpanBatch)
    assert marker.end is not None
    return marker.end.status, marker.end.error_type, marker.end.failure_class, marker.end.final


def test_a_rollout_that_waited_too_long_ends_with_an_empty_attempt_timed_out() -> None:
    play = Play()
    play.do(Worker("wo-1", slots=4, alive=False), limits(rollout_timeout_s=60.0))
    assert play.wait(59) == []
    play.wait(1)
    assert end_of(play) == ("timeout", "rollout_timeout", "infra", True)
    (marker,) = play.get(SpanBatch)
    assert marker.end is not None
    assert "rollout_timeout_s = 60 s" in (marker.end.reason or "")
    play.end("at-1", "timeout")
    assert (play.rollout.status, play.rollout.final, play.rollout.dispatches) == ("failed", True, 0)


def test_the_rollouts_limit_cuts_a_try_short_and_leaves_no_other() -> None:
    play = Play()
    play.do(limits(rollout_timeout_s=60.0, timeout_s=50.0, max_attempts=9, retry_on=["timeout", "failed"], backoff_s=5))
    play.begin("at-1")
    play.wait(40)
    play.beat("at-1")
    play.end("at-1", "failed", final=False)
    play.wait(5)
    (order,) = play.get(Assignment)
    assert order.deadline_ns == T0 + 60 * SECOND
    play.begin("at-2")
    play.wait(15)
    assert end_of(play) == ("timeout", "rollout_timeout", "infra", True)
    assert [a.action for a in play.get(Assignment)] == ["cancel"]
    play.end("at-2", "timeout")
    assert (play.rollout.status, play.rollout.tries) == ("failed", 2)


def test_a_try_that_ends_after_the_rollouts_limit_is_not_followed_by_another() -> None:
    play = Play()
    play.do(limits(rollout_timeout_s=60.0, claim_s=59.0, max_attempts=2))
    play.wait(59.9)
    assert play.rollout.closing == "unclaimed"
    play.wait(1)
    play.end("at-1", "unclaimed", final=False)
    assert end_of(play) == ("timeout", "rollout_timeout", "infra", True)


def test_the_rollouts_limit_outlives_a_restart_and_does_not_go_by_the_clients_clock() -> None:
    play = Play()
    play.do(Worker("wo-1", slots=4, alive=False), limits(rollout_timeout_s=60.0))
    play.wait(30)
    play.restart()
    play.do(Worker("wo-1", slots=4, alive=False))
    play.wait(29)
    assert play.get(SpanBatch) == []
    play.wait(1)
    assert end_of(play)[0] == "timeout"


def test_the_wait_between_tries_doubles_up_to_its_bound() -> None:
    play = Play()
    play.do(limits(max_attempts=9, retry_on=["failed"], backoff_s=1.0, backoff_max_s=3.0))
    for n, pause_s in enumerate([1.0, 2.0, 3.0, 3.0], 1):
        play.end(f"at-{n}", "failed", final=False)
        assert play.rollout.not_before_ns == play.now + int(pause_s * SECOND)
        play.wait(pause_s - 0.01)
        assert play.get(Assignment) == []
        play.wait(0.01)
        assert [a.attempt_number for a in play.get(Assignment)] == [n + 1]


def test_what_became_overdue_while_no_controller_ran_ends_over_several_ticks_and_none_of_it_is_given_out() -> None:
    play, count = Play(), 2 * CHANGES_A_TICK + 500
    play.do(Worker("wo-1", alive=False))
    play.do(*(replace(limits(rollout_timeout_s=60.0), rollout_id=f"ro-{i}") for i in range(count)))
    play.now += 3600 * SECOND
    play.restart()
    for closed in (CHANGES_A_TICK, CHANGES_A_TICK, 500):
        play.do(Worker("wo-1", slots=4))
        assert len(play.get(SpanBatch)) == closed
        assert play.get(Assignment) == []


def test_a_wait_that_was_doubled_for_days_is_still_a_number() -> None:
    assert doubled(1.0, 100_000, 30.0) == 30.0
    assert doubled(0.0, 100_000, 30.0) == 0.0


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -1.0, 1e18])
@pytest.mark.parametrize("name", ["timeout_s", "unresponsive_s", "claim_s", "rollout_timeout_s", "backoff_s"])
def test_limits_that_no_clock_can_hold_fail_their_rollout_and_not_the_controller(name: str, value: float) -> None:
    play = Play()
    play.do(limits(**{name: value}))
    assert end_of(play)[1:] == ("invalid_task", "infra", True)
    assert name in (play.rollout.reason or "")
    play.do(Attempt("ro-1", "at-1", "ended", outcome="failed", final=True, reason=play.rollout.reason))
    play.restart()
    assert play.do(Task("ro-2", "run")) != []


@pytest.mark.parametrize(
    "bad", [{"run_concurrency": 0}, {"failure_reward": float("nan")}, {"failure_reward": -1e31}, {"timeout_s": 0.0}]
)
def test_limits_that_allow_nothing_or_count_for_nothing_fail_their_rollout(bad: dict[str, float]) -> None:
    play = Play()
    play.do(limits(**bad))
    assert end_of(play)[1] == "invalid_task"


@pytest.mark.parametrize(
    ("bad", "said"),
    [
        ({"group_size": 0, "sample": 0}, "group_size is 0, expected at least 1"),
        ({"group_size": -3, "sample": 0}, "group_size is -3, expected at least 1"),
        ({"sample": -1}, "sample is -1 in a group of group_size 4, expected 0 to 3; group_size is how many"),
        ({"sample": 4}, "sample is 4 in a group of group_size 4, expected 0 to 3; group_size is how many"),
        ({"group_id": None}, "group_size is 4 and group_id null"),
        ({"sample": 2, "group_size": 1}, "sample is 2 in a group of group_size 1, expected 0 to 0"),
        ({"reward_deadline_s": float("inf")}, "reward_deadline_s is inf, expected seconds up to 1e+09"),
        ({"reward_deadline_s": float("nan")}, "reward_deadline_s is nan, expected seconds up to 1e+09"),
        ({"reward_deadline_s": -5.0}, "reward_deadline_s is -5.0, expected seconds up to 1e+09"),
        ({"reward_deadline_s": 1e18}, "reward_deadline_s is 1e+18, expected seconds up to 1e+09"),
        ({"pins": {"prompt": 1, "": None}}, "pins names a resource ''"),
    ],
)
def test_a_task_that_would_stall_or_mislead_who_reads_its_trajectory_fails_with_what_was_expected(
    bad: dict[str, object], said: str
) -> None:
    play = Play()
    play.do(replace(TASK, **bad))  # pyright: ignore[reportArgumentType]  # names checked by replace
    assert end_of(play)[1:] == ("invalid_task", "infra", True)
    assert said in (play.rollout.reason or "")


@pytest.mark.parametrize("gamma", [-0.1, 1.5, float("nan")])
def test_a_discount_that_is_none_fails_its_rollout(gamma: float) -> None:
    play = Play()
    play.do(replace(limits(), credit=Credit("discounted", gamma)))
    assert end_of(play)[1] == "invalid_task"
    assert "credit.gamma" in (play.rollout.reason or "")


def test_ten_thousand_attempts_that_never_end_are_timed_out_and_leave_nothing_behind() -> None:  # SP-25
    state, now, most = ControllerState(), T0, 0
    for n in range(100):
        name = [f"ro-{n}-{i}" for i in range(100)]
        batch = [limits(timeout_s=7200.0, unresponsive_s=1e6, rollout_timeout_s=86400.0 * 7)]
        tasks = [Task(r, "run", mode="val", limits=batch[0].limits) for r in name]
        out = [r for e in (Worker("wo-1", slots=100), *tasks, Tick()) for r in step(state, e, now)]
        given = [r for r in out if isinstance(r, Assignment) and r.task]
        begun = [Attempt(a.task.rollout_id, a.attempt_id, "running") for a in given if a.task]
        for event in (*begun, Tick()):
            step(state, event, now)
        now += 7200 * SECOND
        closed = [m for m in step(state, Tick(), now) if isinstance(m, SpanBatch)]
        assert {m.end.status for m in closed if m.end} == {"timeout"}
        assert len(closed) == 100
        ends = [Attempt(m.rollout_id, m.attempt_id, "ended", outcome="timeout", final=True) for m in closed]
        for event in (*ends, Worker("wo-1", slots=100), Tick()):
            step(state, event, now)
        most = max(most, len(state.timers))
    assert (state.live, state.attempts, state.dirty, state.runs) == ({}, {}, {}, {})
    assert len(state.finished) == 10_000
    assert most <= TIMERS_SPARE + 10 * 100


def test_a_task_longer_than_any_poll_interval_stays_with_its_worker_and_is_done_once() -> None:  # BR-7
    play = Play()
    play.do(limits(timeout_s=1000.0))
    play.begin("at-1")
    for _ in range(400):
        play.wait(1)
        assert play.out == []
        play.beat("at-1")
        assert play.get(Assignment) == []
    play.end("at-1")
    assert (play.rollout.status, play.rollout.dispatches) == ("succeeded", 1)
