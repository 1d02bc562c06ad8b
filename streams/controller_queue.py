"""A run's queue: by priority, then by age of the group, a group's members in order; and what its trainer may still get.

Train tasks of a group not yet started lie in `gated` and come out only while the trainer's credit takes the whole
group; everything else lies in `open`. Both are heaps whose stale entries are dropped when they come up.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable
from dataclasses import dataclass, field

from ..schemas.records import Task

Entry = tuple[int, int, int, int, str]  # (-priority, age of the group, sample, ticket, rollout id)
Valid = Callable[[Entry], bool]


def group_of(task: Task) -> str:
    """A rollout without a group is a group of its own, as for the trainer."""
    return task.group_id or task.rollout_id


@dataclass(slots=True)
class Bucket:
    """Queued rollouts that need the same labels."""

    open: list[Entry] = field(default_factory=list[Entry])
    gated: list[Entry] = field(default_factory=list[Entry])

    def head(self, valid: Valid, may_start: Callable[[str], bool]) -> Entry | None:
        """The first entry that may go out now."""
        first = _top(self.open, valid)
        gated = _top(self.gated, valid)
        if gated is not None and (first is None or gated < first) and may_start(gated[4]):
            return gated
        return first


def _top(heap: list[Entry], valid: Valid) -> Entry | None:
    while heap:
        if valid(heap[0]):
            return heap[0]
        heapq.heappop(heap)
    return None


@dataclass(slots=True)
class Group:
    """A group with open rollouts."""

    age: int
    size: int
    open: set[str] = field(default_factory=set[str])  # its rollouts that are not final


@dataclass(slots=True)
class Trainer:
    """What a trainer of this run last said."""

    credit: int | None
    heard_ns: int


@dataclass(slots=True)
class Run:
    """One run's queue, groups and figures."""

    buckets: dict[frozenset[str], Bucket] = field(default_factory=dict[frozenset[str], Bucket])
    open: dict[str, None] = field(default_factory=dict[str, None])  # rollouts that are not final, oldest first
    queued: int = 0
    given: int = 0  # attempts given to workers and not ended
    served: int = 0  # when it was last served, for the round
    groups: dict[str, Group] = field(default_factory=dict[str, Group])
    started: dict[str, int] = field(default_factory=dict[str, int])  # train group -> rollouts it holds of the credit
    closed: set[str] = field(default_factory=set[str])  # decided groups, as long as `ControllerState.decided` tells
    outstanding: int = 0  # sum of `started`
    trainers: dict[str, Trainer] = field(default_factory=dict[str, Trainer])
    paused: bool = False  # by an order for the whole run
    limit: int | None = None  # attempts out at once; null = any number
    cancel_ns: int = 0  # what was taken in up to then is being cancelled; 0 = nothing

    @property
    def ready(self) -> bool:
        """Whether something of it may be given out."""
        if not self.queued or self.paused or self.cancel_ns:
            return False
        return self.limit is None or self.given < self.limit

    @property
    def ordered(self) -> bool:
        """Whether an order stands that must outlive a restart."""
        return self.paused or self.limit is not None or self.cancel_ns > 0

    def push(self, task: Task, entry: Entry) -> None:
        """Puts an entry into its queue."""
        bucket = self.buckets.setdefault(frozenset(task.requirements), Bucket())
        heapq.heappush(bucket.gated if self.gated(task) else bucket.open, entry)
        self.queued += 1

    def enter(self, task: Task, age: int) -> None:
        """Notes an open rollout."""
        self.open[task.rollout_id] = None
        name = group_of(task)
        group = self.groups.setdefault(name, Group(age, max(1, task.group_size)))
        group.open.add(task.rollout_id)

    def leave(self, task: Task) -> None:
        """Notes that a rollout is final."""
        self.open.pop(task.rollout_id, None)
        name = group_of(task)
        group = self.groups.get(name)
        if group is None:
            return
        group.open.discard(task.rollout_id)
        if not group.open:
            del self.groups[name]

    def gated(self, task: Task) -> bool:
        """True for a task that must wait for credit: of mode train, its group neither started nor decided."""
        name = group_of(task)
        return task.mode == "train" and name not in self.started and name not in self.closed

    def start(self, task: Task) -> bool:
        """A group's first dispatch takes the whole group from the credit; True if it was the first."""
        if not self.gated(task):
            return False
        size = max(1, task.group_size)
        self.started[group_of(task)] = size
        self.outstanding += size
        return True

    def decide(self, group_id: str) -> None:
        """A closed group gives its credit back; members that come later take none, for no decision follows on them."""
        self.outstanding -= self.started.pop(group_id, 0)
        self.closed.add(group_id)

    def bound(self, now_ns: int, silent_ns: int) -> int | None:
        """How many rollouts may be outstanding; null = any number."""
        found = [t.credit for t in self.trainers.values() if t.heard_ns + silent_ns >= now_ns]
        credits = [c for c in found if c is not None]
        return max(credits) if credits and len(credits) == len(found) else None

    def may_start(self, size: int, bound: int | None) -> bool:
        """Whether a group fits the credit. One larger than all of it goes alone, else it would wait for ever."""
        return bound is None or self.outstanding + size <= bound or (self.outstanding == 0 and bound > 0)

    @property
    def idle(self) -> bool:
        """True when forgetting it loses nothing."""
        return not (self.open or self.started or self.closed or self.trainers or self.ordered)
