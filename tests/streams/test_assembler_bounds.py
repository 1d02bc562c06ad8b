"""However attempts behave, the assembler keeps within its memory and says what it closed."""

from __future__ import annotations

import tracemalloc
from dataclasses import replace

from events import Bench, batch, end, llm, rew, span

from spanloop.streams.messages import Emitted, Late, Output, Policy


def flagged(bench: Bench) -> list[str]:
    return [t.attempt_id for t in bench.trajectories() if "bounded" in t.flags]


def test_an_attempt_with_too_many_spans_is_closed_and_its_later_events_are_only_counted() -> None:
    bench = Bench(Policy(max_events=10))
    for i in range(11):
        bench.give(batch(span(f"s{i}", seq=i), begin=i == 0))
    assert flagged(bench) == ["at-1"]
    (assembly,) = [o.assembly for o in bench.out if isinstance(o, Emitted)]
    assert assembly.status == "dropped"
    new = bench.give(batch(span("s99", seq=99)), rew(1.0), batch(end=end()))
    assert [type(o) for o in new] == [Late] * 3
    assert len(bench.trajectories()) == 1
    assert (bench.assembler.attempts, bench.committable()) == ({}, {"spans": 13, "rewards": 1})


def test_an_attempt_with_too_many_bytes_is_closed() -> None:
    bench = Bench(Policy(max_bytes=100_000))
    bench.give(batch(llm("s1", range(30_000), [1]), begin=True))
    assert flagged(bench) == ["at-1"]
    assert bench.assembler.size == 0


def test_beyond_the_number_of_open_attempts_the_one_touched_longest_ago_is_closed() -> None:
    bench = Bench(Policy(max_open=2))
    for name in ("at-1", "at-2", "at-1", "at-3"):
        bench.give(batch(span("s" + name + str(bench.spans)), attempt=name, begin=True))
    assert flagged(bench) == ["at-2"]
    assert set(bench.assembler.attempts) == {"at-1", "at-3"}


def test_beyond_the_bytes_of_all_attempts_emitted_ones_are_forgotten_before_open_ones_are_closed() -> None:
    bench = Bench(Policy(max_total_bytes=100_000))
    bench.give(batch(llm("a", range(10_000), [1]), attempt="at-1", begin=True, end=end()))
    bench.give(batch(llm("b", range(10_000), [1]), attempt="at-2", begin=True))
    bench.give(batch(llm("c", range(10_000), [1]), attempt="at-3", begin=True))
    assert (flagged(bench), set(bench.assembler.attempts)) == ([], {"at-2", "at-3"})
    bench.give(batch(llm("d", range(10_000), [1]), attempt="at-4", begin=True))
    assert flagged(bench) == ["at-2"]


def test_ten_thousand_attempts_that_never_end_are_closed_and_leave_nothing_behind() -> None:  # SP-25
    bench = Bench(Policy(absolute_s=7200, max_remembered=1000))
    spans = [span(f"s{i}", None if i == 0 else "s0", end=None, seq=i) for i in range(5)]
    peaks: list[int] = []
    tracemalloc.start()
    for wave in range(4):
        for i in range(2500):
            bench.give(replace(batch(*spans, begin=True), attempt_id=f"at-{wave}-{i}"))
        bench.wait(7200)
        bench.out = list[Output](o for o in bench.out if isinstance(o, Emitted))[-1:]
        assert bench.assembler.attempts == {}
        peaks.append(tracemalloc.get_traced_memory()[0])
    tracemalloc.stop()
    assert bench.assembler.counts["emitted"] == 10_000
    assert bench.committable() == {"spans": 10_000, "rewards": 0}
    assert peaks[-1] < 1.2 * peaks[0]
    assert bench.trajectories()[-1].flags == ["no_end", "no_llm_calls", "unrewarded"]


def test_rewards_that_wait_for_a_final_attempt_do_not_wait_for_ever() -> None:
    bench = Bench(Policy(absolute_s=60))
    bench.give(rew(1.0, attempt=None))
    assert bench.committable() == {"spans": 0, "rewards": 0}
    new = bench.wait(61)
    assert [type(o) for o in new] == [Late]
    assert bench.committable() == {"spans": 0, "rewards": 1}


def test_a_revoked_partition_leaves_nothing_behind() -> None:
    bench = Bench()
    bench.give(batch(llm("a", range(10_000), [1]), begin=True), rew(1.0, attempt=None))
    bench.assembler.revoke(0)
    assert (bench.assembler.attempts, bench.assembler.size, bench.assembler.partitions) == ({}, 0, {})
    assert bench.wait(1e6) == []
