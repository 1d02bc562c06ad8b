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

    pins: dict[str, int | None]
    failed: set[bytes] = field(default_factory=set[bytes])  # digests of requests whose answer did not get through


class Attempts:
    """Events in, liveness out. Written by one thread, read by another."""

    def __init__(self) -> None:
        self._live: dict[tuple[str, str], LiveAttempt] = {}  # by rollout and attempt id
        self._ended: set[tuple[str, str]] = set()
        self._order: deque[tuple[str, str]] = deque()

    def observe(self, event: Attempt) -> None:
        """Takes an event. An ended attempt stays ended, whatever comes after."""
        key = event.rollout_id, event.attempt_id
        if key in self._ended:
            return
        if event.status == "ended":
            self._live.pop(key, None)
            self._remember(key)
        elif key not in self._live:
            self._live[key] = LiveAttempt(event.pins)

    def liveness(self, rollout_id: str, attempt_id: str) -> Liveness:
        """Whether calls of an attempt may be served. An attempt of another rollout is unknown."""
        key = rollout_id, attempt_id
        if key in self._live:
            return "live"
        return "ended" if key in self._ended else "unknown"

    def get(self, rollout_id: str, attempt_id: str) -> LiveAttempt | None:
        """A live attempt."""
        return self._live.get((rollout_id, attempt_id))

    def __len__(self) -> int:
        return len(self._live)

    def _remember(self, key: tuple[str, str]) -> None:
        self._ended.add(key)
        self._order.append(key)
        if len(self._order) > REMEMBERED:
            self._ended.discard(self._order.popleft())
