"""One rollout, put together for people from the views."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from .query import Query

Row = Mapping[str, Any]
# Bytes and long texts stay in the database; what a person reads of them is their length.
SPANS = """
SELECT attempt_id, span_id, parent_span_id, producer_id, sequence, name, kind, status, status_message, start, start_ns,
  duration_ns, is_call, policy, policy_version, model, finish_reason, input_tokens, output_tokens, delivered,
  call_flags, attributes
FROM v_spans WHERE rollout_id = {id:String}
"""
ATTEMPTS = """
SELECT attempt_id, attempt_number, status, outcome, failure_class, error_type, final, worker_id, at, reason
FROM v_attempts WHERE rollout_id = {id:String} ORDER BY attempt_number
"""
REWARDS = """
SELECT reward_id, attempt_id, name, scope, value, dimensions, span_id, source, comment, created
FROM v_rewards WHERE rollout_id = {id:String} ORDER BY created, reward_id
"""
TRAJECTORIES = """
SELECT attempt_id, revision, status, final, truncated, flags, final_reward, span_count, row_count, call_count, drift
FROM v_trajectories WHERE rollout_id = {id:String} ORDER BY attempt_number
"""
CALLS = """
SELECT attempt_id, call, span_id, agent_path, policy, policy_versions, finish_reason, step_reward, credit, excluded
FROM v_trajectory_calls WHERE rollout_id = {id:String} ORDER BY attempt_id, call
"""
ROWS = """
SELECT attempt_id, row, agent_path, policy, policy_versions, tokens, trained_tokens, segments, truncated
FROM v_trajectory_rows WHERE rollout_id = {id:String} ORDER BY attempt_id, row
"""


@dataclass(frozen=True, slots=True)
class Node:
    """A span and its depth in the tree."""

    depth: int
    span: Row


@dataclass(frozen=True, slots=True)
class ShownAttempt:
    """One attempt: what was said of it, its spans as a tree in order, what the assembler made of them."""

    attempt_id: str
    attempt: Row | None
    spans: Sequence[Node]
    trajectory: Row | None
    calls: Sequence[Row]
    rows: Sequence[Row]


@dataclass(frozen=True, slots=True)
class Shown:
    """One rollout; `rollout` is None where only events of its attempts are known."""

    rollout: Row | None
    attempts: Sequence[ShownAttempt]
    rewards: Sequence[Row]


def show(ask: Query, rollout_id: str) -> Shown | None:
    """All that is stored of a rollout, None where there is nothing."""
    state = ask("SELECT * FROM v_rollouts WHERE rollout_id = {id:String}", {"id": rollout_id}).dicts()
    spans, attempts, rewards, trajectories, calls, rows = (
        ask(sql, {"id": rollout_id}).dicts() for sql in (SPANS, ATTEMPTS, REWARDS, TRAJECTORIES, CALLS, ROWS)
    )
    ids = dict.fromkeys(row["attempt_id"] for row in (*attempts, *trajectories, *spans))
    if not (state or ids or rewards):
        return None
    shown = [
        ShownAttempt(
            attempt_id,
            next(iter(_of(attempts, attempt_id)), None),
            list(tree(_of(spans, attempt_id))),
            next(iter(_of(trajectories, attempt_id)), None),
            _of(calls, attempt_id),
            _of(rows, attempt_id),
        )
        for attempt_id in ids
    ]
    return Shown(state[0] if state else None, shown, rewards)


def _of(rows: Sequence[Row], attempt_id: str) -> list[Row]:
    return [row for row in rows if row["attempt_id"] == attempt_id]


def tree(spans: Sequence[Row]) -> Iterator[Node]:
    """Spans parent before child, siblings by sequence within a producer, then by start, then by id.

    A span whose parent is missing is a root; one in a circle of parents comes last, as a root.
    """
    known = {span["span_id"] for span in spans}
    children: dict[str, list[Row]] = {}
    for span in spans:
        parent = span["parent_span_id"]
        children.setdefault(parent if parent in known and parent != span["span_id"] else "", []).append(span)
    seen: set[str] = set()
    for root in (*_ordered(children.get("", [])), *_ordered(spans)):
        yield from _below(root, 0, children, seen)


def _below(span: Row, depth: int, children: Mapping[str, list[Row]], seen: set[str]) -> Iterator[Node]:
    stack = [(span, depth)]
    while stack:
        at, level = stack.pop()
        if at["span_id"] in seen:
            continue
        seen.add(at["span_id"])
        yield Node(level, at)
        stack += [(child, level + 1) for child in reversed(_ordered(children.get(at["span_id"], [])))]


def _ordered(spans: Sequence[Row]) -> list[Row]:
    """One producer's spans by sequence, producers by their first start: no clock orders spans of one producer."""
    first: dict[str, int] = {}
    for span in spans:
        producer = span["producer_id"]
        first[producer] = min(first.get(producer, span["start_ns"]), span["start_ns"])
    return sorted(spans, key=lambda s: (first[s["producer_id"]], s["producer_id"], s["sequence"], s["span_id"]))
