"""What one emission costs: steps of the interpreter, counted, grow with the events and not with their square."""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import FrameType
from typing import Any

import pytest
from events import NOW, batch, end, llm, rew, span

from spanloop.schemas.records import PromptBase, Reward, Span
from spanloop.schemas.semconv import AGENT
from spanloop.streams.assembly import AssemblyRules, build
from spanloop.streams.attempt import OpenAttempt
from spanloop.streams.nodes import reward_node

Events = tuple[list[Span], list[Reward]]


def deep(n: int) -> Events:
    """Calls inside each other."""
    return [llm(f"s{i}", [i], [2], parent=f"s{i - 1}" if i else None, seq=i, start=i) for i in range(n)], []


def below(n: int) -> Events:
    """Calls under a long chain of agents."""
    chain = [span(f"d{i}", f"d{i - 1}" if i else None, attrs={AGENT: f"a{i}"}) for i in range(n)]
    return chain + [llm(f"s{i}", [i], [2], parent=f"d{n - 1}", seq=i, start=i) for i in range(n)], []


def tools(n: int) -> Events:
    """Tools after their calls, each judged."""
    spans = [x for i in range(n) for x in (llm(f"s{i}", [i], [2], seq=i, start=2 * i), span(f"t{i}", start=2 * i + 1))]
    return spans, [rew(0.1, f"t{i}", rid=f"r{i}") for i in range(n)]


def nested_tools(n: int) -> Events:
    """Tools inside each other, a call in each, each judged."""
    chain = [span(f"t{i}", f"t{i - 1}" if i else None) for i in range(n)]
    calls = [llm(f"s{i}", [i], [2], parent=f"t{i}", seq=i, start=i) for i in range(n)]
    return chain + calls, [rew(0.1, f"t{i}", rid=f"r{i}") for i in range(n)]


def untargeted(n: int) -> Events:
    """Rewards that are placed by order, by sequence and by time."""
    calls = [llm(f"s{i}", [i], [2], seq=2 * i, start=2 * i) for i in range(n)]
    made: list[dict[str, Any]] = [{"producer_id": "p1", "sequence": i} if i % 2 else {"created": i} for i in range(n)]
    return calls, [rew(0.1, rid=f"r{i}", scope="step", **fields) for i, fields in enumerate(made)]


def exact(n: int) -> Events:
    """A reward on every call."""
    return [llm(f"s{i}", [i], [2], seq=i) for i in range(n)], [rew(0.1, f"s{i}", rid=f"r{i}") for i in range(n)]


def equal(n: int) -> Events:
    """Equal samples that equal prompts go on from."""
    asked = [llm(f"s{i}", [1], [2], seq=i, choice=i % 2, choices=2) for i in range(n)]
    return asked + [llm(f"z{i}", [1, 2, 3], [4], seq=n + i) for i in range(n)], []


def twice(n: int) -> Events:
    """Every call told by a span inside its own too."""
    return [x for i in range(n) for x in (llm(f"s{i}", [i], [2]), llm(f"g{i}", [i], [2], parent=f"s{i}"))], []


def tails(n: int) -> Events:
    """Prompts that rest on each other."""
    first = llm("s0", [0], [2])
    return [
        first,
        *(llm(f"s{i}", [i], [2], prompt_base=PromptBase(span(f"s{i - 1}").span_id, 1)) for i in range(1, n)),
    ], []


def circle(n: int) -> Events:
    """Parents that lead back to themselves, calls below them."""
    around = [span(f"s{i}", f"s{(i + 1) % n}", attrs={AGENT: f"a{i}"}) for i in range(n)]
    return around + [llm(f"c{i}", [i], [2], parent=f"s{i}") for i in range(n)], []


def steps(events: Events) -> int:
    """Instructions that the interpreter carries out to build an attempt's trajectory."""
    spans, rewards = events
    attempt = OpenAttempt("ro-1", "at-1", 0, first_ns=NOW)
    attempt.take_batch(batch(*spans, begin=True, end=end(mode="step")), 0, NOW)
    for i, reward in enumerate(rewards):
        attempt.take_reward(reward_node(reward, i))
    count = 0

    def trace(frame: FrameType, event: str, _: object) -> Callable[..., Any]:
        nonlocal count
        frame.f_trace_opcodes, frame.f_trace_lines = True, False
        count += event == "opcode"
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        build(attempt, AssemblyRules(), attempt.digest())
    finally:
        sys.settrace(before)
    return count


@pytest.mark.parametrize(
    "shape",
    [deep, below, tools, nested_tools, untargeted, exact, equal, twice, tails, circle],
    ids=lambda f: f.__name__,
)
def test_an_emission_costs_steps_in_proportion_to_its_events(shape: Callable[[int], Events]) -> None:
    steps(shape(10))  # what is done once only
    assert steps(shape(200)) < 2.5 * steps(shape(100))  # 4 where each is held to each
