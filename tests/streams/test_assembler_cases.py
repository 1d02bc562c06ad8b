"""Attempts whose events come in any order, twice, contradictory or not at all: the cases that people reported."""

from __future__ import annotations

import itertools
import json
import re
from dataclasses import replace

import pytest
from events import Bench, batch, end, llm, rew, span, span_id

from spanloop.schemas.packed import unpack_ids
from spanloop.schemas.records import AttemptContext, EndStatus, SpanBatch, Trajectory, Usage, VersionRun
from spanloop.schemas.semconv import AGENT
from spanloop.schemas.topics import key_of
from spanloop.streams.assembly import AssemblyRules
from spanloop.streams.messages import Late, Policy, Reread


def ids(found: Trajectory) -> list[list[int]]:
    return [unpack_ids(row.token_ids) for row in found.rows]


def placed(found: Trajectory) -> Trajectory:
    """A trajectory without the offsets of its calls, which are what the order of arrival is."""
    return replace(found, calls=[replace(call, offset=0) for call in found.calls])


def test_an_orphaned_call_is_one_triplet_after_the_grace_and_the_attempt_is_done() -> None:  # SP-1
    bench = Bench()
    bench.give(batch(llm("s1", [1, 2], [3], parent="s0")), rew(1.0), batch(end=end()))
    assert bench.trajectories() == []
    bench.wait(2.0)
    (found,) = bench.trajectories()
    assert (ids(found), [c.credit for c in found.calls], found.flags) == ([[1, 2, 3]], [1.0], ["orphaned"])
    assert bench.committable() == {"spans": 2, "rewards": 1}
    assert bench.assembler.open_attempts == 0
    bench.give(batch(span("s0")))
    assert (ids(bench.last()), bench.last().flags, bench.last().revision) == ([[1, 2, 3]], [], 3)
    assert bench.assembler.counts["orphaned"] == 1


SPANS = [
    span("s0", None, 0, 900, seq=0),
    span("s1", "s0", 1, 800, seq=1, attrs={AGENT: "a"}),
    span("s2", "s1", 2, 700, seq=2),
    llm("s3", [1], [2], parent="s2", seq=3),
]


@pytest.mark.parametrize("position", range(5))
def test_every_order_of_arrival_gives_the_trajectory_of_the_order_of_emission(position: int) -> None:  # SP-2
    seen: list[Trajectory] = []
    for order in itertools.permutations(range(4)):
        bench = Bench()
        records: list[SpanBatch] = [batch(SPANS[i]) for i in order]
        records.insert(position, batch(end=end(span_count=4)))
        bench.give(*records)
        seen.append(placed(bench.last()))
    assert len(seen) == 24
    assert all(found == seen[0] for found in seen)  # the first is the order s0, s1, s2, s3
    assert (ids(seen[0]), seen[0].calls[0].agent_path) == ([[1, 2]], "a")
    assert (seen[0].revision, seen[0].span_count, seen[0].flags) == (4, 4, ["unrewarded"])


@pytest.mark.parametrize("waited_s", [1.0, 6.0, 40.0])
def test_a_call_of_another_producer_behind_the_end_marker_is_in_the_one_revision_that_counts(
    waited_s: float,
) -> None:  # SP-3
    bench = Bench(Policy(grace_s=5.0))
    filler = [batch(span(f"f{i}", seq=i), attempt="at-0", begin=i == 0) for i in range(9)]
    first = batch(llm("s1", [1], [2]), begin=True)
    bench.give(*filler, first, batch(end=end(span_count=1)))
    assert bench.spans == 11  # the end marker has offset 10
    bench.wait(waited_s)
    new = bench.give(batch(llm("s2", [1, 2, 3], [4], seq=1), producer="gateway"))
    if waited_s == 40.0:  # its events are no longer held: they are read again
        assert new == [Reread(0, "ro-1", "at-1", 9, None, number=1)]
        bench.reread(*new)
    found = bench.last()
    assert (ids(found), found.revision, found.calls[1].offset) == ([[1, 2, 3, 4]], 2, 11)
    counting = {t.attempt_id: t for t in sorted(bench.trajectories(), key=lambda t: t.revision)}
    assert {t.attempt_id: t.revision for t in counting.values()} == {"at-1": 2}


def test_a_call_behind_the_end_marker_whose_attempt_is_gone_is_flagged_and_makes_no_second_trajectory() -> None:  # SP-3
    bench = Bench(Policy(grace_s=5.0))
    bench.give(batch(llm("s1", [1], [2]), begin=True), batch(end=end(span_count=1)))
    bench.wait(40.0)
    wanted = bench.give(batch(llm("s2", [1, 2, 3], [4], seq=1), producer="gateway"))
    new = bench.reread(*wanted, lost=True)
    assert [type(o) for o in new] == [Late]
    assert [(t.attempt_id, t.revision) for t in bench.trajectories()] == [("at-1", 1)]


