"""Attempts whose events are read again: who gets them, and which rewards and ends count then."""

from __future__ import annotations

import pytest
from events import Bench, batch, end, llm, rew, span

from spanloop.schemas.records import Attempt
from spanloop.streams.attempt import OpenAttempt
from spanloop.streams.messages import Emitted, Late, Policy


def test_a_reread_begun_before_its_partition_was_lost_and_taken_again_brings_nothing() -> None:
    bench = Bench()
    bench.give(batch(llm("s1", [1], [2]), begin=True, end=end()))
    bench.wait(60)
    first = bench.give(rew(1.0))
    known = [o.assembly for o in bench.out if isinstance(o, Emitted)]
    bench.assembler.assign(0, spans=1, rewards=0, assemblies=known)
    second = bench.assembler.add(bench.log[-1], bench.now)
    assert bench.reread(*first) == []
    bench.reread(*second)
    assert (bench.last().revision, bench.last().final_reward) == (2, 1.0)


def test_a_late_root_is_never_emitted_alone_whatever_reread_ends_first() -> None:
    bench = Bench(Policy(max_open=1))
    bench.give(batch(llm("s1", [1], [2], parent="s0"), begin=True, end=end()))
    bench.wait(60)
    first = bench.give(batch(span("s0")))
    bench.give(batch(span("x"), attempt="at-2", begin=True))  # no room: what is late of at-1 is let go of
    second = bench.give(batch(span("s0", end=None)))
    before = len(bench.trajectories())
    assert bench.reread(*first) == []
    assert len(bench.trajectories()) == before
    bench.reread(*second)
    assert (bench.last().span_count, len(bench.last().rows)) == (2, 1)


def test_a_duplicate_of_what_was_emitted_costs_no_look_at_all_the_events(monkeypatch: pytest.MonkeyPatch) -> None:
    bench = Bench()
    first, last = batch(llm("s1", [1], [2]), begin=True), batch(end=end())
    bench.give(first, rew(1.0), last)
    looks: list[str] = []
    whole = OpenAttempt.digest

    def counted(attempt: OpenAttempt) -> str:
        looks.append(attempt.attempt_id)
        return whole(attempt)

    monkeypatch.setattr(OpenAttempt, "digest", counted)
    bench.give(first, rew(1.0), last)
    assert (looks, len(bench.trajectories())) == ([], 1)
    bench.give(rew(0.5, rid="rw-2"))
    assert (looks, bench.last().revision) == (["at-1"], 3)


def test_a_reread_of_a_partition_that_was_lost_brings_nothing() -> None:
    bench = Bench()
    bench.give(batch(llm("s1", [1], [2]), begin=True, end=end()))
    bench.wait(60)
    wanted = bench.give(rew(1.0))
    bench.assembler.revoke(0)
    assert bench.reread(*wanted) == []


def test_a_second_end_marker_does_not_make_an_attempt_final_that_was_not() -> None:
    for waited_s in (0.0, 60.0):  # remembered, or read again
        bench = Bench()
        bench.give(rew(0.5, attempt=None), batch(llm("s1", [1], [2]), begin=True, end=end("failed", final=False)))
        bench.wait(waited_s)
        bench.reread(*bench.give(batch(producer="controller", end=end("timeout", final=True))))
        assert [o.final for o in bench.out if isinstance(o, Attempt) and o.status == "ended"] == [False, False]
        bench.give(batch(llm("s2", [1], [2]), attempt="at-2", begin=True, end=end()))
        bench.give(rew(1.0, attempt=None, rid="rw-2", created=950))
        assert (bench.last().final_reward, bench.last("at-2").final_reward) == (None, 1.0)
        assert bench.last("at-2").revision == 3


def test_the_first_end_marker_of_a_trace_that_had_idled_out_gives_it_its_rollouts_rewards() -> None:
    bench = Bench()
    bench.give(rew(0.5, attempt=None), batch(llm("s1", [1], [2])))
    bench.wait(60)
    bench.reread(*bench.give(batch(end=end())))
    assert (bench.last().final, bench.last().final_reward) == (True, 0.5)
    assert bench.committable() == {"spans": 2, "rewards": 1}


def test_a_reward_waits_for_the_spans_of_its_attempt_as_long_as_for_a_final_attempt() -> None:
    for attempt in ("at-1", None):
        bench = Bench(Policy(idle_s=600, absolute_s=86_400))
        bench.give(rew(1.0, attempt=attempt))
        assert bench.wait(86_000) == []
        assert bench.committable()["rewards"] == 0
        bench.give(batch(llm("s1", [1], [2]), begin=True, end=end()))
        assert (bench.last().final_reward, bench.last().revision) == (1.0, 2)
        alone = Bench(Policy(idle_s=600, absolute_s=86_400))
        alone.give(rew(1.0, attempt=attempt))
        assert [type(o) for o in alone.wait(86_401)] == [Late]
        assert alone.committable()["rewards"] == 1
