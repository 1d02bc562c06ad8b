"""When the assembler must look at an attempt again."""

from __future__ import annotations

from collections.abc import Mapping
from heapq import heapify, heappop, heappush

from ..infra.clock import NS_PER_S
from .attempt import AttemptKey, OpenAttempt
from .messages import Policy

# Looks that may lie in the heap besides four for each attempt; beyond them the void ones are thrown out.
SPARE = 1000


def due_ns(attempt: OpenAttempt, policy: Policy) -> int:
    """When an attempt that stays as it is must be closed, or, once emitted, may be forgotten. Unix nanoseconds."""
    if not attempt.dirty:
        return attempt.last_ns + _ns(policy.hold_s)
    if attempt.end is not None:
        if attempt.emitted is None:
            return attempt.end_seen_ns + _ns(policy.grace_s)
        return attempt.dirty_ns + _ns(policy.revision_s if attempt.complete else policy.grace_s)
    last = attempt.first_ns + _ns(policy.absolute_s)
    if attempt.begun or attempt.spans_first is None:
        return last  # its end marker, or all its spans, are owed to it; agents, tools and brokers may pause for long
    wait = policy.grace_s if attempt.root_ended and not attempt.absent else policy.idle_s
    return min(attempt.last_ns + _ns(wait), last)


def at_once(attempt: OpenAttempt, policy: Policy) -> bool:
    """Whether an attempt that something came for is emitted with it, and no look at it is needed."""
    if not attempt.dirty:
        return attempt.emitted is not None
    return attempt.complete and (attempt.emitted is None or attempt.events <= policy.revised_at_once)


class Deadlines:
    """One pending look per attempt. A look that comes too early sets the next, so a later one is never set anew."""

    def __init__(self, policy: Policy, attempts: Mapping[AttemptKey, OpenAttempt]) -> None:
        self._policy = policy
        self._attempts = attempts
        self._heap: list[tuple[int, AttemptKey]] = []

    def set(self, attempt: OpenAttempt) -> None:
        """Has an attempt looked at in time."""
        due = due_ns(attempt, self._policy)
        if attempt.deadline_ns is None or due < attempt.deadline_ns:
            attempt.deadline_ns = due
            heappush(self._heap, (due, attempt.key))
            if len(self._heap) > SPARE + 4 * len(self._attempts):
                self._sweep()

    def pop(self, now_ns: int) -> tuple[int, AttemptKey] | None:
        """(when it was set for, the attempt's key) of one look that is due."""
        return heappop(self._heap) if self._heap and self._heap[0][0] <= now_ns else None

    def is_due(self, attempt: OpenAttempt, now_ns: int) -> bool:
        """Whether its time has come; if not, the next look is set."""
        attempt.deadline_ns = None
        if due_ns(attempt, self._policy) <= now_ns:
            return True
        self.set(attempt)
        return False

    def _sweep(self) -> None:
        known = ((look, self._attempts.get(look[1])) for look in self._heap)
        self._heap = [look for look, attempt in known if attempt is not None and attempt.deadline_ns == look[0]]
        heapify(self._heap)

    def __len__(self) -> int:
        return len(self._heap)


def _ns(seconds: float) -> int:
    return int(seconds * NS_PER_S)
