"""Rewards of an attempt: which are valid, which call each belongs to, which one is final. Pure."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Literal

from ..schemas.credit import assign
from ..schemas.errors import InvalidRecord
from ..schemas.records import AttemptContext, AttemptEnd, Credit, Reward, RewardRef
from .nodes import SpanNode
from .order import Tree

StepRule = Literal["sum", "last"]
# The reward that decides where an attempt has several final ones.
PRIMARY_NAME = "reward"


def scalar(reward: Reward) -> float | None:
    """A reward's one value: its own, else its primary dimension's; null where it has neither."""
    if reward.value is not None:
        return reward.value
    return reward.dimensions.get(reward.primary) if reward.primary is not None else None


def check(reward: Reward) -> None:
    """Raises InvalidRecord where a reward's value is NaN or infinite: nothing downstream may see it."""
    value = scalar(reward)
    if value is not None and not math.isfinite(value):
        raise InvalidRecord(
            "nonfinite_reward",
            f"reward {reward.reward_id} of attempt {reward.attempt_id} is {value}; expected a finite number or null",
        )


def by_time(reward: Reward) -> tuple[int, str]:
    """The order of rewards: when they were given, then their id."""
    return reward.created_ns, reward.reward_id


def final_reward(rewards: Sequence[Reward], end: AttemptEnd | None) -> float | None:
    """The attempt's final reward: of several the newest named "reward", else the newest; null = none, not 0.

    A failure of class agent without any gets the failure reward of its task, unless that is no number.
    """
    given = [
        (r.name == PRIMARY_NAME, *by_time(r), v) for r in rewards if r.scope == "final" and (v := scalar(r)) is not None
    ]
    if given:
        return max(given)[-1]
    failure = end.context.failure_reward if end is not None and end.failure_class == "agent" else None
    return failure if failure is not None and math.isfinite(failure) else None


def place(
    calls: Sequence[SpanNode], used: Sequence[bool], rewards: Sequence[Reward], tree: Tree, rule: StepRule
) -> tuple[list[float | None], list[RewardRef]]:
    """Each call's step reward, and every reward as it counted.

    calls: (K,) in order. used: (K,) whether the agent used that call's answer. Returns (K,) and one reference each.
    Several step rewards of one call are added up, or the newest one counts (`rule`).
    """
    own: list[float | None] = [None] * len(calls)
    refs: list[RewardRef] = []
    for reward in sorted(rewards, key=by_time):
        flags = ["nonfinite_dimension"] if any(not math.isfinite(x) for x in reward.dimensions.values()) else []
        at, placed = _target(reward, calls, used, tree) if reward.scope == "step" else (None, False)
        value = scalar(reward)
        if at is not None and value is not None:
            before = own[at]
            own[at] = value if before is None or rule == "last" else before + value
        if placed:
            flags.append("reward_placed_by_order")
        target = reward.span_id if at is None else calls[at].span_id
        refs.append(RewardRef(reward.reward_id, reward.name, reward.scope, value, target, flags))
    return own, refs


def _target(reward: Reward, calls: Sequence[SpanNode], used: Sequence[bool], tree: Tree) -> tuple[int | None, bool]:
    """(the call a step reward belongs to, whether it was placed by order). None: it belongs to no call.

    Its target span, if that is a call; else the last call inside the target span; else the call before the target, of
    the target's own agent. Without a target the call before it in order, where only one agent made calls: with several
    there is no telling whose it is, and another agent's call must not get it.
    """
    known = [i for i in range(len(calls)) if used[i]]
    if reward.span_id is None:
        if len({tree.agent_path(calls[i].span_id) for i in known}) != 1:
            return None, False
        return _before(known, calls, reward.created_ns, reward), True
    exact = [i for i in range(len(calls)) if calls[i].span_id == reward.span_id]
    if exact:
        return next((i for i in exact if used[i]), exact[0]), False
    inside = [i for i in known if any(a.span_id == reward.span_id for a in tree.ancestors(calls[i].span_id))]
    if inside:
        return inside[-1], False
    target = tree.spans.get(reward.span_id)
    if target is None:
        return None, False
    path = tree.agent_path(target.span_id)
    same = [i for i in known if tree.agent_path(calls[i].span_id) == path]
    at = _before(same, calls, target.start_ns, reward)
    return at, at is not None


def _before(members: Sequence[int], calls: Sequence[SpanNode], time_ns: int, reward: Reward) -> int | None:
    """The last call before a moment: by sequence where one producer numbered both, else by start time."""
    earlier = [
        i
        for i in members
        if (
            calls[i].sequence < reward.sequence
            if calls[i].producer == reward.producer_id and reward.span_id is None
            else calls[i].start_ns <= time_ns
        )
    ]
    return earlier[-1] if earlier else None


def credits(
    credit: Credit, own: Sequence[float | None], final: float | None, trained: Sequence[bool], used: Sequence[bool]
) -> list[float | None]:
    """Credit per call, (K,): over the calls in rows; where there are none, over those the agent used.

    So an answer of a foreign model neither takes the reward of mode `last` nor counts as a step of `discounted`, and an
    attempt without any token ids still has credit to learn prompts from.
    """
    members = [k for k, is_in in enumerate(trained if any(trained) else used) if is_in]
    out: list[float | None] = [None] * len(own)
    known = credit if credit.mode != "unknown" else AttemptContext().credit
    for k, value in zip(members, assign(known, [own[k] for k in members], final), strict=True):
        out[k] = value
    return out
