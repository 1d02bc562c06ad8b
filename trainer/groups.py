"""Which rollouts are compared with each other, and when a group is complete. Pure; time is passed in.

    offer(trajectory) ──▶ open group ──(all members done | deadline)──▶ closed, for ever ──▶ ready ──▶ take(n)

A member is done when the trajectory of its final attempt is there and the rewards it awaits have come or their
deadline has passed, counted from that trajectory's first record in the log: no worker's clock matters. A closed group
never opens again: what comes for it later is counted and not trained. So only `tick` closes by time, as of a moment up
to which the log was offered: what came in time is never too late.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Literal

from ..infra.clock import NS_PER_S
from ..schemas.records import Trajectory

Outcome = Literal["taken", "superseded", "late"]


@dataclass(frozen=True, slots=True)
class ClosedGroup:
    """Rollouts to compare: one trajectory each, by sample index."""

    group_id: str
    members: tuple[Trajectory, ...]
    size: int  # rollouts the group was enqueued with
    partial: bool = False  # closed by its deadline
    order: int = 0  # groups close in this order

    @property
    def oldest_version(self) -> int:
        """Lowest policy version in any row; -1 where no row names one."""
        versions = [v.version for t in self.members for row in t.rows for v in row.policy_versions]
        return min(versions, default=-1)


@dataclass(slots=True)
class OpenGroup:
    """A group that is not complete: the newest revision of each attempt seen."""

    first_seen_ns: int
    size: int
    attempts: dict[str, Trajectory] = field(default_factory=dict[str, Trajectory])
    written: dict[str, int] = field(default_factory=dict[str, int])  # final attempt -> when its first record was

    def complete(self, now_ns: int | None = None) -> bool:
        """True once all members are done; without `now_ns` no deadline has passed."""
        members = counting(self.attempts.values()).values()
        return len(members) >= max(1, self.size) and all(self._settled(t, now_ns) for t in members)

    def _settled(self, t: Trajectory, now_ns: int | None) -> bool:
        """True once the rewards it awaits have come, or at `now_ns` are not waited for any longer."""
        if set(t.context.await_rewards) <= {r.name for r in t.rewards}:
            return True
        wait_ns = t.context.reward_deadline_s * NS_PER_S
        if now_ns is None or not math.isfinite(wait_ns):  # a foreign producer's may be: then its group's deadline is
            return False
        return now_ns >= self.written.get(t.attempt_id, self.first_seen_ns) + int(wait_ns)


@dataclass(slots=True)
class GroupState:
    """Everything a restart needs of the feed besides its offsets."""

    open: dict[str, OpenGroup] = field(default_factory=dict[str, OpenGroup])
    ready: list[ClosedGroup] = field(default_factory=list[ClosedGroup])
    closed: set[str] = field(default_factory=set[str])
    # members of recorded batches that were read again and not applied yet, by (attempt_id, revision); see `replay`
    held: dict[tuple[str, int], Trajectory] = field(default_factory=dict[tuple[str, int], Trajectory])
    next_order: int = 0
    late: int = 0  # trajectories that came for closed groups


def group_of(trajectory: Trajectory) -> str:
    """A trajectory's group; one without a group is alone in its own."""
    return trajectory.context.group_id or trajectory.rollout_id


def counting(attempts: Iterable[Trajectory]) -> dict[str, Trajectory]:
    """rollout_id -> the final attempt's trajectory; of several final ones the last try."""
    out: dict[str, Trajectory] = {}
    for t in attempts:
        held = out.get(t.rollout_id)
        if t.final and (held is None or _try(t) > _try(held)):
            out[t.rollout_id] = t
    return out


def _try(t: Trajectory) -> tuple[int, str]:
    return t.context.attempt_number, t.attempt_id


class Groups:
    """The transitions of GroupState."""

    def __init__(self, deadline_s: float, state: GroupState | None = None) -> None:
        self.state = state or GroupState()
        self._deadline_ns = int(deadline_s * NS_PER_S)

    def offer(self, t: Trajectory, now_ns: int, written_ns: int | None = None) -> Outcome:
        """Takes one trajectory in; closes its group if that completes it. No deadline is judged here.

        written_ns: time stamp of its record, in Unix nanoseconds; None where the log has none: `now_ns`, which counts
        too for a stamp from the future, as of a clock that is ahead.
        """
        group_id = group_of(t)
        if group_id in self.state.closed:
            self.state.late += 1
            return "late"
        group = self.state.open.setdefault(group_id, OpenGroup(now_ns, t.context.group_size))
        group.size = max(group.size, t.context.group_size)
        held = group.attempts.get(t.attempt_id)
        if held is not None and t.age <= held.age:
            return "superseded"
        group.attempts[t.attempt_id] = t
        if t.final:
            group.written.setdefault(t.attempt_id, now_ns if written_ns is None else min(now_ns, written_ns))
        if group.complete():
            self._close(group_id, partial=False)
        return "taken"

    def due(self, now_ns: int) -> list[str]:
        """Open groups that time completes: reward deadlines and group deadlines."""
        last_ns = now_ns - self._deadline_ns
        return [i for i, g in self.state.open.items() if g.first_seen_ns <= last_ns or g.complete(now_ns)]

    def tick(self, now_ns: int) -> None:
        """Closes what is due. Everything that was in the log at `now_ns` must have been offered."""
        for group_id in self.due(now_ns):
            self._close(group_id, partial=not self.state.open[group_id].complete(now_ns))

    def take(self, count: int) -> list[ClosedGroup]:
        """The next `count` ready groups, oldest policy version first, then by closing order; [] while there are fewer.

        Oldest first, because the rest can wait for another step without growing too stale.
        """
        ready = self.state.ready
        if len(ready) < count:
            return []
        ready.sort(key=lambda g: (g.oldest_version, g.order))
        taken, self.state.ready = ready[:count], ready[count:]
        return taken

    def withdraw(self, group_ids: Iterable[str]) -> list[Trajectory]:
        """Marks groups closed by decision of the log; returns what was held of them."""
        ids = set(group_ids)
        held = [t for i in ids & self.state.open.keys() for t in self.state.open.pop(i).attempts.values()]
        held += [t for g in self.state.ready if g.group_id in ids for t in g.members]
        self.state.ready = [g for g in self.state.ready if g.group_id not in ids]
        self.state.closed |= ids
        return held

    def _close(self, group_id: str, *, partial: bool) -> None:
        group = self.state.open.pop(group_id)
        members = counting(group.attempts.values()).values()
        ordered = sorted(members, key=lambda t: (t.context.sample, t.rollout_id))
        self.state.ready.append(ClosedGroup(group_id, tuple(ordered), group.size, partial, self.state.next_order))
        self.state.next_order += 1
        self.state.closed.add(group_id)
