"""What a trainer's credit holds back: groups that are started and not decided."""

from __future__ import annotations

from dataclasses import replace

import pytest
from controller_rig import SECOND, restarted
from dispatch_rig import Play, group, tasks, trainer, worker

from spanloop.schemas.records import Attempt, Decision, Limits, Worker
from spanloop.streams import controller_state
from spanloop.streams.controller_state import DECISIONS_KEPT_S


def test_credit_bounds_the_train_rollouts_of_groups_that_are_not_closed() -> None:
    play = Play()
    play.do(worker(100), trainer(8))
    assert play.do(*group("a", 4), *group("b", 4), *group("c", 4)) == [f"{g}-{i}" for g in "ab" for i in range(4)]
    assert play.finish("a-0", "a-1", "a-2", "a-3") == []
    assert play.do(Decision("tr-1", 1, "run", "a")) == ["c-0", "c-1", "c-2", "c-3"]
    assert play.do(Decision("tr-1", 1, "run", "a")) == []


def test_a_group_that_does_not_fit_the_credit_left_waits_as_a_whole() -> None:
    play = Play()
    play.do(worker(100), trainer(6))
    assert play.do(*group("a", 4), *group("b", 4)) == ["a-0", "a-1", "a-2", "a-3"]
    assert play.do(Decision("tr-1", 1, "run", "a")) == ["b-0", "b-1", "b-2", "b-3"]


def test_a_member_that_comes_after_its_group_was_decided_takes_no_credit_for_ever() -> None:
    play, decided = Play(), Decision("tr-1", 1, "run", "a")
    a, b = group("a", 4), group("b", 4)
    play.do(worker(100), trainer(4), *a[:3])
    play.finish("a-0", "a-1", "a-2")
    assert play.do(decided) == []
    assert play.do(a[3]) == ["a-3"]
    after = Play(restarted(play.rollouts.values(), play.now, worker(100), trainer(4), decided), attempts=play.attempts)
    for one in (play, after):
        assert one.finish("a-3") == []
        assert one.state.runs["run"].outstanding == 0
        assert one.do(*b) == ["b-0", "b-1", "b-2", "b-3"]


def test_a_group_decided_before_any_member_was_known_takes_no_credit() -> None:
    play = Play()
    assert play.do(Decision("tr-1", 1, "run", "a"), worker(100)) == []
    assert play.do(trainer(4), *group("a", 4), *group("b", 4)) == [f"{g}-{i}" for g in "ab" for i in range(4)]


def test_members_that_wait_for_credit_are_given_out_once_their_group_is_decided() -> None:
    play = Play()
    assert play.do(worker(100), trainer(4), *group("a", 4), *group("b", 4)) == [f"a-{i}" for i in range(4)]
    assert play.do(Decision("tr-1", 0, "run", "b", outcome="dropped")) == [f"b-{i}" for i in range(4)]
    assert play.state.runs["run"].outstanding == 4


def test_a_decision_is_forgotten_with_its_run_once_a_restart_would_not_find_it() -> None:
    play = Play()
    play.do(Decision("tr-1", 1, "old", "a", at_ns=play.now))
    assert play.state.runs.keys() == {"old"}
    play.now += int(DECISIONS_KEPT_S) * SECOND
    play.do(Decision("tr-1", 1, "new", "a", at_ns=play.now))
    assert play.state.runs.keys() == {"new"}
    assert play.state.decided.keys() == {("new", "a")}


def test_of_too_many_decisions_the_oldest_are_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(controller_state, "MAX_DECIDED", 2)
    play = Play()
    for name in ("a", "b", "c"):
        play.do(Decision("tr-1", 1, "run", name, at_ns=play.now))
    assert list(play.state.decided) == [("run", "b"), ("run", "c")]
    assert play.state.runs["run"].closed == {"b", "c"}


def test_a_group_larger_than_the_whole_credit_goes_alone() -> None:
    play = Play()
    play.do(worker(100), trainer(2))
    assert play.do(*group("a", 4), *group("b", 4)) == ["a-0", "a-1", "a-2", "a-3"]


def test_members_of_a_started_group_and_other_modes_do_not_wait_for_credit() -> None:
    play = Play()
    play.do(worker(2), trainer(4))
    play.do(*group("a", 4), *group("b", 4), *tasks(1, rollout_id="val-0"))
    assert set(play.finish("a-0")) == {"a-2"}
    assert play.do(worker(100)) == ["a-3", "val-0"]


def test_a_retry_takes_no_further_credit() -> None:
    play = Play()
    play.do(worker(100), trainer(1))
    task = replace(group("a", 1)[0], limits=Limits(max_attempts=2, backoff_s=0))
    play.do(task)
    lost = Attempt("a-0", play.attempts["a-0"], "ended", outcome="unresponsive", failure_class="infra")
    assert play.do(lost) == ["a-0"]


@pytest.mark.parametrize("beat", [trainer(None), trainer(4, alive=False)])
def test_without_a_bound_or_a_trainer_everything_goes_out(beat: Worker) -> None:
    play = Play()
    play.do(worker(100), trainer(4), beat)
    assert len(play.do(*group("a", 4), *group("b", 4))) == 8


def test_no_credit_holds_train_tasks_back() -> None:
    play = Play()
    play.do(worker(100), trainer(0))
    assert play.do(*group("a", 4)) == []


def test_credit_counts_across_a_restart_what_was_given_out_and_not_decided() -> None:
    play = Play()
    play.do(worker(100), trainer(8), *group("a", 4), *group("b", 4), *group("c", 4))
    play.finish("a-0", "a-1", "a-2", "a-3")
    after = Play(restarted(play.rollouts.values(), play.now, worker(100), trainer(8)))
    assert after.do() == []
    assert after.do(Decision("tr-1", 1, "run", "a")) == ["c-0", "c-1", "c-2", "c-3"]
