"""A rollout as a tree for the terminal."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, cast

import pytest
from rich.console import Console

from spanloop import show
from spanloop.consumers.query import Query
from spanloop.consumers.show import Node, Shown, ShownAttempt
from spanloop.schemas.errors import ConfigError


def span(depth: int, name: str, **fields: Any) -> Node:
    plain = {"duration_ns": 2_500_000, "is_call": False, "status": "ok", "status_message": ""}
    return Node(depth, {**plain, "name": name, **fields})


def attempt(*, spans: Sequence[Node] = (), made: bool = True) -> ShownAttempt:
    return ShownAttempt(
        attempt_id="at-1",
        attempt={"outcome": "succeeded", "status": "ended", "final": True},
        spans=spans,
        trajectory={"revision": 4, "final_reward": 0.5, "flags": ["no_ids"]} if made else None,
        calls=[
            {
                "call": 0,
                "span_id": "b" * 16,
                "policy_versions": [{"version": 3}, {"version": 4}],
                "credit": 0.5,
                "excluded": "undelivered",
            }
        ],
        rows=[{"row": 0, "tokens": 12, "trained_tokens": 5, "policy": "policy"}],
    )


def drawn(monkeypatch: pytest.MonkeyPatch, shown: Shown | None, rollout: str = "ro-1") -> list[str]:
    """The tree's lines without their branches."""

    def found(query: Query, rollout_id: str) -> Shown | None:
        del query, rollout_id
        return shown

    monkeypatch.setattr(show, "show", found)
    console = Console(width=200, color_system=None)
    with console.capture() as captured:
        console.print(show.rollout_tree(cast("Query", None), rollout))
    return [line.strip("│├└─ ") for line in captured.get().splitlines()]


def test_a_rollout_is_shown_from_its_input_to_its_rewards(monkeypatch: pytest.MonkeyPatch) -> None:
    spans = [
        span(0, "invoke_agent [bold]lookup"),
        span(1, "chat policy", is_call=True, input_tokens=7, output_tokens=5),
        span(1, "tool", status="error", status_message="no key"),
        span(0, "late", duration_ns=None),
    ]
    reward = {"name": "score", "scope": "final", "source": "agent", "value": 0.5, "span_id": None}
    shown = Shown(
        rollout={"status": "succeeded", "final_reward": 0.5, "input": '["[red]", 7]'},
        attempts=[attempt(spans=spans)],
        rewards=[reward, {**reward, "name": "step", "scope": "step", "span_id": "b" * 16}],
    )
    assert drawn(monkeypatch, shown) == [
        "ro-1 succeeded reward 0.5",
        'input ["[red]", 7]',
        "at-1 succeeded, final",
        "spans",
        "invoke_agent [bold]lookup (2.5 ms)",
        "chat policy (2.5 ms, 7 + 5 tokens)",
        "tool (2.5 ms, no key)",
        "late (open)",
        "trajectory, revision 4, reward 0.5, flags ['no_ids']",
        f"call 0 on span {'b' * 16}: version 3, 4, credit 0.5, left out: undelivered",
        "row 0: 12 tokens, 5 by policy",
        "rewards",
        "score (final, agent) 0.5",
        f"step (step, agent) 0.5 on span {'b' * 16}",
    ]


def test_names_that_look_like_markup_are_shown_as_they_are(monkeypatch: pytest.MonkeyPatch) -> None:
    told = attempt()
    told = replace(told, attempt_id="[b]at", rows=[{**told.rows[0], "policy": "[/p]"}])
    shown = Shown(rollout=None, attempts=[told], rewards=[])
    lines = drawn(monkeypatch, shown, "[/ro]")
    assert lines[:2] == ["[/ro] unknown reward None", "[b]at succeeded, final"]
    assert "row 0: 12 tokens, 5 by [/p]" in lines


def test_an_attempt_that_was_not_assembled_yet_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    lines = drawn(monkeypatch, Shown(rollout=None, attempts=[attempt(made=False)], rewards=[]))
    assert lines == [
        "ro-1 unknown reward None",
        "at-1 succeeded, final",
        "spans",
        "no trajectory yet",
        "rewards",
    ]


def test_spans_stand_under_their_parents(monkeypatch: pytest.MonkeyPatch) -> None:
    def found(query: Query, rollout_id: str) -> Shown:
        del query, rollout_id
        return Shown(None, [attempt(spans=[span(0, "a"), span(1, "b"), span(2, "c"), span(1, "d"), span(0, "e")])], [])

    monkeypatch.setattr(show, "show", found)
    spans = show.rollout_tree(cast("Query", None), "ro-1").children[0].children[0]
    a, e = spans.children
    b, d = a.children
    assert [str(node.label).split()[0] for node in (a, b, *b.children, d, e)] == ["a", "b", "c", "d", "e"]
    assert not e.children


def test_an_unknown_rollout_is_refused_with_where_to_look(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ConfigError, match=r"nothing is stored of rollout 'ro-1'; `spanloop sql` lists them"):
        drawn(monkeypatch, None)


def test_what_a_call_was_sent_and_answered_is_shown_where_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    def found(query: Query, rollout_id: str) -> Shown:
        del query, rollout_id
        return Shown(None, [attempt(spans=[span(0, "chat", span_id="s1")], made=False)], [])

    class Asked:
        def __call__(self, sql: str, parameters: dict[str, str]) -> Asked:
            assert "v_calls" in sql
            assert parameters == {"id": "ro-1"}
            return self

        def dicts(self) -> list[dict[str, Any]]:
            request = {"messages": [{"role": "user", "content": "[q]"}, {"content": "?"}]}
            response = {"choices": [{"message": {"role": "assistant", "content": "a"}}]}
            texts = {"request": json.dumps(request), "response": json.dumps(response)}
            return [{"attempt_id": "at-1", "span_id": "s1", **texts}]

    monkeypatch.setattr(show, "show", found)
    tree = show.rollout_tree(cast("Query", Asked()), "ro-1", messages=True)
    (call,) = tree.children[0].children[0].children
    assert [str(line.label) for line in call.children][:2] == ["user: [q]", "assistant: a"]
    assert "message 1 has no role" in str(call.children[2].label)
