"""One rollout as a tree for the terminal."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from rich.text import Text
from rich.tree import Tree

from spanloop.consumers.query import Query
from spanloop.consumers.show import ShownAttempt, show
from spanloop.schemas.errors import ConfigError
from spanloop.schemas.messages import answers, of_request

NS_PER_MS = 1_000_000
# what of a message a line of the terminal holds
MESSAGE_LENGTH = 200
MESSAGES = "SELECT attempt_id, span_id, request, response FROM v_calls WHERE rollout_id = {id:String}"
Row = Mapping[str, Any]


def rollout_tree(query: Query, rollout_id: str, *, messages: bool = False) -> Tree:
    """Attempts with their span trees, calls and rows, then rewards; `messages`: what each call was sent and answered.

    Raises ConfigError for an unknown rollout.
    """
    shown = show(query, rollout_id)
    if shown is None:
        raise ConfigError(f"nothing is stored of rollout {rollout_id!r}; `spanloop sql` lists them in v_rollouts")
    state = shown.rollout or {}
    told = f" {state.get('status', 'unknown')} reward {state.get('final_reward')}"
    root = Tree(Text.assemble((rollout_id, "bold"), told))
    if state:
        root.add(Text(f"input {state['input']}"))
    asked = query(MESSAGES, {"id": rollout_id}).dicts() if messages else []
    talks = {(row["attempt_id"], row["span_id"]): row for row in asked}
    for attempt in shown.attempts:
        _attempt(root, attempt, talks)
    rewards = root.add("rewards")
    for reward in shown.rewards:
        target = f" on span {reward['span_id']}" if reward["span_id"] else ""
        rewards.add(Text(f"{reward['name']} ({reward['scope']}, {reward['source']}) {reward['value']}{target}"))
    return root


def _attempt(root: Tree, shown: ShownAttempt, talks: Mapping[tuple[str, str], Row]) -> None:
    told = shown.attempt or {}
    final = ", final" if told.get("final") else ""
    status = told.get("outcome") or told.get("status", "")
    branch = root.add(Text.assemble((shown.attempt_id, "bold"), f" {status}{final}"))
    levels: list[Tree] = [branch.add("spans")]
    for node in shown.spans:
        del levels[node.depth + 1 :]
        levels.append(levels[-1].add(Text(_span(node.span))))
        if talk := talks.get((shown.attempt_id, node.span.get("span_id", ""))):
            _talk(levels[-1], talk)
    trajectory = shown.trajectory
    if trajectory is None:
        branch.add("no trajectory yet")
        return
    made = branch.add(
        Text(f"trajectory, revision {trajectory['revision']}, reward {trajectory['final_reward']}, "
             f"flags {list(trajectory['flags'])}")
    )  # fmt: skip
    _calls(made, shown.calls)
    for row in shown.rows:
        made.add(Text(f"row {row['row']}: {row['tokens']} tokens, {row['trained_tokens']} by {row['policy']}"))


def _talk(branch: Tree, call: Row) -> None:
    """The messages a call was sent, and its answers."""
    sent = of_request(call["request"])
    for message in [*sent.messages, *answers(call["response"])]:
        said = message.get("content") or message.get("tool_calls") or ""
        text = said if isinstance(said, str) else json.dumps(said)
        branch.add(Text(f"{message['role']}: {text[:MESSAGE_LENGTH]}"))
    for warning in sent.warnings:
        branch.add(Text(warning, "yellow"))


def _calls(branch: Tree, calls: Sequence[Row]) -> None:
    for call in calls:
        left_out = f", left out: {call['excluded']}" if call["excluded"] else ""
        runs: Sequence[Row] = call["policy_versions"]
        versions = ", ".join(str(run["version"]) for run in runs)
        branch.add(Text(f"call {call['call']} on span {call['span_id']}: version {versions}, "
                        f"credit {call['credit']}{left_out}"))  # fmt: skip


def _span(span: Row) -> str:
    took = "open" if span["duration_ns"] is None else f"{span['duration_ns'] / NS_PER_MS:.1f} ms"
    call = f", {span['input_tokens']} + {span['output_tokens']} tokens" if span["is_call"] else ""
    failed = f", {span['status_message'] or 'error'}" if span["status"] == "error" else ""
    return f"{span['name']} ({took}{call}{failed})"
