"""What the assembler tells of itself by telemetry: gauges as they are, counters by what came since the last time."""

from __future__ import annotations

from collections import Counter

from ..infra.quarantine import Quarantine
from ..infra.telemetry import OFF, Meter
from .assembler import Assembler

# The core's counts and the metrics they are.
COUNTED = {"late": "spanloop.late_events", "drift": "spanloop.drift", "orphaned": "spanloop.orphans"}


class Figures:
    """Reads a core's counts; costs nothing while telemetry is off."""

    def __init__(self, meter: Meter, core: Assembler, quarantine: Quarantine) -> None:
        self._meter = meter
        self._core = core
        self._quarantine = quarantine
        self._told: Counter[str] = Counter()

    def tell(self) -> None:
        """Reports what there is now."""
        if self._meter is OFF:
            return
        self._meter.add("spanloop.open_attempts", self._core.open_attempts)
        for topic in ("spans", "rewards"):
            lag = sum(p.held(topic).lag for p in self._core.partitions.values())
            self._meter.add("spanloop.commit_lag", lag, topic=topic)
        counts = {name: self._core.counts[key] for key, name in COUNTED.items()}
        counts["spanloop.dead_letters"] = self._quarantine.count
        for name, count in counts.items():
            if more := count - self._told[name]:
                self._meter.add(name, more)
                self._told[name] = count

    def close(self) -> None:
        """Reports for the last time and sends it."""
        self.tell()
        self._meter.close()
