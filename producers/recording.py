"""`record`: runs a block as an attempt of its own, with what it emits in memory: for debugging agents and testing them.

with record() as seen:
    my_agent({"question": "get 7?"}, llm)
seen.rewards[-1].value
"""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass, field

from ..schemas import ids
from ..schemas.records import Reward, Span
from . import context


@dataclass(eq=False, slots=True)
class Recorded:
    """A `context.Sink` that keeps everything."""

    rollout_id: str
    attempt_id: str
    spans: list[Span] = field(default_factory=list[Span])
    rewards: list[Reward] = field(default_factory=list[Reward])

    def span(self, span: Span) -> None:
        self.spans.append(span)

    def reward(self, reward: Reward) -> None:
        self.rewards.append(reward)


@contextmanager
def record(rollout_id: str | None = None, attempt_id: str | None = None) -> Generator[Recorded]:
    """Collects what the block emits, at its end the spans still open too; nothing leaves the process."""
    seen = Recorded(rollout_id or ids.rollout_id(), attempt_id or ids.attempt_id())
    scope = context.Scope(seen.rollout_id, seen.attempt_id, "recorded", seen)
    with context.attempt(scope):
        try:
            yield seen
        finally:
            scope.hand_over()
