import os
import signal
import threading
import time
from dataclasses import replace
from typing import Any

import pytest
from sdk import FakeSender, spool_of
from waiting import GONE_WITHIN_S, gone, until

from spanloop.producers.spool import MAX_BATCH_SPANS
from spanloop.schemas.errors import DeliveryFailed
from spanloop.schemas.records import AttemptEnd, Reward, Span

END = AttemptEnd(status="succeeded", end_ns=1)


def span(sequence: int, attributes: str = "{}") -> Span:
    return Span("0" * 32, f"{sequence:016x}", "s", 0, sequence=sequence, end_ns=1, attributes=attributes)


@pytest.fixture
def sender() -> FakeSender:
    return FakeSender()


def test_a_short_attempt_is_one_record_with_begin_spans_and_end(sender: FakeSender) -> None:
    with spool_of(sender, linger_s=60) as spool:
        log = spool.open("ro-1", "at-1")
        for i in range(3):
            log.span(span(i))
        log.reward(Reward("rw-1", "ro-1"))
        log.end(END)
        assert spool.flush(5)
    (batch,) = sender.batches
    assert (batch.rollout_id, batch.attempt_id, batch.producer_id, batch.begin) == ("ro-1", "at-1", "p", True)
    assert [s.sequence for s in batch.spans] == [0, 1, 2]
    assert batch.end == replace(END, span_count=3, reward_count=1)
    assert [r.reward_id for r in sender.rewards] == ["rw-1"]


def test_a_silent_attempt_says_that_it_has_begun_after_the_linger(sender: FakeSender) -> None:
    with spool_of(sender, linger_s=0.01) as spool:
        log = spool.open("ro-1", "at-1")
        until(lambda: len(sender.batches) == 1)
        log.end(END)
        assert spool.flush(5)
    begin, end = sender.batches
    assert (begin.begin, begin.spans, begin.end) == (True, [], None)
    assert (end.begin, end.end is not None) == (False, True)


def test_two_spans_of_700_kib_are_two_records(sender: FakeSender) -> None:  # PS-3
    with spool_of(sender, linger_s=60) as spool:
        log = spool.open("ro-1", "at-1")
        log.span(span(0, "x" * (700 << 10)))
        log.span(span(1, "x" * (700 << 10)))
        assert spool.flush(5)
    assert [[s.sequence for s in b.spans] for b in sender.batches] == [[0], [1]]
    assert [b.first_sequence for b in sender.batches] == [0, 1]


def test_a_full_batch_leaves_at_once(sender: FakeSender) -> None:
    with spool_of(sender, linger_s=60) as spool:
        log = spool.open("ro-1", "at-1")
        for i in range(MAX_BATCH_SPANS):
            log.span(span(i))
        until(lambda: len(sender.batches) == 1)
    assert len(sender.batches[0].spans) == MAX_BATCH_SPANS


def test_spans_of_several_threads_are_in_sequence_order(sender: FakeSender) -> None:
    with spool_of(sender, linger_s=60) as spool:
        log = spool.open("ro-1", "at-1")
        for i in (2, 0, 1):
            log.span(span(i))
        log.end(END)
    assert [s.sequence for s in sender.spans] == [0, 1, 2]


