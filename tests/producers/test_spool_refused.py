"""Records that the producer refuses: what is sent of them all the same."""

from dataclasses import replace
from typing import Any

import pytest
from sdk import FakeSender, spool_of

from spanloop.schemas.errors import DeliveryFailed, RecordTooLarge
from spanloop.schemas.records import AttemptEnd, Span
from spanloop.schemas.serde import encode_body

END = AttemptEnd(status="succeeded", end_ns=1)


def span(sequence: int) -> Span:
    return Span("0" * 32, f"{sequence:016x}", "s", 0, sequence=sequence, end_ns=1)


@pytest.fixture
def sender() -> FakeSender:
    return FakeSender()


def test_a_batch_that_is_refused_loses_its_spans_and_keeps_its_end_marker(sender: FakeSender) -> None:
    send = sender.send

    def refuse(record: Any, *, on_delivery: Any = None) -> None:
        if getattr(record, "spans", None):
            raise RecordTooLarge("too large")
        send(record, on_delivery=on_delivery)

    sender.send = refuse
    told: list[bool] = []
    with spool_of(sender) as spool:
        log = spool.open("ro-1", "at-1")
        log.span(span(0))
        log.end(END, told.append)
        assert spool.flush(5)
    begin, end = sender.batches
    assert (begin.begin, begin.end) == (True, None)
    assert (end.begin, end.end) == (False, replace(END, span_count=1, reward_count=0))
    assert (log.dropped, spool.dropped, spool.pending, told) == (1, 1, 0, [True])


def test_a_span_is_counted_once_where_the_record_of_its_begin_is_lost_too(sender: FakeSender) -> None:
    def refuse(record: Any, *, on_delivery: Any = None) -> None:
        del on_delivery
        raise RecordTooLarge("too large") if record.spans else DeliveryFailed("this producer is dead")

    sender.send = refuse
    with spool_of(sender) as spool:
        log = spool.open("ro-1", "at-1")
        log.span(span(0))
        assert spool.flush(5)
        assert (log.dropped, spool.dropped, spool.pending) == (1, 1, 0)


@pytest.mark.parametrize("bad", [0, 3, 99, 255])
@pytest.mark.parametrize("kind", ["no UTF-8", "too long", "no number"])
def test_a_span_that_cannot_be_sent_costs_no_other_one(sender: FakeSender, kind: str, bad: int) -> None:
    send = sender.send

    def check(record: Any, *, on_delivery: Any = None) -> None:
        if len(encode_body(record)) > 1 << 20:
            raise RecordTooLarge("too large")
        send(record, on_delivery=on_delivery)

    sender.send = check
    wrong = {"no UTF-8": {"name": "\ud83d"}, "too long": {"name": "x" * (1 << 20)}, "no number": {"start_ns": 1.5}}
    told: list[bool] = []
    with spool_of(sender, linger_s=60) as spool:
        log = spool.open("ro-1", "at-1")
        for i in range(256):
            log.span(replace(span(i), **wrong[kind]) if i == bad else span(i))
        log.end(END, told.append)
        assert spool.flush(5)
        assert spool.pending == 0
    assert [s.sequence for s in sender.spans] == [i for i in range(256) if i != bad]
    assert all(b.first_sequence == b.spans[0].sequence for b in sender.batches if b.spans)
    assert [b.begin for b in sender.batches] == [True] + [False] * (len(sender.batches) - 1)
    assert sender.batches[-1].end == replace(END, span_count=256, reward_count=0)
    assert (log.dropped, spool.dropped, told) == (1, 1, [True])


def test_an_end_marker_that_cannot_be_sent_costs_no_span(sender: FakeSender) -> None:
    send = sender.send

    def refuse(record: Any, *, on_delivery: Any = None) -> None:
        if getattr(record, "end", None):
            raise RecordTooLarge("too large")
        send(record, on_delivery=on_delivery)

    sender.send = refuse
    told: list[bool] = []
    with spool_of(sender, linger_s=60) as spool:
        log = spool.open("ro-1", "at-1")
        log.span(span(0))
        log.end(END, told.append)
        assert spool.flush(5)
    assert [s.sequence for s in sender.spans] == [0]
    assert (log.dropped, told) == (0, [False])
