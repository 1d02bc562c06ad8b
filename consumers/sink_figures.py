"""What the sink tells of itself by telemetry: what it stored, refused and inserted, and how far it is behind."""

from __future__ import annotations

from collections import Counter
from collections.abc import Generator
from contextlib import contextmanager

from ..infra.clock import Clock, SystemClock
from ..infra.kafka import Member
from ..infra.read_lag import read_lag
from ..infra.telemetry import OFF, Meter
from .batches import Portion


class SinkFigures:
    """Counts by topic; costs nothing while telemetry is off. Thread-safe as far as its meter is."""

    def __init__(self, meter: Meter = OFF, clock: Clock | None = None) -> None:
        self._meter = meter
        self._clock = clock or SystemClock()
        self._member: Member | None = None

    def watch(self, member: Member) -> Member:
        """From now on the lag is this member's; hands it back."""
        self._member = member
        return member

    @contextmanager
    def inserting(self, topic: str, size: int) -> Generator[None]:
        """Around an insert of `size` bytes; what fails counts as nothing."""
        start_s = self._clock.steady_s()
        yield
        self._meter.add("spanloop.sink.inserts", topic=topic)
        self._meter.add("spanloop.sink.bytes", size, topic=topic)
        self._meter.add("spanloop.sink.insert", self._clock.steady_s() - start_s, topic=topic)

    def stored(self, portions: list[Portion]) -> None:
        """After a flush: its records, those refused among them, and what is still to be read."""
        if self._meter is OFF:
            return
        records, refused = Counter[str](), Counter[str]()
        for portion in portions:
            records[portion.topic] += portion.records - len(portion.refused)
            refused[portion.topic] += len(portion.refused)
        for topic, count in (+records).items():
            self._meter.add("spanloop.records", count, topic=topic)
        for topic, count in (+refused).items():
            self._meter.add("spanloop.dead_letters", count, topic=topic)
        for topic, lag in (read_lag(self._member) if self._member else {}).items():
            self._meter.add("spanloop.read_lag", lag, topic=topic)

    def close(self) -> None:
        """Sends what is left."""
        self._meter.close()
