"""What the assembler reports of itself."""

from __future__ import annotations

from dataclasses import dataclass
from typing import cast

from events import Bench, batch, end, llm, span
from fake_meter import FakeMeter

from spanloop.infra.quarantine import Quarantine
from spanloop.streams.figures import Figures
from spanloop.streams.messages import Policy


@dataclass
class Counting:
    """The part of a Quarantine that is read."""

    count: int = 0


def test_gauges_say_what_is_and_counters_only_what_came_since() -> None:
    bench, meter, quarantine = Bench(), FakeMeter(), Counting(count=2)
    figures = Figures(meter, bench.assembler, cast("Quarantine", quarantine))
    bench.give(batch(llm("a", [1], [2]), begin=True))
    bench.wait(3)
    figures.tell(bench.now, {("spans", 0): 5, ("rewards", 0): 0, ("spans", 7): 9})
    assert meter.added == [
        ("spanloop.open_attempts", 1, {}),
        ("spanloop.oldest_attempt", 3.0, {}),
        ("spanloop.read_lag", 4, {"topic": "spans"}),
        ("spanloop.commit_lag", 1, {"topic": "spans"}),
        ("spanloop.read_lag", 0, {"topic": "rewards"}),
        ("spanloop.commit_lag", 0, {"topic": "rewards"}),
        ("spanloop.dead_letters", 2, {}),
    ]
    meter.added.clear()
    quarantine.count = 5
    bench.give(batch(end=end(span_count=1)))
    figures.tell(bench.now, {})
    assert meter.added == [
        ("spanloop.open_attempts", 0, {}),
        ("spanloop.oldest_attempt", 0, {}),
        ("spanloop.read_lag", 0, {"topic": "spans"}),
        ("spanloop.commit_lag", 0, {"topic": "spans"}),
        ("spanloop.read_lag", 0, {"topic": "rewards"}),
        ("spanloop.commit_lag", 0, {"topic": "rewards"}),
        ("spanloop.dead_letters", 3, {}),
    ]


def test_spans_behind_the_end_marker_tell_by_how_much_and_only_once() -> None:
    bench, meter = Bench(Policy(grace_s=5, hold_s=30)), FakeMeter()
    figures = Figures(meter, bench.assembler, cast("Quarantine", Counting()))
    bench.give(batch(llm("a", [1], [2]), begin=True, end=end(span_count=2)))
    bench.wait(4)
    bench.give(batch(span("b"), span("c", "gone")))  # in the grace
    bench.wait(6)  # emitted, 10 s after the end
    bench.wait(60)  # forgotten
    bench.give(batch(span("d")))  # 60 s after it was emitted
    for _ in range(2):
        figures.tell(bench.now, {})
    late = [(amount, labels) for name, amount, labels in meter.added if name == "spanloop.lateness"]
    assert late == [(4.0, {}), (60.0, {})]
    orphans = [amount for name, amount, _ in meter.added if name == "spanloop.orphans"]
    assert orphans == [1]


def test_closings_by_a_bound_are_counted_under_its_name() -> None:
    bench, meter = Bench(Policy(max_open=1)), FakeMeter()
    figures = Figures(meter, bench.assembler, cast("Quarantine", Counting()))
    for attempt in ("at-1", "at-2", "at-3"):
        bench.give(batch(span("a"), attempt=attempt, begin=True))
    for _ in range(2):
        figures.tell(bench.now, {})
    assert [x for x in meter.added if x[0] == "spanloop.bounded"] == [("spanloop.bounded", 2, {"bound": "open"})]
