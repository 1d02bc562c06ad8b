"""The order of calls follows prompts and parents before clocks."""

from __future__ import annotations

import itertools
from dataclasses import replace

import pytest
from events import Bench, batch, end, llm, span, span_id
from hypothesis import given
from hypothesis import strategies as st

from spanloop.schemas.records import Span
from spanloop.schemas.semconv import AGENT, GEN_AI_AGENT, GEN_AI_OPERATION, OI_AGENT, OI_KIND
from spanloop.streams.nodes import MARKERS, SpanNode, agent_name, span_node
from spanloop.streams.order import MAX_PATH, Tree, call_order


def nodes(*spans: Span, producer: str = "p") -> list[SpanNode]:
    return [span_node(s, producer, 0, i) for i, s in enumerate(spans)]


def ordered(calls: list[SpanNode], follows: dict[int, int], *others: Span) -> list[int]:
    return call_order(calls, follows, Tree([*calls, *nodes(*others)]))


def test_a_prompt_outweighs_sequence_and_clock() -> None:
    calls = nodes(llm("s1", [1, 2, 3], [4], seq=1, start=10), llm("s2", [1], [2], seq=2, start=20))
    assert ordered(calls, {0: 1}) == [1, 0]


def test_a_call_inside_another_calls_span_comes_after_it() -> None:
    calls = nodes(llm("inner", [1], [2], parent="tool", seq=5, start=10)) + nodes(
        llm("outer", [9], [8], seq=1, start=50), producer="q"
    )
    assert ordered(calls, {}, span("tool", "outer")) == [1, 0]


def test_one_producers_sequence_outweighs_its_clock() -> None:
    calls = nodes(llm("s1", [1], [2], seq=2, start=10), llm("s2", [5], [6], seq=1, start=20))
    assert ordered(calls, {}) == [1, 0]


def test_start_time_then_id_decide_between_producers() -> None:
    calls = [
        *nodes(llm("s1", [1], [2], seq=9, start=20), producer="a"),
        *nodes(llm("s2", [5], [6], seq=1, start=10), producer="b"),
    ]
    assert ordered(calls, {}) == [1, 0]


def test_edges_that_contradict_each_other_leave_the_weaker_kind_out() -> None:
    inner, outer = llm("inner", [1], [2], parent="outer", seq=1), llm("outer", [9], [8], seq=2)
    assert ordered(nodes(inner, outer), {1: 0}) == [0, 1]


def test_spans_that_are_each_others_parents_do_not_hang() -> None:
    loop = nodes(llm("a", [1], [2], parent="b", seq=1), llm("b", [3], [4], parent="a", seq=2))
    assert sorted(ordered(loop, {})) == [0, 1]
    assert Tree(loop).agent_path(span_id("a")) == ""


def test_a_span_in_a_circle_of_parents_is_a_root() -> None:
    circle = [span(a, b, attrs={AGENT: a}) for a, b in (("a", "b"), ("b", "c"), ("c", "a"))]
    tree = Tree(nodes(*circle, span("own", "own", attrs={AGENT: "own"}), llm("m", [1], [2], parent="b")))
    assert [tree.agent_path(span_id(name)) for name in ("a", "b", "c", "own", "m")] == ["a", "b", "c", "own", "b"]


def test_a_path_has_a_longest_length() -> None:
    chain = [span(f"s{i}", f"s{i - 1}" if i else None, attrs={AGENT: f"agent-{i}"}) for i in range(5_000)]
    path = Tree(nodes(*chain)).agent_path(span_id("s4999"))
    assert path.startswith("agent-0/agent-1/")
    assert len(path) == MAX_PATH


def test_agents_are_named_by_any_convention() -> None:
    named = {
        AGENT: "own",
        GEN_AI_AGENT: "otel",
        OI_AGENT: "openinference",
    }
    for attribute, name in named.items():
        assert agent_name(span("s", attrs={attribute: name})) == name
    assert agent_name(span("s", label="planner", attrs={GEN_AI_OPERATION: "invoke_agent"})) == "planner"
    assert agent_name(span("s", label="planner", attrs={OI_KIND: "AGENT"})) == "planner"
    assert agent_name(span("s", label="planner", attrs={OI_KIND: "LLM", "k": AGENT})) is None
    assert agent_name(span("s", label="planner")) is None


@pytest.mark.parametrize(
    "value",
    ['["chat"]', '{"a": ["chat"]}', "null", "1e999", "NaN", "1" * 5000, "[" * 100_000, "[" * 1000 + "]" * 1000, '"'],
)
def test_no_attributes_can_stop_the_assembler_and_the_span_is_kept(value: str) -> None:
    for marker in MARKERS:
        odd = replace(span("s0"), attributes=f'{{"{marker}": {value}}}')
        assert agent_name(odd) is None
        bench = Bench()
        bench.give(batch(odd, llm("s1", [1], [2], parent="s0"), begin=True, end=end()))
        assert (bench.last().span_count, len(bench.last().rows)) == (2, 1)


def test_an_agents_name_can_be_written_into_a_record() -> None:
    name = agent_name(replace(span("s0"), attributes='{"spanloop.agent": "\\ud800b"}'))
    assert name == "?b"


def test_a_path_names_each_agent_once_from_the_root_down() -> None:
    tree = Tree(
        nodes(
            span("r", attrs={AGENT: "lead"}),
            span("r2", "r", attrs={AGENT: "lead"}),
            span("s", "r2"),
            span("t", "s", attrs={AGENT: "helper"}),
            llm("m", [1], [2], parent="t"),
        )
    )
    assert tree.agent_path(span_id("m")) == "lead/helper"
    assert tree.missing_parents() == set()


@given(st.permutations(range(5)), st.lists(st.integers(0, 3), min_size=5, max_size=5))
def test_the_order_does_not_depend_on_the_order_of_the_list(order: list[int], starts: list[int]) -> None:
    calls = nodes(*(llm(f"s{i}", [i], [9], seq=s, start=s) for i, s in enumerate(starts)))
    expected = [calls[i].span_id for i in ordered(calls, {})]
    shuffled = [calls[i] for i in order]
    assert [shuffled[i].span_id for i in ordered(shuffled, {})] == expected
    assert len(set(itertools.chain(expected))) == 5
