"""The attempts in memory: how large they are, and whose events to let go of first."""

from __future__ import annotations

from collections import OrderedDict

from ..schemas.records import SpanBatch
from .attempt import AttemptKey, OpenAttempt
from .nodes import RewardNode


class Memory:
    """Attempts by key. What was emitted can be read again, so it goes before what no revision holds yet."""

    def __init__(self) -> None:
        self.attempts: OrderedDict[AttemptKey, OpenAttempt] = OrderedDict()  # least recently touched first
        self.size = 0  # bytes held, roughly
        self._emitted: OrderedDict[AttemptKey, OpenAttempt] = OrderedDict()  # oldest first; some have changed since

    def touch(self, key: AttemptKey) -> OpenAttempt | None:
        """An attempt that something came for."""
        attempt = self.attempts.get(key)
        if attempt is not None:
            self.attempts.move_to_end(key)
        return attempt

    def take_batch(self, attempt: OpenAttempt, batch: SpanBatch, offset: int, now_ns: int) -> None:
        """Puts a record of spans into an attempt."""
        before = attempt.size
        attempt.take_batch(batch, offset, now_ns)
        self.size += attempt.size - before

    def take_reward(self, attempt: OpenAttempt, node: RewardNode) -> None:
        """Puts a record of rewards into an attempt."""
        before = attempt.size
        attempt.take_reward(node)
        self.size += attempt.size - before

    def keep(self, attempt: OpenAttempt) -> None:
        """Notes that an attempt was emitted and stays only so that it need not be read again."""
        self._emitted[attempt.key] = attempt
        self._emitted.move_to_end(attempt.key)

    def free(self, attempt: OpenAttempt) -> None:
        """Lets go of an attempt."""
        self.attempts.pop(attempt.key, None)
        self._emitted.pop(attempt.key, None)
        self.size -= attempt.size

    def spare(self) -> OpenAttempt:
        """The attempt to let go of first: the one emitted longest ago, else the one touched longest ago."""
        while self._emitted:
            _, attempt = self._emitted.popitem(last=False)
            if not attempt.dirty:
                return attempt
        return next(iter(self.attempts.values()))
