"""However attempts behave, the assembler keeps within its memory and says what it closed."""

from __future__ import annotations

import gc
import sys
from dataclasses import replace

import pytest
from events import Bench, batch, end, llm, rew, span

from spanloop.schemas.records import Attempt
from spanloop.streams.messages import Emitted, Late, Policy


def flagged(bench: Bench) -> list[str]:
    return [t.attempt_id for t in bench.trajectories() if "bounded" in t.flags]


def test_an_attempt_with_too_many_spans_is_closed_and_of_its_later_events_only_the_end_is_put_in() -> None:
    bench = Bench(Policy(max_events=10))
    for i in range(11):
        bench.give(batch(span(f"s{i}", seq=i), begin=i == 0))
    assert flagged(bench) == ["at-1"]
    (assembly,) = [o.assembly for o in bench.out if isinstance(o, Emitted)]
    assert assembly.status == "dropped"
    new = bench.give(batch(span("s99", seq=99)), rew(1.0), batch(end=end()))
    assert [type(o) for o in new] == [Late, Late, Attempt, Emitted]
    assert len(bench.trajectories()) == 2
    bench.wait(31)
    assert (bench.assembler.attempts, bench.committable()) == ({}, {"spans": 13, "rewards": 1})


def held(bench: Bench) -> set[str]:
    return {attempt.attempt_id for attempt in bench.assembler.attempts.values()}


def test_an_attempt_with_too_many_bytes_is_closed() -> None:
    bench = Bench(Policy(max_bytes=100_000))
    bench.give(batch(llm("s1", range(30_000), [1]), begin=True))
    assert flagged(bench) == ["at-1"]
    assert bench.assembler.memory.size == 0


def test_beyond_the_number_of_open_attempts_the_one_touched_longest_ago_is_closed() -> None:
    bench = Bench(Policy(max_open=2))
    for name in ("at-1", "at-2", "at-1", "at-3"):
        bench.give(batch(span("s" + name + str(bench.spans)), attempt=name, begin=True))
    assert flagged(bench) == ["at-2"]
    assert held(bench) == {"at-1", "at-3"}


def test_beyond_the_bytes_of_all_attempts_emitted_ones_are_forgotten_before_open_ones_are_closed() -> None:
    bench = Bench(Policy(max_total_bytes=100_000))
    bench.give(batch(llm("a", range(10_000), [1]), attempt="at-1", begin=True, end=end()))
    bench.give(batch(llm("b", range(10_000), [1]), attempt="at-2", begin=True))
    bench.give(batch(llm("c", range(10_000), [1]), attempt="at-3", begin=True))
    assert (flagged(bench), held(bench)) == ([], {"at-2", "at-3"})
    bench.give(batch(llm("d", range(10_000), [1]), attempt="at-4", begin=True))
    assert flagged(bench) == ["at-2"]


def test_finished_attempts_are_forgotten_before_one_that_goes_on_is_closed_whoever_was_touched_last() -> None:
    bench = Bench(Policy(max_open=3))
    bench.give(batch(span("s0"), attempt="live", begin=True))
    for i in range(10):
        bench.give(batch(span("s0"), attempt=f"at-{i}", begin=True, end=end()))
        bench.give(rew(1.0, rid=f"rw-{i}", attempt=f"at-{i}"))
    assert (flagged(bench), held(bench)) == ([], {"live", "at-8", "at-9"})
    bench.give(batch(span("late"), attempt="at-8", producer="gateway"))  # emitted again: at-9 is the older one now
    bench.give(batch(span("s0"), attempt="live-2", begin=True))
    assert held(bench) == {"live", "live-2", "at-8"}
    bench.give(batch(span("s0"), attempt="live-3", begin=True))
    assert (flagged(bench), held(bench)) == ([], {"live", "live-2", "live-3"})
    bench.give(batch(span("s0"), attempt="live-4", begin=True))
    assert flagged(bench) == ["live"]


def test_an_attempt_in_its_grace_is_emitted_early_rather_than_closed_where_memory_runs_short() -> None:
    bench = Bench(Policy(max_open=1))
    bench.give(batch(llm("s1", [1], [2]), begin=True, end=end(span_count=2)), batch(span("s0"), attempt="at-2"))
    assert bench.last().flags == ["missing_spans", "unrewarded"]
    wanted = bench.give(batch(llm("s2", [1, 2, 3], [4], seq=2)))
    bench.reread(*wanted)
    assert (bench.last().revision, bench.last().flags) == (2, ["unrewarded"])


def blocks() -> int:
    """Blocks of memory that Python holds, garbage left out: what is alive, whatever the machine's load."""
    gc.collect()
    return sys.getallocatedblocks()


