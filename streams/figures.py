"""What the assembler tells of itself by telemetry: gauges as they are, counters by what came since the last time."""

from __future__ import annotations

from collections.abc import Mapping

from ..infra.clock import NS_PER_S
from ..infra.message import Position
from ..infra.quarantine import Quarantine
from ..infra.telemetry import OFF, Counters, Meter
from .assembler import Assembler
from .messages import SOURCES, Bound

BOUNDS: tuple[Bound, ...] = ("events", "bytes", "open", "total_bytes")
# The core's counts and the metrics they are.
COUNTED = {"late": "spanloop.late_events", "drift": "spanloop.drift", "orphaned": "spanloop.orphans"}


class Figures:
    """Reads a core's counts; costs nothing while telemetry is off."""

    def __init__(self, meter: Meter, core: Assembler, quarantine: Quarantine) -> None:
        self._meter = meter
        self._core = core
        self._quarantine = quarantine
        self._counters = Counters(meter)

    def tell(self, now_ns: int, ends: Mapping[Position, int]) -> None:
        """Reports what there is now. ends: the end offset of each partition, as far as it is known."""
        if self._meter is OFF:
            return
        oldest_ns = min((a.first_ns for a in self._core.attempts.values() if a.dirty), default=now_ns)
        self._meter.add("spanloop.open_attempts", self._core.open_attempts)
        self._meter.add("spanloop.oldest_attempt", (now_ns - oldest_ns) / NS_PER_S)
        while self._core.lateness:
            self._meter.add("spanloop.lateness", self._core.lateness.popleft())
        for topic in SOURCES:
            held = {p.number: p.held(topic) for p in self._core.partitions.values()}
            read_lag = sum(max(0, ends[topic, n] - h.position) for n, h in held.items() if (topic, n) in ends)
            self._meter.add("spanloop.read_lag", read_lag, topic=topic)
            self._meter.add("spanloop.commit_lag", sum(h.lag for h in held.values()), topic=topic)
        for key, name in COUNTED.items():
            self._counters.tell(name, self._core.counts[key])
        self._counters.tell("spanloop.dead_letters", self._quarantine.count)
        for bound in BOUNDS:
            self._counters.tell("spanloop.bounded", self._core.counts[f"bounded_{bound}"], bound=bound)

    def close(self, now_ns: int, ends: Mapping[Position, int]) -> None:
        """Reports for the last time and sends it."""
        self.tell(now_ns, ends)
        self._meter.close()
