"""Rewards of an attempt: which are valid, which call each belongs to, which one is final. Pure."""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property
from itertools import accumulate
from typing import Literal

from ..schemas.credit import REWARD_MAX, valid
from ..schemas.errors import InvalidRecord
from ..schemas.records import AttemptEnd, Reward, RewardRef
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
    """Raises InvalidRecord where a reward's value is NaN, infinite or too large: nothing downstream may see it."""
    value = scalar(reward)
    if value is None or valid(value) is not None:
        return
    who = f"reward {reward.reward_id} of attempt {reward.attempt_id} is {value}"
    if not math.isfinite(value):
        raise InvalidRecord("nonfinite_reward", f"{who}; expected a finite number or null")
    raise InvalidRecord("reward_out_of_range", f"{who}; expected -{REWARD_MAX:g} to {REWARD_MAX:g} or null")


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
    return valid(failure)


def place(
    calls: Sequence[SpanNode],
    rewards: Sequence[Reward],
    tree: Tree,
    *,
    used: Sequence[bool],
    twins: Mapping[int, int],
    rule: StepRule,
) -> tuple[list[float | None], list[RewardRef]]:
    """Each call's step reward, and every reward as it counted.

    calls: (K,) in order. used: (K,) whether the agent used that call's answer. twins: a call seen twice -> the one that
    stays. Returns (K,) and one reference each. Several step rewards of one call are added up, or the newest one counts
    (`rule`).
    """
    own: list[float | None] = [None] * len(calls)
    refs: list[RewardRef] = []
    known = _Places(calls, tree, used, twins) if any(r.scope == "step" for r in rewards) else None
    for reward in sorted(rewards, key=by_time):
        flags = [] if all(map(math.isfinite, reward.dimensions.values())) else ["nonfinite_dimension"]
        at, placed = known.target(reward) if known is not None and reward.scope == "step" else (None, False)
        value = scalar(reward)
        if at is not None and value is not None:
            before = own[at]
            own[at] = value if before is None or rule == "last" else before + value
        if placed:
            flags.append("reward_placed_by_order")
        target = reward.span_id if at is None else calls[at].span_id
        refs.append(RewardRef(reward.reward_id, reward.name, reward.scope, value, target, flags))
    return [valid(value) for value in own], refs  # a sum may be past what each reward is within


class _Places:
    """Where step rewards belong. Built once for an attempt, and only what its rewards ask for; each costs look-ups."""

    def __init__(self, calls: Sequence[SpanNode], tree: Tree, used: Sequence[bool], twins: Mapping[int, int]) -> None:
        self._calls, self._tree = calls, tree
        self._used = [i for i, is_used in enumerate(used) if is_used]
        unused = [i for i, is_used in enumerate(used) if not is_used]
        self._exact: dict[str, int] = {}  # call's span -> its first used call
        for i in [*reversed(unused), *reversed(self._used)]:
            self._exact[calls[i].span_id] = twins.get(i, i)

    @cached_property
    def _inside(self) -> dict[str, int]:
        """Span -> the last used call in it."""
        marks: dict[str, int] = {}
        for i in reversed(self._used):  # so a span that is marked needs no other mark, nor does what is above it
            at = self._tree.spans.get(self._calls[i].span_id)
            while at is not None and at.span_id not in marks:
                marks[at.span_id] = i
                at = self._tree.parent(at.span_id)
        return marks

    @cached_property
    def _own(self) -> dict[str, int]:
        """Span -> the last used call in it that is under the span's own agent."""
        marks: dict[str, int] = {}
        for i in reversed(self._used):
            at = self._tree.spans.get(self._calls[i].span_id)
            path = self._tree.agent_path(self._calls[i].span_id)
            while at is not None and at.span_id not in marks and self._tree.agent_path(at.span_id) == path:
                marks[at.span_id] = i
                at = self._tree.parent(at.span_id)
        return marks

    @cached_property
    def _lines(self) -> dict[str, Line]:
        members: dict[str, list[int]] = defaultdict(list)
        for i in reversed(self._used):
            members[self._tree.agent_path(self._calls[i].span_id)].append(i)
        return {path: Line(indices, self._calls) for path, indices in members.items()}

    def target(self, reward: Reward) -> tuple[int | None, bool]:
        """(the call a step reward belongs to, whether it was placed by order). None: it belongs to no call.

        Its target span, if that is a call; else the last call inside the target span, of the target's own agent if it
        is an agent's; else the call before the target, of that agent. Without a target the call before it in order,
        where only one agent made calls: with several there is no telling whose it is, and another agent's call must not
        get it.
        """
        if reward.span_id is None:
            line = next(iter(self._lines.values())) if len(self._lines) == 1 else None
            return _placed(line and line.before(reward.created_ns, reward.producer_id, reward.sequence))
        if (exact := self._exact.get(reward.span_id)) is not None:
            return exact, False
        target = self._tree.spans.get(reward.span_id)
        if target is None:
            return None, False
        path = self._tree.agent_path(target.span_id)
        inside = (self._own if path else self._inside).get(target.span_id)
        if inside is not None:
            return inside, False
        line = self._lines.get(path)
        return _placed(line and line.before(target.start_ns, target.producer))


def _placed(call: int | None) -> tuple[int | None, bool]:
    return call, call is not None


class Line:
    """The used calls of one agent, to find the last one before a moment. Of no call: -1."""

    def __init__(self, members: Sequence[int], calls: Sequence[SpanNode]) -> None:
        self._calls = calls
        self._members = members
        by_start = sorted(members, key=lambda i: calls[i].start_ns)
        self._starts = [calls[i].start_ns for i in by_start]
        self._last = [(-1, -1), *accumulate(((i, -1) for i in by_start), self._later)]
        numbered: dict[str, list[tuple[int, int]]] = defaultdict(list)
        for i in members:
            numbered[calls[i].producer].append((calls[i].sequence, i))
        self._numbered = {producer: _Numbers(pairs) for producer, pairs in numbered.items()}

    def _later(self, so_far: tuple[int, int], new: tuple[int, int]) -> tuple[int, int]:
        """(the last call, the last one of another producer than that one's), with one more call."""
        (last, other), (call, _) = so_far, new
        alike = self._calls[call].producer == self._calls[last].producer
        if call > last:
            return call, other if alike else last
        return last, other if alike else max(other, call)

    def before(self, time_ns: int, producer: str, sequence: int | None = None) -> int | None:
        """The last call before a moment: by `sequence` where its producer numbered the call too, else by start time.

        The only call is taken though its clock says that it came later, unless that is the producer's own clock.
        """
        last, other = self._last[bisect_right(self._starts, time_ns)]
        if sequence is not None:
            by_clock = other if last >= 0 and self._calls[last].producer == producer else last
            numbers = self._numbered.get(producer)
            last = max(by_clock, numbers.before(sequence) if numbers is not None else -1)
        if last >= 0:
            return last
        only = self._members[0]
        return only if len(self._members) == 1 and self._calls[only].producer != producer else None


class _Numbers:
    """Calls of one producer by its sequence."""

    def __init__(self, pairs: Iterable[tuple[int, int]]) -> None:
        ordered = sorted(pairs)
        self._sequences = [sequence for sequence, _ in ordered]
        self._last = [-1, *accumulate((call for _, call in ordered), max)]

    def before(self, sequence: int) -> int:
        return self._last[bisect_left(self._sequences, sequence)]
