"""Time as a parameter, so that logic can be tested without waiting."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Protocol

NS_PER_S = 1_000_000_000


class Clock(Protocol):
    """What logic may know of time."""

    def now_ns(self) -> int:
        """Unix time in nanoseconds; comparable between machines as far as their clocks agree."""
        ...

    def steady_s(self) -> float:
        """Seconds that never go back and go on while the process is stopped; comparable within one machine."""
        ...


class SystemClock:
    """The machine's clocks."""

    def now_ns(self) -> int:
        return time.time_ns()

    def steady_s(self) -> float:
        return time.clock_gettime(STEADY)


# CLOCK_BOOTTIME also counts while the machine sleeps; where there is none (macOS), monotonic does nearly that.
STEADY: int = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)


@dataclass(slots=True)
class ManualClock:
    """A clock that moves only when told to."""

    ns: int = 1_760_000_000_000_000_000

    def now_ns(self) -> int:
        return self.ns

    def steady_s(self) -> float:
        return self.ns / NS_PER_S

    def advance(self, seconds: float) -> None:
        """Moves both clocks forward."""
        self.ns += int(seconds * NS_PER_S)
