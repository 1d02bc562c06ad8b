"""What the assembler reports of itself."""

from __future__ import annotations

from dataclasses import dataclass
from typing import cast

from events import Bench, batch, end, llm
from fake_meter import FakeMeter

from spanloop.infra.quarantine import Quarantine
from spanloop.streams.figures import Figures


@dataclass
class Counting:
    """The part of a Quarantine that is read."""

    count: int = 0


def test_gauges_say_what_is_and_counters_only_what_came_since() -> None:
    bench, meter, quarantine = Bench(), FakeMeter(), Counting(count=2)
    figures = Figures(meter, bench.assembler, cast("Quarantine", quarantine))
    bench.give(batch(llm("a", [1], [2]), begin=True))
    figures.tell()
    assert meter.added == [
        ("spanloop.open_attempts", 1, {}),
        ("spanloop.commit_lag", 1, {"topic": "spans"}),
        ("spanloop.commit_lag", 0, {"topic": "rewards"}),
        ("spanloop.dead_letters", 2, {}),
    ]
    meter.added.clear()
    quarantine.count = 5
    bench.give(batch(end=end(span_count=1)))
    figures.tell()
    assert meter.added == [
        ("spanloop.open_attempts", 0, {}),
        ("spanloop.commit_lag", 0, {"topic": "spans"}),
        ("spanloop.commit_lag", 0, {"topic": "rewards"}),
        ("spanloop.dead_letters", 3, {}),
    ]
