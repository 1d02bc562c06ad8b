"""What of the calls is trained on, and why the others are not."""

from __future__ import annotations

from typing import Any

import pytest
from events import Bench, batch, end, llm, rew, span, span_id
from hypothesis import given
from hypothesis import strategies as st

from spanloop.schemas.records import Span, Trajectory, VersionRun
from spanloop.streams.assembly import AssemblyRules
from spanloop.streams.messages import Policy
from spanloop.streams.nodes import span_node
from spanloop.streams.prefixes import Work
from spanloop.streams.selection import unused_choices


def assembled(*calls: Span) -> Trajectory:
    bench = Bench()
    bench.give(batch(*calls, begin=True), rew(1.0), batch(end=end()))
    return bench.last()


def reasons(found: Trajectory) -> list[str | None]:
    return [call.excluded for call in found.calls]


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({"constrained": True}, "sampling_untrainable"),
        ({"multimodal": True}, "multimodal"),
        ({"constrained": True, "policy": None}, "foreign_model"),
    ],
)
def test_a_call_whose_log_probs_the_trainer_cannot_compute_is_left_out(fields: dict[str, Any], reason: str) -> None:
    found = assembled(llm("s1", [1], [2], seq=1, **fields), llm("s2", [5], [6], seq=2))
    assert (reasons(found), len(found.rows), reason in found.flags) == ([reason, None], 1, True)


def test_a_call_that_lost_some_of_its_ids_is_left_out_and_one_counted_otherwise_in_its_prompt_is_not() -> None:
    short = llm("s1", [1], [2], seq=1, flags=["token_count_mismatch"])
    found = assembled(short, llm("s2", [5], [6], seq=2, flags=["prompt_count_mismatch"]))
    assert (reasons(found), len(found.rows)) == (["token_count_mismatch", None], 1)
    assert found.flags == ["token_count_mismatch", "prompt_count_mismatch"]


@pytest.mark.parametrize(
    "runs",
    [
        [VersionRun(1, 0, 5)],
        [VersionRun(1, -1, 1)],
        [VersionRun(1, 1, 0)],
        [VersionRun(1, 1, 2), VersionRun(2, 0, 1)],
        [VersionRun(1, 0, 2), VersionRun(2, 1, 2)],
    ],
)
def test_version_runs_that_do_not_fit_the_response_cost_their_call_and_no_other(runs: list[VersionRun]) -> None:
    calls = llm("s1", [1], [2, 3], policy_versions=runs, seq=1), llm("s2", [1, 2, 3, 9], [6], policy_versions=[], seq=2)
    found = assembled(*calls)
    assert reasons(found) == ["bad_packing", None]
    assert [row.policy_versions for row in found.rows] == [[]]


def test_version_runs_with_gaps_are_kept_as_they_are() -> None:
    runs = [VersionRun(1, 0, 1), VersionRun(1, 1, 1), VersionRun(2, 2, 3)]
    found = assembled(llm("s1", [1], [2, 3, 4, 5], policy_versions=runs))
    assert [(v.version, v.start, v.end) for v in found.rows[0].policy_versions] == [(1, 1, 2), (1, 2, 2), (2, 3, 4)]


RUN, NONE = [VersionRun(1, 0, 2)], list[VersionRun]()


@pytest.mark.parametrize(
    ("versions", "kept"),
    [
        ((NONE, RUN), "s2"),  # a client's instrumentation around the gateway's span
        ((RUN, NONE), "s1"),
        ((RUN, RUN), "s1"),
        ((NONE, NONE), "s1"),
        ((NONE, RUN, RUN), "s2"),
        ((NONE, NONE, RUN), "s3"),
    ],
)
def test_a_call_told_by_a_span_inside_its_span_too_is_trained_once(
    versions: tuple[list[VersionRun], ...], kept: str
) -> None:
    spans: list[Span] = []
    for k, runs in enumerate(versions, 1):
        spans.append(span(f"http{k}", f"s{k - 1}" if k > 1 else None))
        spans.append(llm(f"s{k}", [1, 2], [3, 4], parent=f"http{k}", seq=k, policy_versions=runs))
    found = assembled(*spans)
    assert [c.span_id for c in found.calls if c.excluded is None] == [span_id(kept)]
    assert {c.excluded for c in found.calls} == {None, "same_call"}
    assert (len(found.rows), [c.credit for c in found.calls if c.credit is not None]) == (1, [1.0])
    for k in range(1, len(versions) + 1):  # a reward on any of them is one on the call
        bench = Bench()
        bench.give(batch(*spans, begin=True), rew(0.5, f"s{k}"), batch(end=end(mode="step")))
        assert {c.span_id: c.step_reward for c in bench.last().calls if c.step_reward} == {span_id(kept): 0.5}


UNTRAINED: list[tuple[dict[str, Any], str]] = [
    ({"constrained": True}, "sampling_untrainable"),
    ({"multimodal": True}, "multimodal"),
    ({"flags": ["token_count_mismatch"]}, "token_count_mismatch"),
]


@pytest.mark.parametrize("inner", [True, False])
@pytest.mark.parametrize(("fields", "reason"), UNTRAINED)
def test_the_copy_of_a_call_that_is_not_trained_is_not_trained_either(
    fields: dict[str, Any], reason: str, inner: bool
) -> None:
    told = llm("s1", [1], [2], seq=1, **({} if inner else fields))
    again = llm("s2", [1], [2], parent="s1", seq=2, policy_versions=[], **(fields if inner else {}))
    found = assembled(told, again)
    assert {c.span_id: c.excluded for c in found.calls} == {
        span_id("s2" if inner else "s1"): reason,
        span_id("s1" if inner else "s2"): "same_call",
    }
    assert ([c.credit for c in found.calls if c.excluded == reason], found.rows) == ([1.0], [])


