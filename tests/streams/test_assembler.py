"""Spans and rewards become trajectories, whatever order they come in."""

from __future__ import annotations

import itertools
import sys
from dataclasses import replace

import pytest
from events import Bench, batch, end, llm, rew, span, span_id

from spanloop.schemas.packed import unpack_ids
from spanloop.schemas.records import Attempt, AttemptContext, VersionRun
from spanloop.schemas.semconv import AGENT
from spanloop.streams.assembly import AssemblyRules
from spanloop.streams.messages import Policy, Refused


def rows(bench: Bench, attempt: str = "at-1") -> list[list[int]]:
    return [unpack_ids(row.token_ids) for row in bench.last(attempt).rows]


def test_parallel_children_of_one_parent_keep_their_agents() -> None:  # TR-1
    bench = Bench()
    root = span("s0", start=0, end=900)
    agents = [span(f"a{i}", "s0", 10 + i, 500, attrs={AGENT: f"agent({i})"}, seq=i) for i in range(8)]
    calls = [llm(f"m{i}", [i, 100], [i + 1], parent=f"a{i}", start=20 + i, seq=10 + i) for i in range(8)]
    shuffled = [*agents[3:], *calls[::-1], *agents[:3]]
    bench.give(batch(*shuffled, begin=True))
    bench.give(batch(root, end=end(span_count=17)))
    found = bench.last()
    assert len(found.rows) == 8
    assert {c.agent_path for c in found.calls} == {f"agent({i})" for i in range(8)}
    assert {(c.span_id, c.agent_path) for c in found.calls} == {(span_id(f"m{i}"), f"agent({i})") for i in range(8)}
    assert "orphaned" not in found.flags


def test_sequential_runs_are_three_roots_not_a_chain() -> None:  # TR-3
    bench = Bench()
    runs = [span(f"run{i}", None, 1000 * i, 1000 * i + 900, attrs={AGENT: f"run{i}"}, seq=2 * i) for i in range(3)]
    calls = [llm(f"m{i}", [i], [9], parent=f"run{i}", start=1000 * i + 10, seq=2 * i + 1) for i in range(3)]
    bench.give(batch(*itertools.chain(*zip(runs, calls, strict=True)), begin=True, end=end()))
    assert [c.agent_path for c in bench.last().calls] == ["run0", "run1", "run2"]


def test_a_skewed_clock_is_flagged_and_changes_no_order() -> None:  # TR-4
    bench = Bench()
    root = span("s0", None, 0, 1000)
    first = llm("s1", [1], [2], parent="s0", start=-500, end=-200, seq=2)
    later = llm("s2", [1, 2, 3], [4], parent="s0", start=-900, end=-800, seq=1)
    bench.give(batch(root, begin=True), batch(later, first, producer="b"), rew(1.0, created=1100), batch(end=end()))
    found = bench.last()
    assert [c.span_id for c in found.calls] == [span_id("s1"), span_id("s2")]
    assert "skew" in found.flags
    assert [c.credit for c in found.calls] == [1.0, 1.0]


def test_a_span_sent_twice_counts_once() -> None:  # TR-6
    bench = Bench()
    one = llm("s1", [1], [10])
    bench.give(batch(one, begin=True), batch(one), rew(1.0), batch(end=end()))
    found = bench.last()
    assert (found.span_count, found.revision, len(found.rows)) == (1, 2, 1)
    assert "conflict" not in found.flags


@pytest.mark.parametrize("swapped", [False, True])
def test_of_two_contents_of_one_span_the_higher_sequence_wins(swapped: bool) -> None:  # TR-7
    bench = Bench()
    both = [batch(llm("s1", [1], [10], seq=1)), batch(llm("s1", [1], [11], seq=2))]
    bench.give(*(both[::-1] if swapped else both), batch(end=end()))
    assert rows(bench) == [[1, 11]]
    assert "conflict" in bench.last().flags
    assert bench.assembler.counts["conflicts"] == 1


def test_an_orphaned_parent_is_waited_for_and_then_flagged() -> None:  # SP-1
    bench = Bench()
    bench.give(batch(llm("s1", [1, 2], [3], parent="s0")), rew(1.0), batch(end=end()))
    assert bench.trajectories() == []
    bench.wait(2.0)
    found = bench.last()
    assert rows(bench) == [[1, 2, 3]]
    assert "orphaned" in found.flags
    assert found.final_reward == 1.0


