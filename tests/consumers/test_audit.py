"""What the audit says of a partition: read without a gap, and how often again."""

from __future__ import annotations

from itertools import pairwise

import pytest
from sink_rig import Lab

from spanloop.infra.kafka import Message

FIGURES = "first_offset, last_offset, records, rows, without_record, gaps, repeats"


def spans(lab: Lab, *offsets: int) -> list[Message]:
    """One record of a span at each of these offsets."""
    return [lab.message(lab.batch(lab.span(f"{offset:016x}")), offset) for offset in offsets]


def write(lab: Lab, messages: list[Message], read: range | None = None) -> None:
    """As a sink that was started anew."""
    lab.sink().write(messages, {("spans", 0): read} if read else None)


def audit(lab: Lab) -> tuple[int, ...]:
    (row,) = lab.rows(f"SELECT {FIGURES} FROM v_audit")
    return row


def test_flushes_that_follow_each_other_leave_no_gap(lab: Lab) -> None:
    write(lab, spans(lab, 0, 1, 2))
    write(lab, spans(lab, 3, 4))
    assert audit(lab) == (0, 4, 5, 5, 0, 0, 0)


def test_a_group_that_began_late_has_no_gap_before_that(lab: Lab) -> None:
    write(lab, spans(lab, 100, 101), range(100, 102))
    assert audit(lab) == (100, 101, 2, 2, 0, 0, 0)


def test_offsets_that_nobody_read_are_gaps(lab: Lab) -> None:
    write(lab, spans(lab, 0, 1, 2))
    write(lab, spans(lab, 7, 8))
    write(lab, spans(lab, 10))
    assert audit(lab) == (0, 10, 6, 6, 0, 5, 0)


def test_transaction_markers_are_no_gaps(lab: Lab) -> None:
    write(lab, spans(lab, 0, 1, 3, 4), range(6))  # 2 and 5 are markers
    write(lab, [], range(6, 7))  # another one, alone
    write(lab, spans(lab, 8), range(7, 10))
    assert audit(lab) == (0, 9, 5, 5, 5, 0, 0)


def test_what_is_inserted_again_after_a_crash_counts_once(lab: Lab) -> None:  # CH-9
    messages = spans(lab, *range(10))
    write(lab, messages[:4])
    write(lab, messages[4:9])  # stored but not committed
    write(lab, messages[4:7])
    write(lab, messages[7:])
    assert audit(lab) == (0, 9, 10, 10, 0, 0, 5)
    assert lab.one("SELECT count() FROM v_spans") == 10


def test_a_flush_tried_again_in_the_same_process_counts_once(lab: Lab) -> None:
    sink, messages = lab.sink(), spans(lab, 0, 1)
    for _ in range(3):
        sink.write(messages)
    assert audit(lab) == (0, 1, 2, 2, 0, 0, 4)


LATE = (range(100, 151), range(100, 181), range(100, 191), range(100, 201), range(100, 231), range(140, 151))


@pytest.mark.parametrize("late", LATE)
@pytest.mark.parametrize("place", range(3))
def test_a_flush_of_a_sink_that_has_lost_the_partition_does_not_count_whenever_it_is_written(
    lab: Lab, late: range, place: int
) -> None:  # it was stopped in mid-flush while another took over
    messages = spans(lab, *range(90, 231))
    flushes = [(1, range(90, 100)), (2, range(100, 181)), (2, range(181, 201)), (2, range(201, 231))]
    flushes.insert(1 + place, (1, late))
    for since, read in flushes:
        lab.sink().write([m for m in messages if m.offset in read], {("spans", 0): read}, {("spans", 0): since})
    assert audit(lab) == (90, 230, 141, 141, 0, 0, len(late))
    assert lab.rows("SELECT first, last FROM v_ingest_log WHERE NOT counts") == [(late.start, late.stop - 1)]


def test_flushes_of_one_reading_need_no_clock_to_be_put_in_order(lab: Lab) -> None:
    for since, read in ((2, range(5, 9)), (2, range(5)), (1, range(3, 6))):  # the clock went back between the first two
        lab.sink().write(spans(lab, *read), {("spans", 0): read}, {("spans", 0): since})
    assert audit(lab) == (0, 8, 9, 9, 0, 0, 3)


@pytest.mark.parametrize("cuts", [(0, 10), (0, 2, 6, 10)])
def test_offsets_set_back_to_the_beginning_are_read_again_and_count_once(lab: Lab, cuts: tuple[int, ...]) -> None:
    messages = spans(lab, *range(10))
    for some in (messages[:3], messages[3:7], messages[7:]):
        write(lab, some)
    for first, last in pairwise(cuts):
        write(lab, messages[first:last])
    assert audit(lab) == (0, 9, 10, 10, 0, 0, 10)


def test_partitions_and_topics_have_lines_of_their_own(lab: Lab) -> None:
    good, other, bad = (
        *spans(lab, 0),
        Message("rewards", 0, 5, b"ro-1", b"?"),
        Message("assemblies", 3, 9, b"at-1", None),
    )
    lab.sink().write([good, other, bad])
    assert lab.rows(
        "SELECT topic, k_partition, last_offset, rows, quarantined, tombstones FROM v_audit ORDER BY 1"
    ) == [
        ("assemblies", 3, 9, 0, 0, 1),
        ("rewards", 0, 5, 0, 1, 0),
        ("spans", 0, 0, 1, 0, 0),
    ]