def test_a_copy_that_does_not_know_the_policy_keeps_no_call_from_being_trained() -> None:
    found = assembled(llm("s1", [1], [2], seq=1, policy=None), llm("s2", [1], [2], parent="s1", seq=2))
    assert (reasons(found), len(found.rows)) == (["foreign_model", None], 1)


@pytest.mark.parametrize(("fields", "reason"), [*UNTRAINED, ({"policy": None}, "foreign_model")])
def test_of_choices_that_are_not_trained_only_the_used_one_counts(fields: dict[str, Any], reason: str) -> None:
    calls = [llm("s1", [1], [2 + c], choice=c, choices=2, **fields) for c in (0, 1)]
    bench = Bench()
    step = rew(0.5, rid="rw-2", scope="step")
    bench.give(batch(*calls, begin=True), rew(1.0), step, batch(end=end(mode="sum")))
    found = bench.last()
    assert [(c.choice, c.excluded, c.step_reward, c.credit) for c in found.calls] == [
        (0, reason, 0.5, 1.5),
        (1, "unused_choice", None, None),
    ]
    went_on = llm("s2", [1, 3, 9], [4], seq=2, start=300)
    assert reasons(assembled(*calls, went_on)) == ["unused_choice", reason, None]


def test_equal_calls_side_by_side_are_different_samples() -> None:
    outer = llm("s1", [1], [2], seq=1, policy_versions=[])
    inner = [llm(f"g{i}", [1], [2], parent="s1", seq=2 + i, choice=i, choices=2) for i in range(2)]
    assert reasons(assembled(llm("a", [1], [2], seq=1), llm("b", [1], [2], seq=2))) == [None, None]
    bench = Bench(Policy(rules=AssemblyRules(choices="all")))
    bench.give(batch(outer, *inner, begin=True), batch(end=end()))
    found = {call.span_id: call.excluded for call in bench.last().calls}
    assert found == {span_id("s1"): "same_call", span_id("g0"): None, span_id("g1"): None}


def test_a_call_inside_another_with_other_ids_is_a_call_of_its_own() -> None:
    calls = llm("s1", [1], [2], seq=1), llm("s2", [1], [3], parent="s1", seq=2)
    assert reasons(assembled(*calls)) == [None, None]


@pytest.mark.parametrize("turns", [50, 100])
def test_the_search_for_used_choices_costs_what_reading_the_prompts_costs(turns: int) -> None:
    spans = [
        llm(f"s{i}{c}", [1] * (2 * i + 1), [1 + c], seq=i, start=i, choice=c, choices=2)
        for i in range(turns)
        for c in (0, 1)
    ]
    nodes = [span_node(s, "p", 0, i) for i, s in enumerate(spans)]
    work = Work()
    unused = unused_choices(nodes, [node.call and node.call.prompt_ids for node in nodes], [None] * len(nodes), work)
    assert unused == {2 * i + 1 for i in range(turns)}
    assert work.compared + work.hashed <= 4 * sum(2 * i + 2 for i in range(turns) for _ in (0, 1))


Turn = tuple[list[int], list[int], int]


@given(
    st.lists(
        st.tuples(
            st.lists(st.integers(1, 2), max_size=4),
            st.lists(st.integers(1, 2), min_size=1, max_size=2),
            st.integers(0, 1),
        ),
        max_size=8,
    )
)
def test_a_choice_is_used_where_any_prompt_goes_on_from_it(turns: list[Turn]) -> None:
    made = [
        llm(f"s{i}", prompt, response, start=0, choice=choice, choices=2)
        for i, (prompt, response, choice) in enumerate(turns)
    ]
    nodes = [span_node(one, "p", 0, i) for i, one in enumerate(made)]
    continued: set[int] = set()
    for prompt, _, _ in turns:
        begins = [(p + r, choice, i) for i, (p, r, choice) in enumerate(turns) if prompt[: len(p + r)] == p + r]
        answered = list[list[int]]()  # requests
        for length in sorted({len(text) for text, _, _ in begins}, reverse=True):
            open_ = [one for one in begins if len(one[0]) == length and turns[one[2]][0] not in answered]
            if open_:
                continued.add(min(open_)[2])
                answered.append(turns[min(open_)[2]][0])
    expected: set[int] = set()
    for prompt, _, _ in turns:  # equal prompts are one request
        request = {i for i, turn in enumerate(turns) if turn[0] == prompt}
        first = min(request, key=lambda i: turns[i][2])
        expected |= request - (request & continued or {first})
    prompts = [node.call and node.call.prompt_ids for node in nodes]
    assert unused_choices(nodes, prompts, [None] * len(nodes)) == expected


def test_a_choice_that_only_begins_the_one_that_was_used_is_not() -> None:
    made = [
        llm("s1", [1], [2], start=0, choice=0, choices=2),
        llm("s1", [1], [2, 3], start=0, choice=1, choices=2),
        llm("s2", [1, 2, 3, 5], [6], start=1),
    ]
    nodes = [span_node(one, "p", 0, i) for i, one in enumerate(made)]
    prompts = [node.call and node.call.prompt_ids for node in nodes]
    assert unused_choices(nodes, prompts, [None] * len(nodes)) == {0}