def test_all_orders_of_arrival_give_the_same_trajectory() -> None:  # SP-2
    spans = [
        span("s0", None, 0, 900, seq=0),
        span("s1", "s0", 1, 800, seq=1, attrs={AGENT: "a"}),
        span("s2", "s1", 2, 700, seq=2),
        llm("s3", [1], [2], parent="s2", seq=3),
    ]
    seen: set[str] = set()
    for order in itertools.permutations(range(4)):
        bench = Bench()
        messages = [replace(bench.message(batch(s)), offset=i) for i, s in enumerate(spans)]
        for i in order:
            bench.out += bench.assembler.add(messages[i], bench.now)
        bench.give(batch(end=end()))
        seen.add(repr(bench.last()))
    assert len(seen) == 1


def test_a_span_after_the_end_marker_is_waited_for_within_the_grace() -> None:  # SP-3
    bench = Bench(Policy(grace_s=5.0))
    bench.give(batch(llm("s1", [1], [2]), begin=True, end=end(span_count=2)))
    bench.wait(4.0)
    assert bench.trajectories() == []
    bench.give(batch(llm("s2", [1, 2, 3], [4], seq=2)))
    assert rows(bench) == [[1, 2, 3, 4]]
    assert (bench.last().revision, bench.last().flags) == (2, ["unrewarded"])


def test_a_span_of_another_producer_after_emission_makes_a_higher_revision() -> None:  # SP-3
    bench = Bench(Policy(grace_s=5.0))
    bench.give(batch(llm("s1", [1], [2]), begin=True, end=end(span_count=1)))
    bench.wait(6.0)
    bench.give(batch(llm("s2", [1, 2, 3], [4], seq=2), producer="gateway"))
    assert [(t.attempt_id, t.revision) for t in bench.trajectories()] == [("at-1", 1), ("at-1", 2)]
    assert rows(bench) == [[1, 2, 3, 4]]


def test_a_reward_before_the_call_it_is_for_counts() -> None:  # SP-4
    for reward, mode in ((rew(1.0, sequence=1), "identical"), (rew(1.0, "s1", sequence=1), "step")):
        bench = Bench()
        bench.give(reward, batch(llm("s1", [1], [2], seq=2), begin=True), batch(end=end(mode=mode)))
        assert [c.credit for c in bench.last().calls] == [1.0]


def test_an_attempt_without_model_calls_is_told_apart_from_reward_zero() -> None:  # SP-5
    bench = Bench()
    bench.give(rew(1.0), batch(end=end()))
    found = bench.last()
    assert (found.rows, found.calls, found.final_reward) == ([], [], 1.0)
    assert found.flags == ["no_llm_calls"]


def test_an_attempt_without_a_reward_has_none_rather_than_zero() -> None:  # SP-6
    bench = Bench()
    bench.give(batch(llm("s1", [1], [2]), begin=True, end=end()))
    found = bench.last()
    assert found.final_reward is None
    assert found.calls[0].credit is None
    assert found.flags == ["unrewarded"]


def test_of_a_retried_rollout_only_the_last_attempt_is_final() -> None:  # SP-7
    bench = Bench()
    bench.give(batch(llm("s1", [1], [2]), begin=True))
    bench.give(batch(end=end("timeout", final=False, failure_class="infra"), producer="controller"))
    second = [batch(llm("s2", [1], [3]), attempt="at-2", begin=True), rew(1.0, rid="rw-2", attempt="at-2")]
    bench.give(*second, batch(attempt="at-2", end=end()))
    bench.give(rew(0.0), batch(end=end()))
    by_attempt = {t.attempt_id: t for t in bench.trajectories()}
    assert [t.attempt_id for t in by_attempt.values() if t.final] == ["at-2"]
    assert by_attempt["at-1"].status == "timeout"
    assert by_attempt["at-1"].final_reward == 0.0
    ends = [o for o in bench.out if isinstance(o, Attempt) and o.status == "ended"]
    assert {(o.attempt_id, o.outcome) for o in ends} == {("at-1", "timeout"), ("at-2", "succeeded")}


def test_calls_of_a_failed_attempt_are_kept_and_flagged_by_default() -> None:  # SP-8
    spans = [llm("s1", [1], [2], seq=1), llm("s2", [1, 2, 3], None, seq=2, failed=True)]
    for rules, count in ((AssemblyRules(), 1), (AssemblyRules(failed="drop"), 0)):
        bench = Bench(Policy(rules=rules))
        bench.give(batch(*spans, begin=True, end=end("failed", failure_class="agent")))
        assert len(bench.last().rows) == count
        assert "failed" in bench.last().flags
        assert [c.excluded is None for c in bench.last().calls] == [count == 1, False]


def test_a_failure_of_the_agents_own_doing_gets_its_failure_reward() -> None:
    for failure, expected in (("agent", -1.0), ("infra", None)):
        bench = Bench()
        marker = end("failed", failure_class=failure, context=AttemptContext(failure_reward=-1.0))
        bench.give(batch(llm("s1", [1], [2]), begin=True, end=marker))
        assert bench.last().final_reward == expected


