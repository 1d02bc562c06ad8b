"""Who gets what next: slots, fairness, priority, groups, pins, labels."""

from __future__ import annotations

from dataclasses import replace

from controller_rig import SECOND, restarted
from dispatch_rig import Play, group, tasks, worker

from spanloop.schemas.records import Attempt, Resource, Rollout, SpanBatch, Task, Worker
from spanloop.streams.controller import Placed
from spanloop.streams.controller_state import CHANGES_A_TICK


def test_no_more_is_given_than_there_are_slots_and_an_end_frees_one_at_once() -> None:
    play = Play()
    assert play.do(worker(2), *tasks(4)) == ["run-0", "run-1"]
    assert play.do() == []
    assert play.finish("run-1") == ["run-2"]
    assert play.finish("run-0", "run-2") == ["run-3"]


def test_an_old_heartbeat_does_not_free_a_slot_that_was_given_since() -> None:
    play = Play()
    play.do(worker(1), *tasks(2))
    play.do(Placed("wo-1", play.attempts["run-0"], 17))
    assert play.do(worker(1, seen=16)) == []
    assert play.do(worker(1, seen=17, running=(play.attempts["run-0"],))) == []


def test_a_heartbeat_that_has_seen_an_assignment_and_does_not_run_it_frees_its_slot() -> None:
    play = Play()
    play.do(worker(1), *tasks(2))
    play.do(Placed("wo-1", play.attempts["run-0"], 17))
    assert play.do(worker(1, seen=17)) == ["run-1"]


def test_a_slot_stays_taken_while_the_worker_still_runs_what_the_controller_ended() -> None:
    play = Play()
    play.do(worker(1), *tasks(2))
    first = play.attempts["run-0"]
    play.do(Placed("wo-1", first, 0), worker(1, seen=0, running=(first,)))
    play.do(Task("run-0", "run", action="cancel"))
    assert play.do(Attempt("run-0", first, "ended", outcome="cancelled", final=True)) == []
    assert play.do(worker(1, seen=0, running=(first,))) == []
    assert play.do(worker(1, seen=0)) == ["run-1"]


def test_an_end_frees_its_slot_though_the_last_heartbeat_still_names_it() -> None:
    play = Play()
    play.do(worker(1), *tasks(2))
    first = play.attempts["run-0"]
    play.do(Placed("wo-1", first, 0), worker(1, seen=0, running=(first,)))
    assert play.finish("run-0") == ["run-1"]


def test_a_worker_that_says_goodbye_or_has_no_slots_gets_nothing() -> None:
    assert Play().do(worker(0), *tasks(1)) == []
    assert Play().do(worker(2), replace(worker(2), alive=False), *tasks(1)) == []


def test_a_silent_worker_gets_nothing_until_it_is_heard_again() -> None:
    play = Play()
    play.do(worker(1))
    play.now += 11 * SECOND
    assert play.do() == []
    assert play.do(*tasks(1)) == []
    assert play.do(worker(1)) == ["run-0"]


def test_the_worker_that_is_the_least_full_is_chosen() -> None:
    play = Play()
    play.do(worker(3, "small"), worker(5, "large"), *tasks(6))
    assert [a.worker_id for a in play.orders()] == ["large", "small", "large", "small", "large", "large"]


def test_a_worker_that_has_just_come_gets_its_share_beside_one_that_holds_many_ready() -> None:
    play = Play()
    play.do(worker(12, "old"), *tasks(1, "first"))
    play.do(worker(4, "new"), *tasks(1, "second"))
    assert [a.worker_id for a in play.orders()] == ["new"]


def test_runs_take_turns_by_what_they_have_out() -> None:
    play = Play()
    given = play.do(worker(6), *tasks(9, "big"), *tasks(2, "small"))
    assert given == ["big-0", "small-0", "big-1", "small-1", "big-2", "big-3"]


def test_a_late_run_is_served_before_one_that_has_more_out() -> None:
    play = Play()
    play.do(worker(3), *tasks(9, "early"))
    play.do(*tasks(9, "late"))
    assert play.finish("early-0") == ["late-0"]


