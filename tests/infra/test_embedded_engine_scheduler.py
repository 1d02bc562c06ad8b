"""Batching without a network: a decoder that counts."""

from __future__ import annotations

import queue
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from random import Random

import pytest

from spanloop.infra.embedded_engine_scheduler import Draw, Drawn, Generation, Scheduler

DEADLINE_S = 30.0


class CountingDecoder:
    """Draws 0, 1, 2, … for each row; fails once when told to."""

    def __init__(self) -> None:
        self.rows: list[list[int]] = []
        self.widest = 0
        self.fail = False

    def prefill(self, rows: Sequence[Generation]) -> list[Draw]:
        self.rows += [[0] for _ in rows]
        self.widest = max(self.widest, len(self.rows))
        return [Draw(0, -1.0) for _ in rows]

    def decode(self) -> list[Draw]:
        if self.fail:
            self.fail = False
            raise RuntimeError("out of memory")
        for row in self.rows:
            row.append(len(row))
        return [Draw(row[-1], -1.0) for row in self.rows]

    def keep(self, kept: Sequence[bool]) -> None:
        self.rows = [row for row, keep in zip(self.rows, kept, strict=bool(kept)) if keep]


@contextmanager
def scheduler(decoder: CountingDecoder, max_rows: int = 256) -> Generator[tuple[Scheduler, queue.Queue[Drawn]]]:
    events: queue.Queue[Drawn] = queue.Queue()

    def post(drawn: list[Drawn]) -> None:
        for event in drawn:
            events.put(event)

    made = Scheduler(decoder, post, max_rows=max_rows)
    try:
        yield made, events
    finally:
        made.close()


def row(max_tokens: int, stop_ids: frozenset[int] = frozenset()) -> Generation:
    return Generation([1, 2], max_tokens, lambda _: None, Random(0), stop_ids=stop_ids)


def ends(events: queue.Queue[Drawn], count: int) -> list[Drawn]:
    """The events that end generations, until there are `count`."""
    out: list[Drawn] = []
    while len(out) < count:
        event = events.get(timeout=DEADLINE_S)
        if event.finish is not None:
            out.append(event)
    return out


def test_generations_end_at_their_stop_token_or_their_length() -> None:
    with scheduler(CountingDecoder()) as (made, events):
        rows = [row(5), row(9, frozenset({3}))]
        made.submit(rows)
        found = {id(e.generation): e.finish for e in ends(events, 2)}
    assert [found[id(r)] for r in rows] == ["length", "stop"]
    assert [r.produced for r in rows] == [5, 4]


def test_no_more_rows_run_at_once_than_allowed() -> None:
    decoder = CountingDecoder()
    with scheduler(decoder, max_rows=3) as (made, events):
        made.submit([row(4) for _ in range(10)])
        assert len(ends(events, 10)) == 10
    assert decoder.widest == 3


def test_a_cancelled_generation_makes_room() -> None:
    decoder = CountingDecoder()
    with scheduler(decoder) as (made, events):
        gone = row(1_000_000)
        made.submit([gone])
        events.get(timeout=DEADLINE_S)
        gone.cancelled = True
        assert [e.finish for e in ends(events, 1)] == ["abort"]
        made.pause("wait").result(DEADLINE_S)
    assert decoder.rows == []


def test_pause_keep_stops_a_step_short_and_resume_goes_on() -> None:
    with scheduler(CountingDecoder()) as (made, events):
        made.submit([row(1_000_000)])
        events.get(timeout=DEADLINE_S)
        made.pause("keep").result(DEADLINE_S)
        while not events.empty():
            events.get()
        made.set_version("2").result(DEADLINE_S)
        assert events.empty()
        made.resume()
        after = events.get(timeout=DEADLINE_S)
        made.pause("abort").result(DEADLINE_S)
    assert after.version == "2"
    assert after.draw is not None
    assert after.draw.token > 0


def test_a_queued_generation_waits_for_the_resume_in_every_mode() -> None:
    with scheduler(CountingDecoder()) as (made, events):
        for mode in ("wait", "keep", "abort"):
            made.pause(mode).result(DEADLINE_S)
            made.submit([row(1)])
            made.call(lambda: None).result(DEADLINE_S)  # the thread has been round once more
            assert events.empty()
            made.resume()
            assert [e.finish for e in ends(events, 1)] == ["length"]


def test_a_step_that_fails_fails_its_generations_and_no_later_ones() -> None:
    decoder = CountingDecoder()
    with scheduler(decoder) as (made, events):
        decoder.fail = True
        made.submit([row(4)])
        assert [e.finish for e in ends(events, 1)] == ["error"]
        made.submit([row(4)])
        assert [e.finish for e in ends(events, 1)] == ["length"]


def test_an_error_of_a_call_is_the_callers() -> None:
    with scheduler(CountingDecoder()) as (made, _):
        with pytest.raises(ZeroDivisionError):
            made.call(lambda: 1 // 0).result(DEADLINE_S)
        assert made.call(lambda: 7).result(DEADLINE_S) == 7