def test_attempts_do_not_mix(sender: FakeSender) -> None:
    with spool_of(sender, linger_s=0.005) as spool:
        logs = [spool.open(f"ro-{i}", f"at-{i}") for i in range(8)]

        def work(i: int) -> None:
            for n in range(50):
                logs[i].span(span(i * 1000 + n))
            logs[i].end(END)

        threads = [threading.Thread(target=work, args=(i,)) for i in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    for i in range(8):
        own = [b for b in sender.batches if b.attempt_id == f"at-{i}"]
        assert [s.sequence for b in own for s in b.spans] == [i * 1000 + n for n in range(50)]
        assert [b.begin for b in own] == [True] + [False] * (len(own) - 1)
        assert [b.end is not None for b in own] == [False] * (len(own) - 1) + [True]
        assert own[-1].end is not None
        assert own[-1].end.span_count == 50


def test_a_full_queue_blocks_for_its_limit_and_then_drops_and_counts(sender: FakeSender) -> None:  # PS-8
    sender.hold = True
    with spool_of(sender, linger_s=0.001, max_pending=10, max_block_s=0.2) as spool:
        log = spool.open("ro-1", "at-1")
        started = time.monotonic()
        for i in range(1000):
            log.span(span(i))
        blocked_s = time.monotonic() - started
        log.end(END)
        until(lambda: any(b.end for b in sender.batches))
        sender.release()
        assert spool.flush(5)
    assert blocked_s >= 0.2
    assert log.dropped == spool.dropped == 990
    assert [s.sequence for s in sender.spans] == list(range(10))
    ends = [b.end for b in sender.batches if b.end]
    assert ends == [replace(END, span_count=1000, reward_count=0)]


def test_a_reward_that_is_dropped_is_missing_as_a_reward(sender: FakeSender) -> None:
    sender.hold = True
    with spool_of(sender, linger_s=0.001, max_pending=1, max_block_s=0) as spool:
        log = spool.open("ro-1", "at-1")
        log.span(span(0))
        log.reward(Reward("rw-1", "ro-1"))
        log.end(END)
        until(lambda: any(b.end for b in sender.batches))
        sender.release()
        assert spool.flush(5)
    assert [b.end for b in sender.batches if b.end] == [replace(END, span_count=1, reward_count=1)]
    assert (len(sender.spans), len(sender.rewards), log.dropped) == (1, 0, 1)


def test_a_thread_that_waits_for_room_gets_it(sender: FakeSender) -> None:  # PS-8
    sender.hold = True
    with spool_of(sender, linger_s=0.001, max_pending=10, max_block_s=60) as spool:
        log = spool.open("ro-1", "at-1")

        def work() -> None:
            for i in range(1000):
                log.span(span(i))
            log.end(END)

        thread = threading.Thread(target=work)
        thread.start()
        until(lambda: spool.pending == 10)
        assert thread.is_alive()
        sender.release()
        thread.join(60)
        assert spool.flush(5)
    assert [s.sequence for s in sender.spans] == list(range(1000))
    assert spool.dropped == 0


def test_a_producer_without_room_is_asked_again(sender: FakeSender) -> None:
    sender.full = True
    with spool_of(sender, linger_s=0.001) as spool:
        log = spool.open("ro-1", "at-1")
        log.span(span(0))
        assert not spool.flush(0.1)
        sender.full = False
        assert spool.flush(5)
    assert len(sender.spans) == 1


def test_a_lost_record_is_counted(sender: FakeSender) -> None:
    sender.fail = True
    told: list[bool] = []
    with spool_of(sender) as spool:
        log = spool.open("ro-1", "at-1")
        log.span(span(0))
        log.end(END, told.append)
        assert spool.flush(5)
    assert (log.dropped, told, spool.pending) == (1, [False], 0)


def test_a_producer_that_refuses_records_loses_them_and_the_spool_goes_on(sender: FakeSender) -> None:
    send = sender.send

    def refuse(record: Any, *, on_delivery: Any = None) -> None:
        del record, on_delivery
        raise DeliveryFailed("this producer is dead")

    sender.send = refuse
    told: list[bool] = []
    with spool_of(sender) as spool:
        spool.open("ro-1", "at-1").end(END, told.append)
        assert spool.flush(5)
        spool.check()
        sender.send = send
        spool.open("ro-2", "at-2").end(END, told.append)
        assert spool.flush(5)
    assert (told, spool.pending) == ([False, True], 0)


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_a_spool_whose_thread_has_died_says_so(sender: FakeSender) -> None:
    def break_(record: Any, *, on_delivery: Any = None) -> None:
        del record, on_delivery
        raise RuntimeError("a bug")

    sender.send = break_
    with spool_of(sender) as spool:
        spool.open("ro-1", "at-1").end(END)
        with pytest.raises(DeliveryFailed, match="has died"):
            until(spool.check)


def exit_code(child: int) -> int:
    """Of a forked child, which is killed where it hangs, be it in the fork itself."""
    try:
        until(lambda: gone(child), within_s=GONE_WITHIN_S)
    except TimeoutError:
        os.kill(child, signal.SIGKILL)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork")
@pytest.mark.filterwarnings("ignore:.*use of fork:DeprecationWarning")
def test_a_forked_child_that_emits_is_told_so_and_does_not_wait(
    sender: FakeSender, caplog: pytest.LogCaptureFixture
) -> None:
    with spool_of(sender) as spool:
        log = spool.open("ro-1", "at-1")
        with spool._lock:  # pyright: ignore[reportPrivateUsage] - as another thread may hold it
            if (child := os.fork()) == 0:
                log.span(span(0))
                log.reward(Reward("rw-1", "ro-1"))
                os._exit(len(caplog.records) + 10 * spool.flush(0))
        assert exit_code(child) == 2
        log.end(END)
        assert spool.flush(5)
    ends = [b.end for b in sender.batches if b.end]
    assert ends == [replace(END, span_count=0, reward_count=0)]


def test_after_its_end_an_attempt_takes_nothing_more(sender: FakeSender) -> None:
    with spool_of(sender) as spool:
        log = spool.open("ro-1", "at-1")
        log.end(END)
        log.end(replace(END, status="failed"))
        log.span(span(0))
        assert spool.flush(5)
    assert [b.end.status for b in sender.batches if b.end] == ["succeeded"]
    assert sender.spans == []
    assert log.dropped == 1


@pytest.mark.parametrize("late", [False, True])
def test_an_attempt_that_never_began_ends_without_a_begin(sender: FakeSender, late: bool) -> None:
    with spool_of(sender, linger_s=0.0 if late else 60) as spool:
        spool.open("ro-1", "at-1", begin=False).end(END)
        assert spool.flush(5)
    assert [(b.begin, b.end is not None) for b in sender.batches] == [(False, True)]