def test_a_higher_priority_goes_first_then_the_older_one() -> None:
    play = Play()
    play.do(*tasks(3), *tasks(1, rollout_id="urgent", priority=1))
    assert play.do(worker(4)) == ["urgent", "run-0", "run-1", "run-2"]


def test_a_groups_members_go_out_together_and_in_order() -> None:
    play = Play()
    a, b = group("a", 3), group("b", 3)
    play.do(a[0], b[2], b[0], a[2], a[1], b[1])
    assert play.do(worker(9)) == ["a-0", "a-1", "a-2", "b-0", "b-1", "b-2"]


def test_requirements_must_be_among_the_workers_labels() -> None:
    play = Play()
    needs = tasks(2, requirements=["gpu"])
    assert play.do(worker(4), *needs, *tasks(1, "other")) == ["other-0"]
    assert play.do(Worker("wo-2", slots=1, labels=["gpu", "eu"])) == ["run-0"]


def test_slots_count_across_a_restart_what_was_given_out_and_not_ended() -> None:
    play = Play()
    play.do(worker(2), *tasks(3))
    after = Play(restarted(play.rollouts.values(), play.now, worker(2)), attempts=play.attempts)
    assert after.do() == []
    assert after.finish("run-0") == ["run-2"]


def test_a_null_pin_is_the_newest_version_at_dispatch_and_stays_it() -> None:  # TN-12
    play = Play()
    play.do(worker(1), Resource("prompt", 1, "prompt"))
    play.do(*tasks(1, pins={"prompt": None}))
    assert [a.pins for a in play.orders()] == [{"prompt": 1}]
    play.do(Resource("prompt", 2, "prompt"))
    play.do(Task("run-0", "run", action="cancel"))
    (marker,) = [r for r in play.out if isinstance(r, SpanBatch)]
    assert marker.end is not None
    assert marker.end.context.pins == {"prompt": 1}


def test_a_pin_to_what_does_not_exist_yet_is_waited_for_without_holding_others_up() -> None:
    play = Play()
    play.do(worker(9), Resource("prompt", 1, "prompt"))
    waits = tasks(1, pins={"prompt": 3})
    assert play.do(*waits, *tasks(1, "other")) == ["other-0"]
    assert play.rollouts["run-0"].reason == "waits for resource 'prompt' version 3"
    assert play.do(Resource("prompt", 4, "prompt")) == []
    assert play.do(Resource("prompt", 3, "prompt")) == ["run-0"]
    assert [a.pins for a in play.orders()] == [{"prompt": 3}]


def test_a_resource_that_thousands_wait_for_wakes_so_many_a_tick() -> None:
    play, count = Play(), 2 * CHANGES_A_TICK + 500

    def told() -> int:
        return len([r for r in play.out if isinstance(r, Rollout)])

    play.do(*tasks(count, pins={"prompt": 1}))
    for waits in (CHANGES_A_TICK, 2 * CHANGES_A_TICK, count):
        play.do(worker(1))
        assert told() <= CHANGES_A_TICK
        assert len(play.state.waiting["prompt"]) == waits
    for given, queued in (["run-0"], CHANGES_A_TICK - 1), ([], 2 * CHANGES_A_TICK - 1), ([], count - 1):
        assert play.do(*([] if not given else [Resource("prompt", 1, "prompt")])) == given
        assert told() <= CHANGES_A_TICK + 1
        assert play.state.runs["run"].queued == queued


def test_a_run_whose_rollouts_wait_by_the_thousand_does_not_hold_up_another() -> None:
    play = Play()
    play.do(*tasks(CHANGES_A_TICK + 1, "big", pins={"prompt": 1}), *tasks(1, "small"))
    assert play.do(worker(2)) == ["small-0"]


def test_a_policys_pin_is_a_minimum() -> None:
    play = Play()
    play.do(worker(9))
    assert play.do(Resource("policy", 1, "policy"), *tasks(1, pins={"policy": 3})) == []
    assert play.do(Resource("policy", 5, "policy")) == ["run-0"]


def test_ten_thousand_queued_rollouts_cost_a_tick_nothing() -> None:
    play = Play()
    play.do(worker(1), *tasks(10_000))
    bucket = play.state.runs["run"].buckets[frozenset()]
    before = len(bucket.open)
    play.finish("run-0")
    assert before - len(bucket.open) == 1