def test_an_empty_answer_is_told_apart_from_missing_ids() -> None:  # SP-19
    bench = Bench()
    empty = llm("s1", [1], [], seq=1, finish_reason="stop")
    bench.give(batch(empty, llm("s2", [1], None, seq=2), begin=True, end=end()))
    assert {c.span_id: c.excluded for c in bench.last().calls} == {
        span_id("s1"): "empty",
        span_id("s2"): "no_token_ids",
    }
    assert bench.last().rows == []
    assert {"empty", "no_token_ids"} <= set(bench.last().flags)


def test_versions_of_an_answer_that_outlived_weight_changes_are_kept() -> None:  # SP-18
    runs = [VersionRun(2, 0, 2), VersionRun(4, 2, 4), VersionRun(6, 4, 12)]
    bench = Bench()
    bench.give(batch(llm("s1", [], range(12), policy_versions=runs, finish_reason="length"), begin=True, end=end()))
    assert bench.last().rows[0].policy_versions == runs
    assert bench.last().calls[0].policy_versions == runs


def test_two_roots_are_one_trajectory_and_the_reward_applies_once() -> None:  # SP-24
    bench = Bench()
    bench.give(batch(span("s0"), span("s9"), llm("s1", [1], [2], parent="s0"), begin=True), rew(1.0), batch(end=end()))
    assert len(bench.trajectories()) == 1
    assert (bench.last().final_reward, len(bench.last().rewards), bench.last().flags) == (1.0, 1, [])


def test_a_reward_a_day_later_is_a_new_revision() -> None:  # CA-11
    bench = Bench()
    bench.give(batch(llm("s1", [1], [2]), begin=True, end=end()))
    bench.wait(86_400)
    assert bench.assembler.attempts == {}
    (reread,) = bench.give(rew(1.0, created=86_400_000))
    assert reread.__class__.__name__ == "Reread"
    assert len(bench.trajectories()) == 1
    bench.reread(reread)
    assert [(t.attempt_id, t.revision, t.final_reward) for t in bench.trajectories()] == [
        ("at-1", 1, None),
        ("at-1", 2, 1.0),
    ]


def test_choices_of_one_request_are_all_kept_and_the_used_one_is_trained() -> None:  # GW-11
    two = [llm("s1", [1], [10 + i], seq=i, choice=i, choices=2) for i in range(2)]
    bench = Bench()
    bench.give(batch(*two, begin=True), rew(1.0), batch(end=end()))
    assert [(c.choice, c.excluded, c.credit) for c in bench.last().calls] == [
        (0, None, 1.0),
        (1, "unused_choice", None),
    ]
    bench.give(batch(llm("s2", [1, 11, 5], [6], seq=9)))
    assert {(c.span_id, c.choice): c.excluded for c in bench.last().calls} == {
        (span_id("s1"), 0): "unused_choice", (span_id("s1"), 1): None, (span_id("s2"), 0): None,
    }  # fmt: skip
    assert rows(bench) == [[1, 11, 5, 6]]
    every = Bench(Policy(rules=AssemblyRules(choices="all")))
    every.give(batch(*two, begin=True), rew(1.0), batch(end=end()))
    assert rows(every) == [[1, 10], [1, 11]]
    assert [c.credit for c in every.last().calls] == [1.0, 1.0]


def test_an_undelivered_call_is_kept_and_never_trained() -> None:
    bench = Bench()
    bench.give(batch(llm("s1", [1], [2], seq=1), begin=True), batch(end=end()))
    bench.give(batch(llm("s1", [1], [2], seq=2, delivered=False)))
    assert bench.last().revision == 2
    assert [c.excluded for c in bench.last().calls] == ["undelivered"]
    assert "conflict" not in bench.last().flags


def test_a_reward_that_is_no_number_or_too_large_is_refused_and_counts_as_arrived() -> None:  # CA-2
    for value, reason in (
        (float("nan"), "nonfinite_reward"),
        (float("inf"), "nonfinite_reward"),
        (-sys.float_info.max, "reward_out_of_range"),
        (1.1e30, "reward_out_of_range"),
    ):
        bench = Bench()
        marker = end(span_count=1, reward_count=1)
        bench.give(batch(llm("s1", [1], [2]), begin=True, end=marker))
        assert bench.trajectories() == []
        new = bench.give(rew(value, producer_id="p1"))
        assert [o.error.reason for o in new if isinstance(o, Refused)] == [reason]
        assert bench.last().final_reward is None
        assert set(bench.last().flags) == {"unrewarded", "nonfinite_reward"}
