"""Advantages of a closed group: each rollout's reward against its siblings', spread over its calls. Pure, float64.

The baseline is taken over every member with a valid reward, before any row is left out for staleness, length or
missing ids: what is dropped does not shift its siblings. It is taken over rollouts, never over rows or calls, so a
rollout of nine calls counts once (as GRPO means it; Shao et al. 2024, without its standard deviation by default).
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from ..schemas import credit
from ..schemas.records import Trajectory
from .groups import ClosedGroup

# Keeps a division by a tiny standard deviation finite; small enough that rewards 1e-5 apart still give ±0.62.
STD_EPS = 1e-6
PER_CALL_RETURNS = frozenset({"step", "sum"})


@dataclass(frozen=True, slots=True)
class MemberAdvantage:
    """What one rollout of a group learns from. Call lists are in the order of Trajectory.calls."""

    reward: float | None  # R_ρ; None = not in the baseline
    advantage: float | None  # A_ρ = R_ρ − the group's mean
    calls: tuple[float | None, ...]  # (K,) per call; None = that call is not trained


@dataclass(frozen=True, slots=True)
class GroupAdvantage:
    """Advantages of a group's members, in order, and why it teaches nothing, if so."""

    members: tuple[MemberAdvantage, ...]
    dropped: str | None = None  # no_reward, single_member, zero_spread


Estimator = Callable[[ClosedGroup, bool], GroupAdvantage]
ADVANTAGES: dict[str, Estimator] = {}


def register(name: str) -> Callable[[Estimator], Estimator]:
    """Puts an estimator under a name that TrainerConfig.advantage can choose."""

    def add(estimator: Estimator) -> Estimator:
        ADVANTAGES[name] = estimator
        return estimator

    return add


def final_reward(t: Trajectory) -> float | None:
    """A trajectory's final reward; an agent's own failure without one gets its task's failure_reward. None = none."""
    reward = t.final_reward
    if reward is None and t.failure_class == "agent":
        reward = t.context.failure_reward
    return reward if reward is not None and math.isfinite(reward) else None


def call_credits(t: Trajectory) -> list[float | None]:
    """(K,) credit of each call by the task's mode."""
    own = [c.step_reward if c.step_reward is not None and math.isfinite(c.step_reward) else None for c in t.calls]
    return credit.assign(t.context.credit, own, final_reward(t))


def rollout_reward(t: Trajectory) -> float | None:
    """R_ρ, the figure members are compared by; None = invalid, the member leaves the baseline.

    The final reward (identical, last, discounted) or the sum of the calls' credits (step, sum; and where there is no
    final reward). A failure of class infra is nobody's doing and teaches nothing, whatever its reward.
    """
    if t.failure_class == "infra":
        return None
    final = final_reward(t)
    if final is not None and (t.context.credit.mode not in PER_CALL_RETURNS or not t.calls):
        return final
    known = [c for c in call_credits(t) if c is not None]
    return math.fsum(known) if known else None


def returns_to_go(credits: Sequence[float | None]) -> list[float | None]:
    """(K,) sum of the credits from each call on; None where no credit follows."""
    out: list[float | None] = []
    total: float | None = None
    for c in reversed(credits):
        total = total if c is None else c + (total or 0.0)
        out.append(total)
    return out[::-1]


def centre(values: Sequence[float | None], *, std: bool) -> list[float | None]:
    """Values minus their mean, None kept out and kept; exactly 0 where all are equal or there is one only.

    std divides by the sample standard deviation (n − 1).
    """
    known = [v for v in values if v is not None]
    if not known or max(known) == min(known):  # the float mean of equal values may differ from them
        return [None if v is None else 0.0 for v in values]
    mean = math.fsum(known) / len(known)
    scale = math.sqrt(math.fsum((v - mean) ** 2 for v in known) / (len(known) - 1)) + STD_EPS if std else 1.0
    return [None if v is None else (v - mean) / scale for v in values]


@register("group_mean")
def group_mean(group: ClosedGroup, std: bool) -> GroupAdvantage:
    """A_ρ = R_ρ − mean of the group, by each task's credit mode spread over its calls:

    identical A_ρ | last: A_ρ on the last kept call | discounted: γ^(K−k)·A_ρ | step, sum: return-to-go minus the
    group's mean at the same call index.
    """
    rewards = [rollout_reward(t) for t in group.members]
    advantages = centre(rewards, std=std)
    calls = _calls(group.members, rewards, advantages, std=std)
    members = tuple(MemberAdvantage(r, a, tuple(c)) for r, a, c in zip(rewards, advantages, calls, strict=True))
    valid = [r for r in rewards if r is not None]
    if not valid:
        return GroupAdvantage(members, "no_reward")
    if len(valid) == 1:
        return GroupAdvantage(members, "single_member")
    flat = max(valid) == min(valid) and not any(a for m in members for a in m.calls)
    return GroupAdvantage(members, "zero_spread" if flat else None)


def _calls(
    members: Sequence[Trajectory], rewards: Sequence[float | None], advantages: Sequence[float | None], *, std: bool
) -> list[list[float | None]]:
    to_go = [
        returns_to_go(call_credits(t)) if r is not None and t.context.credit.mode in PER_CALL_RETURNS else []
        for t, r in zip(members, rewards, strict=True)
    ]
    longest = max(map(len, to_go), default=0)
    columns = [centre([g[k] if k < len(g) else None for g in to_go], std=std) for k in range(longest)]
    out: list[list[float | None]] = []
    for i, (t, advantage) in enumerate(zip(members, advantages, strict=True)):
        if advantage is None:
            out.append([None] * len(t.calls))
        elif t.context.credit.mode in PER_CALL_RETURNS:
            out.append([columns[k][i] for k in range(len(t.calls))])
        else:
            out.append(_spread(t, advantage))
    return out


def _spread(t: Trajectory, advantage: float) -> list[float | None]:
    """(K,) a rollout's advantage over its kept calls."""
    kept = [k for k, call in enumerate(t.calls) if call.excluded is None]
    out: list[float | None] = [None] * len(t.calls)
    mode, gamma = t.context.credit.mode, t.context.credit.gamma
    for position, k in enumerate(kept):
        later = len(kept) - 1 - position
        if mode == "last":
            out[k] = advantage if later == 0 else None
        elif mode == "discounted":
            out[k] = credit.discounted(advantage, gamma, later)
        else:
            out[k] = advantage
    return out


@register("shuffled")
def shuffled(group: ClosedGroup, std: bool) -> GroupAdvantage:
    """A control: `group_mean` on final rewards permuted within the group, from which nothing can be learned.

    The permutation is drawn from the group's id, so a replay permutes alike.
    """
    order = random.Random(group.group_id).sample(range(len(group.members)), len(group.members))
    moved = (replace(t, final_reward=group.members[i].final_reward) for t, i in zip(group.members, order, strict=True))
    return group_mean(replace(group, members=tuple(moved)), std)
