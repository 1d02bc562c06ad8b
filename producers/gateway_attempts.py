"""Which attempts are live, by the `attempts` topic, and which calls of theirs went wrong and may come again."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import Literal

from ..schemas.records import Attempt

Liveness = Literal["live", "ended", "unknown"]
# Enough to word a refusal well; forgetting one only turns "ended" into "unknown".
REMEMBERED = 10_000


@dataclass(slots=True)
class LiveAttempt:
    """An attempt between its dispatch and its end."""

    rollout_id: str
    pins: dict[str, int | None]
    failed: set[bytes] = field(default_factory=set[bytes])  # digests of requests whose answer did not get through


class Attempts:
    """Events in, liveness out. Written by one thread, read by another."""

    def __init__(self) -> None:
        self._live: dict[str, LiveAttempt] = {}
        self._ended: dict[str, str] = {}  # attempt id -> rollout id
        self._order: deque[str] = deque()

    def observe(self, event: Attempt) -> None:
        """Takes an event. An ended attempt stays ended, whatever comes after."""
        if event.attempt_id in self._ended:
            return
        if event.status == "ended":
            self._live.pop(event.attempt_id, None)
            self._remember(event)
        elif event.attempt_id not in self._live:
            self._live[event.attempt_id] = LiveAttempt(event.rollout_id, event.pins)

    def liveness(self, rollout_id: str, attempt_id: str) -> Liveness:
        """Whether calls of an attempt may be served. An attempt of another rollout is unknown."""
        live = self._live.get(attempt_id)
        if live is not None:
            return "live" if live.rollout_id == rollout_id else "unknown"
        return "ended" if self._ended.get(attempt_id) == rollout_id else "unknown"

    def get(self, attempt_id: str) -> LiveAttempt | None:
        """A live attempt."""
        return self._live.get(attempt_id)

    def __len__(self) -> int:
        return len(self._live)

    def _remember(self, event: Attempt) -> None:
        self._ended[event.attempt_id] = event.rollout_id
        self._order.append(event.attempt_id)
        if len(self._order) > REMEMBERED:
            del self._ended[self._order.popleft()]
