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
from ..schemas.records import Credit, Trajectory
from .groups import ClosedGroup

# Keeps a division by a tiny standard deviation finite; small enough that rewards 1e-5 apart still give ±0.62.
STD_EPS = 1e-6


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
    return credit.valid(reward)


def call_credits(t: Trajectory) -> list[float | None]:
    """(K,) credit of each call by the task's mode."""
    own = [credit.valid(c.step_reward) for c in t.calls]
    return credit.spread(t.context.credit, own, final_reward(t), [c.excluded for c in t.calls])


def rollout_reward(t: Trajectory) -> float | None:
    """R_ρ, the figure members are compared by; None = invalid, the member leaves the baseline.

    The final reward (identical, last, discounted; and where no call takes it) or the sum of the calls' credits (step,
    sum; and where there is no final reward). A failure of class infra is nobody's doing and teaches nothing, whatever
    its reward. Where a bound took the calls away, their sum is not known, and the final reward alone would be another
    figure than its siblings'.
    """
    if t.failure_class == "infra":
        return None
    final = final_reward(t)
    if final is not None and t.context.credit.mode not in credit.OWN_COUNTS:
        return final
    if not t.calls and "bounded" in t.flags:
        return None
    known = [c for c in call_credits(t) if c is not None]
    return math.fsum(known) if known else final


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
    group's mean at the same index among the kept calls.
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
    by_call = [t.context.credit.mode in credit.OWN_COUNTS for t in members]
    to_go = [
        _kept_returns(t) if r is not None and by else [] for t, r, by in zip(members, rewards, by_call, strict=True)
    ]
    longest = max(map(len, to_go), default=0)
    columns = [centre([g[k] if k < len(g) else None for g in to_go], std=std) for k in range(longest)]
    out: list[list[float | None]] = []
    for i, (t, advantage) in enumerate(zip(members, advantages, strict=True)):
        if advantage is None:
            out.append([None] * len(t.calls))
        elif by_call[i]:
            out.append(_at_kept(t, [columns[k][i] for k in range(len(to_go[i]))]))
        else:
            out.append(_at_kept(t, _spread(t.context.credit, advantage, len(_kept(t)))))
    return out


def _kept(t: Trajectory) -> list[int]:
    return [k for k, call in enumerate(t.calls) if call.excluded is None]


def _kept_returns(t: Trajectory) -> list[float | None]:
    """Return-to-go at each kept call; what comes on calls that are in no row counts in it."""
    to_go = returns_to_go(call_credits(t))
    return [to_go[k] for k in _kept(t)]


def _at_kept(t: Trajectory, values: Sequence[float | None]) -> list[float | None]:
    """(K,) one value per kept call, None for the others."""
    out: list[float | None] = [None] * len(t.calls)
    for k, value in zip(_kept(t), values, strict=True):
        out[k] = value
    return out


def _spread(how: Credit, advantage: float, count: int) -> list[float | None]:
    """A rollout's advantage over its kept calls."""
    if how.mode == "last":
        return [advantage if k == count - 1 else None for k in range(count)]
    if how.mode == "discounted":
        return [credit.discounted(advantage, how.gamma, count - 1 - k) for k in range(count)]
    return [advantage] * count


@register("shuffled")
def shuffled(group: ClosedGroup, std: bool) -> GroupAdvantage:
    """A control: `group_mean` on final rewards permuted within the group, from which nothing can be learned.

    The permutation is drawn from the group's id, so a replay permutes alike.
    """
    order = random.Random(group.group_id).sample(range(len(group.members)), len(group.members))
    moved = (replace(t, final_reward=group.members[i].final_reward) for t, i in zip(group.members, order, strict=True))
    return group_mean(replace(group, members=tuple(moved)), std)
