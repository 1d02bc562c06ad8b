"""An attempt's events → its trajectory. Pure: the same events give the same trajectory, byte for byte."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

from ..schemas.credit import UNUSED, spread
from ..schemas.records import Assembly, AttemptContext, Call, ModelCall, RewardRef, Row, Trajectory
from ..schemas.semconv import FLAGS
from .attempt import OpenAttempt
from .nodes import SpanNode
from .order import Tree, call_order
from .rewards import StepRule, final_reward, place
from .selection import ChoiceRule, excluded, same_calls, unused_choices
from .stitch import Drawn, build_row, resolve_prompts, row_key, stitch


@dataclass(frozen=True, slots=True)
class AssemblyRules:
    """Choices that change what a trajectory holds."""

    choices: ChoiceRule = "used"  # of n > 1: the one the agent went on from, or all
    steps: StepRule = "sum"  # several step rewards of one call: added up, or the last one counts
    failed: Literal["keep_partial", "drop"] = "keep_partial"
    """Calls of an attempt that did not succeed (failed, timeout, ...): kept and flagged, or in no row.

    Kept by default: a failure of the agent's own doing gets its task's failure reward and must be learned from.
    """


@dataclass(frozen=True, slots=True)
class _Calls:
    """Calls and what is known of each, (K,) all."""

    nodes: list[SpanNode]
    prompts: list[bytes | None]
    reasons: list[str | None]
    twins: dict[int, int]  # a call seen twice -> the one that stays


def build(attempt: OpenAttempt, rules: AssemblyRules, digest: str) -> Trajectory:
    """The trajectory of what is known of an attempt. digest: `attempt.digest()`, which the caller has at hand."""
    nodes = attempt.latest_spans()
    tree = Tree(nodes)
    end = None if attempt.end is None else attempt.end.end
    found = _calls(nodes, rules, tree, failed=attempt.failed)
    joined = stitch(_drawn(found, tree))
    order = call_order(found.nodes, joined.follows, tree)
    position = {index: k for k, index in enumerate(order)}
    rows = sorted((build_row(row, position) for row in joined.rows), key=lambda row: row.segments[0].call)
    rewards = attempt.latest_rewards()
    final = final_reward(rewards, end)
    calls = [found.nodes[i] for i in order]
    reasons = [found.reasons[i] for i in order]
    used = [reason not in UNUSED for reason in reasons]
    twins = {position[i]: position[kept] for i, kept in found.twins.items()}
    own, refs = place(calls, rewards, tree, used=used, twins=twins, rule=rules.steps)
    context = AttemptContext() if end is None else end.context
    credit = spread(context.credit, own, final, reasons)
    paths = [tree.agent_path(call.span_id) for call in calls]
    flags = _flags(attempt, tree, calls, reasons)
    flags |= {flag for ref in refs for flag in ref.flags}
    if attempt.refused:
        flags.add("nonfinite_reward")
    if any(found.nodes[later].start_ns < found.nodes[earlier].start_ns for later, earlier in joined.follows.items()):
        flags.add("skew")
    if final is None and all(x is None for x in own):
        flags.add("unrewarded")
    return Trajectory(
        rollout_id=attempt.rollout_id,
        attempt_id=attempt.attempt_id,
        revision=attempt.revision,
        input_digest=digest,
        context=context,
        status="unknown" if end is None else end.status,
        failure_class=None if end is None else end.failure_class,
        error_type=None if end is None else end.error_type,
        final=end is not None and end.final,
        truncated=any(row.truncated for row in rows),
        flags=[flag for flag in FLAGS if flag in flags],
        rows=rows,
        calls=[
            _call(node, path, reason, step_reward=s, credit=c)
            for node, path, reason, s, c in zip(calls, paths, reasons, own, credit, strict=True)
        ],
        rewards=refs,
        final_reward=final,
        span_count=len(tree.spans),
        drift=joined.drift,
        end_ns=0 if end is None else end.end_ns,
    )


def assembly_of(attempt: OpenAttempt, trajectory: Trajectory, now_ns: int) -> Assembly:
    """What is remembered of an emitted trajectory."""
    return Assembly(
        attempt_id=attempt.attempt_id,
        rollout_id=attempt.rollout_id,
        revision=trajectory.revision,
        input_digest=trajectory.input_digest,
        spans_offset=attempt.spans_first,
        rewards_offset=attempt.rewards_first,
        status="emitted" if attempt.closed is None else "dropped",
        at_ns=now_ns,
        final=trajectory.final,
        spans_next=attempt.spans_next,
        rewards_next=attempt.rewards_next,
    )


def without_rows(trajectory: Trajectory) -> Trajectory:
    """A trajectory too large for its topic: its calls and rewards stay, its rows go, flagged."""
    calls = [replace(call, excluded=call.excluded or "bounded") for call in trajectory.calls]
    flags = {*trajectory.flags, "bounded"}
    return replace(trajectory, rows=list[Row](), calls=calls, flags=[f for f in FLAGS if f in flags])


def without_calls(trajectory: Trajectory) -> Trajectory:
    """One that is too large even without its rows: what the attempt came to stays."""
    return replace(without_rows(trajectory), calls=list[Call](), rewards=list[RewardRef]())


def _calls(nodes: Sequence[SpanNode], rules: AssemblyRules, tree: Tree, *, failed: bool) -> _Calls:
    """Every model call; its whole prompt; why it is in no row."""
    calls = [n for n in nodes if n.call is not None]
    prompts = _prompts(calls)
    reasons: list[str | None] = [excluded(node, prompt) for node, prompt in zip(calls, prompts, strict=True)]
    if rules.choices == "used":
        for i in unused_choices(calls, prompts, reasons):
            reasons[i] = "unused_choice"
    twins = same_calls(calls, prompts, reasons, tree)
    for i in twins:
        reasons[i] = "same_call"
    if failed and rules.failed == "drop":
        reasons = [reason or "failed" for reason in reasons]
    return _Calls(calls, prompts, reasons, twins)


def _prompts(calls: Sequence[SpanNode]) -> list[bytes | None]:
    stored: dict[str, tuple[bytes | None, bytes | None]] = {}
    bases: dict[str, tuple[str, int]] = {}
    for node in calls:
        call = _of(node)
        stored.setdefault(node.span_id, (call.prompt_ids, call.response_ids))
        if call.prompt_base is not None:
            bases[node.span_id] = (call.prompt_base.span_id, call.prompt_base.length)
    if not bases:
        return [_of(node).prompt_ids for node in calls]
    whole = resolve_prompts(stored, bases)
    return [whole.get(node.span_id) for node in calls]


def _drawn(found: _Calls, tree: Tree) -> list[Drawn]:
    out: list[Drawn] = []
    for i, (node, prompt) in enumerate(zip(found.nodes, found.prompts, strict=True)):
        call = _of(node)
        if found.reasons[i] is None and prompt is not None and call.response_ids is not None:
            key = row_key(call.policy, tree.agent_path(node.span_id), call.sampling)
            out.append(
                Drawn(
                    i, node.ident, key, prompt, call.response_ids, call.logprobs, call.policy_versions, call.truncated
                )
            )
    return out


def _call(node: SpanNode, path: str, reason: str | None, *, step_reward: float | None, credit: float | None) -> Call:
    call = _of(node)
    return Call(
        span_id=node.span_id,
        choice=node.choice,
        agent_path=path,
        policy=call.policy,
        policy_versions=call.policy_versions,
        sampling=call.sampling,
        finish_reason=call.finish_reason,
        partition=node.partition,
        offset=node.offset,
        step_reward=step_reward,
        credit=credit,
        excluded=reason,
    )


def _flags(attempt: OpenAttempt, tree: Tree, calls: Sequence[SpanNode], reasons: Sequence[str | None]) -> set[str]:
    flags = {reason for reason in reasons if reason is not None}
    for node in calls:
        call = _of(node)
        flags |= set(call.flags)
        if call.nonfinite_logprobs or (call.response_ids and call.logprobs is None):
            flags.add("nonfinite_logprobs")
    found = {
        "orphaned": bool(tree.missing_parents()),
        "missing_spans": attempt.spans_missing,
        "missing_rewards": attempt.rewards_missing,
        "no_end": attempt.end is None,
        "no_llm_calls": not calls and attempt.closed is None,
        "bounded": attempt.closed is not None,
        "conflict": attempt.conflicts() > 0,
        "skew": tree.skewed(),
        "failed": attempt.failed,
        "context_overflow": attempt.end is not None and attempt.end.end.error_type == "context_overflow",
    }
    return flags | {flag for flag, is_set in found.items() if is_set}


def _of(node: SpanNode) -> ModelCall:
    assert node.call is not None
    return node.call