def test_a_call_whose_host_is_behind_keeps_its_reward_and_is_flagged() -> None:  # TR-4
    bench = Bench()
    root, child = span("s0", None, 0, 1000), llm("s1", [1], [2], parent="s0", start=-500, end=-200)
    bench.give(batch(root, begin=True), batch(child, producer="b"), rew(1.0, created=1100), batch(end=end()))
    (found,) = bench.trajectories()
    assert (ids(found), [c.credit for c in found.calls], found.flags) == ([[1, 2]], [1.0], ["skew"])


@pytest.mark.parametrize("swapped", [False, True])
def test_a_conflict_is_counted_once_however_many_revisions_tell_of_it(swapped: bool) -> None:  # TR-7
    bench = Bench()
    both = [batch(llm("s1", [1], [10], seq=1)), batch(llm("s1", [1], [11], seq=2))]
    first, second = both[::-1] if swapped else both
    bench.give(batch(begin=True), first, batch(end=end()), second, rew(1.0), rew(0.5, "s1", rid="rw-2"))
    assert [ids(t) for t in bench.trajectories()][-3:] == [[[1, 11]]] * 3
    assert "conflict" in bench.last().flags
    assert bench.assembler.counts["conflicts"] == 1


def test_a_null_attribute_changes_nothing_in_the_triplets() -> None:  # PS-1
    found: list[Trajectory] = []
    for attrs in ({"gen_ai.prompt.0.content": None, "k": 1}, {"k": 1}):
        bench = Bench()
        bench.give(batch(llm("s1", [1], [2], attrs=attrs), begin=True), rew(1.0), batch(end=end()))
        found.append(replace(bench.last(), input_digest=""))
    assert found[0] == found[1]
    assert ids(found[0]) == [[1, 2]]


def test_an_answer_without_tokens_and_one_without_ids_are_excluded_for_different_reasons() -> None:  # SP-19
    bench = Bench()
    empty = llm("s1", [1], [], finish_reason="stop", usage=Usage(output=0), seq=1)
    unknown = llm("s2", [1], None, finish_reason="stop", seq=2)
    bench.give(batch(empty, unknown, begin=True), rew(1.0), batch(end=end()))
    assert [(c.span_id, c.excluded) for c in bench.last().calls] == [
        (span_id("s1"), "empty"),
        (span_id("s2"), "no_token_ids"),
    ]
    assert (bench.last().rows, bench.last().flags) == ([], ["no_token_ids", "empty"])


def test_calls_become_rows_and_drift_is_counted_once() -> None:  # SP-13, SP-14, SP-16
    cases = {
        "at-13": ([([1, 2], [3, 9]), ([1, 2, 3, 9, 198, 4], [5, 9])], [[1, 2, 3, 9, 198, 4, 5, 9]], 0),
        "at-14": ([([1], [20, 21]), ([1, 77, 4], [5])], [[1, 20, 21], [1, 77, 4, 5]], 1),
        "at-16": (
            [([1], [2]), ([50], [51]), ([1, 2, 3], [4]), ([50, 51, 52], [53])],
            [[1, 2, 3, 4], [50, 51, 52, 53]],
            0,
        ),
    }
    bench = Bench()
    for attempt, (calls, rows, drift) in cases.items():
        spans = [llm(f"s{i}", p, r, seq=i) for i, (p, r) in enumerate(calls)]
        bench.give(batch(*spans, attempt=attempt, begin=True, end=end()))
        bench.give(rew(1.0, rid=attempt, attempt=attempt))
        found = bench.last(attempt)
        assert (ids(found), found.drift, found.revision) == (rows, drift, len(calls) + 1)
    assert list(bench.last("at-13").rows[0].mask) == [0, 0, 1, 1, 0, 0, 1, 1]
    assert len(bench.last("at-16").calls) / len(bench.last("at-16").rows) == 2.0
    assert bench.assembler.counts["drift"] == 1


@pytest.mark.parametrize("status", ["failed", "timeout", "unresponsive", "cancelled"])
def test_partial_calls_of_whatever_did_not_succeed_are_kept_and_flagged_or_dropped(status: EndStatus) -> None:  # SP-8
    spans = [llm("s1", [1], [2], seq=1), llm("s2", [1, 2, 3], None, seq=2, failed=True)]
    for rules, rows in ((AssemblyRules(), [[1, 2]]), (AssemblyRules(failed="drop"), [])):
        bench = Bench(Policy(rules=rules))
        bench.give(batch(*spans, begin=True, end=end(status, failure_class="agent")))
        assert ids(bench.last()) == rows
        assert bench.last().flags[-1] == "failed"
    assert [c.excluded for c in bench.last().calls] == ["failed", "no_token_ids"]


def test_a_failure_reward_that_is_no_number_is_none() -> None:  # CA-2
    bench = Bench()
    marker = end("failed", failure_class="agent", context=AttemptContext(failure_reward=float("nan")))
    bench.give(batch(llm("s1", [1], [2]), begin=True, end=marker))
    assert bench.last().final_reward is None


def test_a_reward_event_sent_twice_is_one_event() -> None:  # CA-9
    bench = Bench()
    bench.give(batch(llm("s1", [1], [2]), begin=True), rew(0.3, "s1"), rew(0.3, "s1"), batch(end=end(mode="step")))
    (found,) = bench.trajectories()
    assert ([c.credit for c in found.calls], len(found.rewards), found.revision) == ([0.3], 1, 2)
    bench.give(rew(0.3, "s1"))
    assert (len(bench.trajectories()), bench.committable()) == (1, {"spans": 2, "rewards": 3})