def test_ten_thousand_attempts_that_never_end_are_closed_and_leave_nothing_behind() -> None:  # SP-25
    bench = Bench(Policy(absolute_s=7200, max_remembered=1000))
    spans = [span("s0", end=None), span("s1", "s0", end=None, seq=1)]
    open_blocks, left_blocks = list[int](), list[int]()
    for wave in range(4):
        for i in range(2500):
            bench.give(replace(batch(*spans, begin=True), attempt_id=f"at-{wave}-{i}"))
        bench.out.clear()
        bench.log.clear()
        open_blocks.append(blocks())
        bench.wait(7200)
        assert (bench.last(f"at-{wave}-0").flags, bench.assembler.attempts) == (
            ["no_end", "no_llm_calls", "unrewarded"], {},
        )  # fmt: skip
        bench.out.clear()
        bench.log.clear()
        left_blocks.append(blocks())
    assert (bench.assembler.counts["emitted"], bench.assembler.memory.size) == (10_000, 0)
    assert bench.committable() == {"spans": 10_000, "rewards": 0}
    held = open_blocks[-1] - left_blocks[-1]
    assert held > 2500  # the figure sees what is held
    assert abs(left_blocks[-1] - left_blocks[0]) < held / 20
    assert abs(open_blocks[-1] - open_blocks[1]) < held / 20


def test_an_attempt_of_two_hours_is_closed_by_the_marker_of_its_time_out_and_freed() -> None:  # SP-25
    bench = Bench(Policy(hold_s=30))
    for minute in range(120):
        bench.give(batch(span(f"s{minute}", None if minute == 0 else "s0", end=None, seq=minute), begin=minute == 0))
        bench.wait(60)
    assert (bench.trajectories(), bench.committable()["spans"]) == ([], 0)
    bench.give(batch(producer="controller", end=end("timeout", failure_class="infra")))
    assert (bench.last().status, bench.last().span_count) == ("timeout", 120)
    bench.wait(31)
    assert (bench.assembler.attempts, bench.assembler.memory.size, bench.committable()["spans"]) == ({}, 0, 121)


@pytest.mark.parametrize("whole", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_a_rollout_of_a_hundred_thousand_spans_does_not_stop_a_thousand_small_ones(whole: bool) -> None:
    policy = Policy(max_events=200_000) if whole else Policy()
    bench, step, large = Bench(policy), span("step", None), 100_000
    for i in range(1_000):
        part = [replace(step, span_id=f"{k:016x}", sequence=k) for k in range(100 * i, 100 * (i + 1))]
        last = i == 999
        bench.give(batch(*part, attempt="large", begin=i == 0, end=end(span_count=large) if last else None))
        bench.give(batch(step, llm("c", [1], [2], parent="step", seq=1), attempt=f"at-{i}", begin=True, end=end()))
        assert (bench.last(f"at-{i}").span_count, bench.last(f"at-{i}").flags) == (2, ["unrewarded"])
    found = bench.last("large")
    if whole:
        assert (found.span_count, found.flags) == (large, ["no_llm_calls", "unrewarded"])
    else:
        assert (found.revision, found.final, "bounded" in found.flags) == (20_100, True, True)
        assert bench.assembler.counts["bounded_events"] == 1
    bench.wait(60)
    assert (bench.assembler.attempts, bench.assembler.memory.size, bench.committable()["spans"]) == ({}, 0, 2_000)


def test_each_closing_by_a_bound_is_counted_under_the_bounds_name() -> None:
    counts: dict[str, int] = {}
    call = llm("a", range(5_000), [1])
    for policy in (Policy(max_events=1), Policy(max_bytes=10_000), Policy(max_open=1), Policy(max_total_bytes=30_000)):
        bench = Bench(policy)
        bench.give(batch(call, span("b"), begin=True), batch(call, attempt="at-2", begin=True))
        counts |= {k: n for k, n in bench.assembler.counts.items() if k.startswith("bounded_")}
        assert {o.bound for o in bench.out if isinstance(o, Emitted)} <= {"events", "bytes", "open", "total_bytes"}
    assert counts == {"bounded_events": 1, "bounded_bytes": 2, "bounded_open": 1, "bounded_total_bytes": 1}


def test_rewards_that_wait_for_a_final_attempt_do_not_wait_for_ever() -> None:
    bench = Bench(Policy(absolute_s=60))
    bench.give(rew(1.0, attempt=None))
    assert bench.committable() == {"spans": 0, "rewards": 0}
    new = bench.wait(61)
    assert [type(o) for o in new] == [Late]
    assert bench.committable() == {"spans": 0, "rewards": 1}


def test_too_many_rewards_that_wait_for_a_final_attempt_drive_out_the_oldest() -> None:
    bench = Bench(Policy(max_floating=2))
    bench.give(*(rew(1.0, rid=f"rw-{i}", rollout=f"ro-{i}", attempt=None) for i in range(4)))
    new = bench.wait(1)
    assert [o.rollout_id for o in new if isinstance(o, Late)] == ["ro-0", "ro-1"]
    assert bench.committable() == {"spans": 0, "rewards": 2}


def test_rewards_count_among_the_bytes_in_memory() -> None:
    bench = Bench(Policy(max_bytes=100_000))
    bench.give(batch(span("s0"), begin=True), *(rew(1.0, rid=f"rw-{i}") for i in range(100)))
    assert (flagged(bench), bench.assembler.memory.size) == (["at-1"], 0)


def test_a_revoked_partition_leaves_nothing_behind() -> None:
    bench = Bench()
    bench.give(batch(llm("a", range(10_000), [1]), begin=True), rew(1.0, attempt=None))
    bench.assembler.revoke(0)
    assert (bench.assembler.attempts, bench.assembler.memory.size, bench.assembler.partitions) == ({}, 0, {})
    assert bench.wait(1e6) == []
