"""A Reader for a part that is to end within seconds: no question to a broker that is away holds it up for long."""

from __future__ import annotations

import threading

from ..infra.clock import Clock, SystemClock
from ..infra.kafka import METADATA_TIMEOUT_S, Position, Reader
from ..infra.settings import Settings
from ..schemas.errors import Unavailable

# Until a question returns, not even a signal is heard.
TURN_S = 2.0


class StoppableReader(Reader):
    """A Reader that asks for a partition's ends in turns, and no further one once it is told to stop."""

    def __init__(self, settings: Settings, name: str, stop: threading.Event, clock: Clock | None = None) -> None:
        super().__init__(settings, name)
        self._stop = stop
        self._clock = clock or SystemClock()

    def watermarks(self, position: Position, timeout_s: float = METADATA_TIMEOUT_S) -> tuple[int, int]:
        """As Reader's; Unavailable too where told to stop meanwhile."""
        began_s = self._clock.steady_s()
        deadline_s = began_s + timeout_s
        while True:
            turn_s = min(TURN_S, deadline_s - began_s)
            try:
                return super().watermarks(position, turn_s)
            except Unavailable:
                now_s = self._clock.steady_s()
                answered = now_s < began_s + turn_s / 2
                if answered or now_s >= deadline_s or self._stop.is_set():
                    raise
                began_s = now_s