def test_a_step_reward_on_one_agent_never_reaches_the_other() -> None:  # SP-10; the trainer's selection filters agents
    agents = [span("write", attrs={AGENT: "write"}), span("check", attrs={AGENT: "check"}, seq=1)]
    calls = [llm("w", [1], [2], parent="write", seq=2), llm("c", [5], [6], parent="check", seq=3, start=300)]
    for target in ("check", "c"):
        bench = Bench()
        rewards = (rew(0.5, target), rew(1.0, rid="rw-2"))
        bench.give(batch(*agents, *calls, begin=True), *rewards, batch(end=end(mode="sum")))
        found = {c.agent_path: (c.step_reward, c.credit) for c in bench.last().calls}
        assert found == {"write": (None, 1.0), "check": (0.5, 1.5)}
        kept = [row for row in bench.last().rows if re.fullmatch(r"^(?!.*check).*$", row.agent_path)]
        assert [unpack_ids(row.token_ids) for row in kept] == [[1, 2]]


def test_a_message_without_a_role_costs_nobody_the_trajectory() -> None:  # SP-11
    messages = [
        {"role": "user", "content": "q"},
        {"tool_calls": [{"id": "c1"}]},
        {"tool_call_id": "c1", "content": "r"},
        {"content": "?"},
    ]
    called = llm("s1", [1], [2])
    assert called.call is not None
    called = replace(called, call=replace(called.call, request=json.dumps({"messages": messages})))
    bench = Bench()
    bench.give(batch(called, begin=True), rew(1.0), batch(end=end()))
    assert (ids(bench.last()), bench.last().final_reward, bench.last().flags) == ([[1, 2]], 1.0, [])


def test_one_answer_under_three_versions_is_one_row_with_their_borders() -> None:  # SP-18
    runs = [VersionRun(2, 0, 2), VersionRun(4, 2, 4), VersionRun(6, 4, 12)]
    call = llm("s1", [7], range(12), policy_versions=runs, finish_reason="length")
    bench = Bench()
    bench.give(batch(call, begin=True), rew(1.0), batch(end=end()))
    (row,) = bench.last().rows
    assert (bench.last().calls[0].policy_versions, sum(row.mask)) == (runs, 12)
    assert [(v.version, v.start, v.end) for v in row.policy_versions] == [(2, 1, 3), (4, 3, 5), (6, 5, 13)]


@pytest.mark.parametrize("delayed", [False, True])
def test_calls_of_two_producers_are_in_the_order_of_their_prompts_not_of_their_offsets(delayed: bool) -> None:  # BR-10
    bench = Bench(Policy(grace_s=5))
    tool = batch(span("root", None, 0, 900), span("t1", "root", 250, 260, seq=1), producer="agent", begin=True)
    marker = batch(producer="agent", end=end(span_count=2))
    first = batch(llm("s1", [1], [2], parent="root", start=100, seq=1), producer="gateway")
    second = batch(llm("s2", [1, 2, 3], [4], parent="root", start=50, seq=2), producer="gateway")
    if delayed:  # 3 s behind, and the later call first
        bench.give(tool, marker)
        bench.wait(3)
        bench.give(second, first)
    else:
        bench.give(tool, first, second, marker)
    found = bench.last()
    assert [c.span_id for c in found.calls] == [span_id("s1"), span_id("s2")]
    assert (ids(found), found.span_count) == ([[1, 2, 3, 4]], 4)
    assert found.flags == ["unrewarded", "skew"]


def test_one_call_and_nine_get_the_same_reward_each() -> None:  # CA-14; how much each weighs is the trainer's
    bench = Bench()
    for attempt, turns in (("at-1", 1), ("at-9", 9)):
        calls = [llm(f"{attempt}{k}", [7] * (2 * k + 1), [7], seq=k) for k in range(turns)]
        bench.give(batch(*calls, attempt=attempt, begin=True, end=end()))
        bench.give(rew(1.0, rid=attempt, attempt=attempt))
    assert [c.credit for c in bench.last("at-1").calls] == [1.0]
    assert [c.credit for c in bench.last("at-9").calls] == [1.0] * 9
    assert [sum(bench.last(a).rows[0].mask) for a in ("at-1", "at-9")] == [1, 9]


def test_a_late_reward_and_its_revision_take_the_keys_of_the_spans_and_of_the_first_trajectory() -> None:  # CH-14
    bench = Bench()
    spans, late = batch(llm("s1", [1], [2]), begin=True, end=end()), rew(1.0, created=86_400_000)
    bench.give(spans)
    bench.wait(86_400)
    bench.reread(*bench.give(late))
    first, second = bench.trajectories()
    assert ((first.revision, first.final_reward), (second.revision, second.final_reward)) == ((1, None), (2, 1.0))
    assert key_of(late) == key_of(spans)  # so one assembler has both, however many partitions there are
    assert key_of(first) == key_of(second)
