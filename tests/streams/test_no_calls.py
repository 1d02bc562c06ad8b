"""An agent whose calls are not captured is told of at its run's first attempt (UX-2)."""

from __future__ import annotations

import logging

import pytest
from events import Bench, batch, end, llm, span

from spanloop.schemas.records import AttemptContext, SpanBatch, Trajectory
from spanloop.streams.no_calls import MAX_ATTEMPTS, NoCalls


def ended(attempt: str, *batches: SpanBatch) -> Trajectory:
    bench = Bench()
    bench.give(*batches)
    return bench.last(attempt)


def events(attempt: str, *, run: str = "run", call: bool = False) -> SpanBatch:
    spans = [span("root", label="agent"), span("s2", "root", label="look up", seq=1)]
    if call:
        spans.append(llm("c", [1], [2], parent="root", seq=2))
    over = end(span_count=len(spans), context=AttemptContext(run_id=run))
    return batch(*spans, attempt=attempt, begin=True, end=over)


def test_the_first_attempt_without_a_call_is_told_with_the_spans_there_were(
    caplog: pytest.LogCaptureFixture,
) -> None:
    told = NoCalls()
    for attempt in ("at-1", "at-2"):
        made = events(attempt)
        told.see(made)
        told.judge(ended(attempt, made))
    (line,) = [r.getMessage() for r in caplog.records if r.levelno == logging.WARNING]
    assert line.startswith("run 'run': 0 LLM calls captured in its first attempt; spans seen: ['agent', 'look up'].")


def test_an_attempt_that_no_agent_ran_to_its_end_says_nothing_of_its_run(caplog: pytest.LogCaptureFixture) -> None:
    told = NoCalls()
    told.judge(ended("at-1", batch(attempt="at-1", end=end("cancelled", context=AttemptContext(run_id="run")))))
    assert not caplog.records
    made = events("at-2")
    told.see(made)
    told.judge(ended("at-2", made))
    assert "spans seen: ['agent', 'look up']" in caplog.text


def test_a_run_with_calls_is_not_told_of_and_another_run_is_judged_by_itself(
    caplog: pytest.LogCaptureFixture,
) -> None:
    told = NoCalls()
    for attempt, run, call in (("at-1", "a", True), ("at-2", "a", False), ("at-3", "b", False)):
        made = events(attempt, run=run, call=call)
        told.see(made)
        told.judge(ended(attempt, made))
    assert [r.getMessage()[:8] for r in caplog.records if r.levelno == logging.WARNING] == ["run 'b':"]


def test_what_is_remembered_is_bounded(caplog: pytest.LogCaptureFixture) -> None:
    told = NoCalls()
    first = events("at-0")
    told.see(first)
    for i in range(MAX_ATTEMPTS):
        told.see(events(f"at-{i + 1}"))
    told.judge(ended("at-0", first))
    assert "spans seen: []" in caplog.text
