"""The outbox between agents and Kafka: spans of each attempt leave in batches, from a thread of its own.

    agent threads ─ add ─▶ AttemptLog ─ full, 50 ms or end ─▶ ready ─ spool thread ─▶ Producer ─ acknowledged ─▶ room

A batch of one attempt follows the one before it in the same partition, so its end marker is behind its spans. What
is not acknowledged yet is bounded; at the bound an agent waits, and what it still cannot put in is counted, not kept.
"""

from __future__ import annotations

import atexit
import logging
import os
import threading
import time
from collections import deque
from dataclasses import replace
from operator import attrgetter

from ..schemas.errors import BackPressure, DeliveryFailed, InvalidRecord, RecordTooLarge
from ..schemas.records import AttemptEnd, Reward, Span, SpanBatch
from .attempt_log import AttemptLog, OnEnd, Parcel, Sender, size_of

log = logging.getLogger(__name__)

LINGER_S = 0.05
# Two spans of 700 KiB leave as two records: brokers allow 1 MiB by default, and small records keep consumers even.
MAX_BATCH_BYTES = 900 << 10
MAX_BATCH_SPANS = 512
MAX_PENDING_BYTES = 128 << 20
REWARD_BYTES = 300
RETRY_S = 0.05

SEQUENCE = attrgetter("sequence")


class Spool:
    """The outbox of one producer; thread-safe."""

    def __init__(
        self,
        sender: Sender,
        *,
        producer_id: str,
        max_block_s: float = 5.0,
        max_pending: int = 100_000,
        linger_s: float = LINGER_S,
    ) -> None:
        """`max_pending`: spans and rewards not yet acknowledged, of all attempts together."""
        self.producer_id = producer_id
        self.dropped = 0
        self.pending = 0
        self._bytes = 0
        self._sender = sender
        self._max_block_s = max_block_s
        self._max_pending = max_pending
        self._linger_s = linger_s
        self._lock = threading.Lock()
        self._work = threading.Condition(self._lock)  # for the spool's thread
        self._room = threading.Condition(self._lock)  # for agents that wait, and for flush
        self._full_until: float | None = None  # when agents stop waiting for room; null = there is room
        self._ready: deque[Parcel] = deque()
        self._due: deque[tuple[float, AttemptLog]] = deque()
        self._unsettled = 0
        self._closing = False
        self._process = os.getpid()
        self._thread = threading.Thread(target=self._run, name="spool", daemon=True)
        self._thread.start()

    def open(self, rollout_id: str, attempt_id: str, *, begin: bool = True) -> AttemptLog:
        """The log of an attempt. With `begin` its first batch says so, and leaves in time even without a span."""
        found = AttemptLog(self, rollout_id, attempt_id)
        found.begun = not begin
        if begin:
            with self._lock:
                self._wait_linger(found)
        return found

    def ours(self) -> bool:
        """False, with a warning, in a forked child: it has no thread to send, and locks that may never open."""
        if os.getpid() != self._process:
            log.warning("a forked child of the agent emitted something: only the agent's own process can")
            return False
        return True

    def add(self, attempt: AttemptLog, span: Span) -> None:
        """Puts a span into an attempt's next batch."""
        size = size_of(span)
        with self._lock:
            attempt.spans += 1
            if not self._make_room(attempt):
                return
            if attempt.buffer and attempt.size + size > MAX_BATCH_BYTES:
                self._seal(attempt)
            attempt.buffer.append(span)
            attempt.size += size
            self._hold(1, size)
            if len(attempt.buffer) >= MAX_BATCH_SPANS:
                self._seal(attempt)
            elif not attempt.due:
                self._wait_linger(attempt)

    def add_reward(self, attempt: AttemptLog, reward: Reward) -> None:
        """Sends a reward; rewards have a topic of their own and need no batch."""
        with self._lock:
            attempt.rewards += 1
            if not self._make_room(attempt):
                return
            size = REWARD_BYTES + len(reward.comment or "")
            self._hold(1, size)
            self._ready.append(Parcel(reward, 1, size, attempt))
            if not attempt.due:  # no hurry of its own: it leaves with the attempt's next batch
                self._wait_linger(attempt)

    def finish(self, attempt: AttemptLog, end: AttemptEnd, on_end: OnEnd | None) -> None:
        """Seals what an attempt holds, with its end marker. The bound does not hold it back."""
        with self._lock:
            if not attempt.closed:
                self._seal(attempt, replace(end, span_count=attempt.spans, reward_count=attempt.rewards), on_end)
                attempt.closed = True

    def flush(self, timeout_s: float) -> bool:
        """Sends everything at once and waits; False if something was not acknowledged in time, or in a forked child."""
        if os.getpid() != self._process:
            return False
        deadline = time.monotonic() + timeout_s
        with self._lock:
            self._seal_all()
            while self._ready or self._unsettled:
                left = deadline - time.monotonic()
                if left <= 0 or not self._thread.is_alive():
                    return False
                self._room.wait(left)
        return True

    def flush_at_exit(self, timeout_s: float = 5.0) -> None:
        """Flushes when the interpreter ends, an unhandled exception included. Signals are the process's own affair."""
        atexit.register(self.flush, timeout_s)

    def check(self) -> None:
        """Raises DeliveryFailed where its thread has died: nothing more would be sent."""
        if not self._thread.is_alive():
            raise DeliveryFailed("the thread that sends spans has died: start its process anew")

    def close(self, timeout_s: float = 5.0) -> bool:
        """Flushes and stops the thread, within `timeout_s`; False if something was not acknowledged in time."""
        deadline = time.monotonic() + timeout_s
        done = self.flush(timeout_s)
        with self._lock:
            self._closing = True
            self._work.notify()
        self._thread.join(max(0.1, deadline - time.monotonic()))
        atexit.unregister(self.flush)
        return done

    # --- under the lock

    def _make_room(self, attempt: AttemptLog) -> bool:
        """Waits for room, all waits of one full spell together at most max_block_s; False = dropped and counted."""
        while not attempt.closed:
            if self.pending < self._max_pending and self._bytes < MAX_PENDING_BYTES:
                self._full_until = None
                return True
            now = time.monotonic()
            if self._full_until is None:
                self._full_until = now + self._max_block_s
            if now >= self._full_until or self._closing:
                break
            self._room.wait(self._full_until - now)
        attempt.dropped += 1
        self.dropped += 1
        return False

    def _hold(self, count: int, size: int) -> None:
        self.pending += count
        self._bytes += size

    def _wait_linger(self, attempt: AttemptLog) -> None:
        attempt.due = True
        self._due.append((time.monotonic() + self._linger_s, attempt))
        if len(self._due) == 1:
            self._work.notify()

    def _seal(self, attempt: AttemptLog, end: AttemptEnd | None = None, on_end: OnEnd | None = None) -> None:
        spans = attempt.buffer
        if not spans and attempt.begun and end is None:
            return
        spans.sort(key=SEQUENCE)
        batch = SpanBatch(
            rollout_id=attempt.rollout_id,
            attempt_id=attempt.attempt_id,
            producer_id=self.producer_id,
            first_sequence=spans[0].sequence if spans else 0,
            begin=not attempt.begun,
            spans=spans,
            end=end,
        )
        self._ready.append(Parcel(batch, len(spans), attempt.size, attempt, on_end))
        attempt.buffer, attempt.size, attempt.begun = [], 0, True
        self._work.notify()

    def _seal_all(self) -> None:
        for _, attempt in self._due:
            attempt.due = False
            if not attempt.closed:
                self._seal(attempt)
        self._due.clear()

    def _seal_due(self, now: float) -> None:
        while self._due and self._due[0][0] <= now:
            attempt = self._due.popleft()[1]
            attempt.due = False
            if not attempt.closed:
                self._seal(attempt)

    # --- the spool's thread

    def _run(self) -> None:
        while (parcels := self._next()) is not None:
            for parcel in parcels:
                self._send(parcel)

    def _next(self) -> deque[Parcel] | None:
        """What is ready, waiting for it; None once closing and empty."""
        with self._lock:
            while True:
                now = time.monotonic()
                self._seal_due(now)
                if self._ready:
                    parcels, self._ready = self._ready, deque()
                    self._unsettled += len(parcels)
                    return parcels
                if self._closing:
                    return None
                self._work.wait(self._due[0][0] - now if self._due else None)

    def _send(self, parcel: Parcel) -> None:
        while True:
            try:
                self._sender.send(parcel.record, on_delivery=lambda failure, _: self._settled(parcel, failure))
            except BackPressure as pressure:
                if self._closing:
                    self._settled(parcel, DeliveryFailed(str(pressure)))
                    return
                time.sleep(RETRY_S)
            except (RecordTooLarge, InvalidRecord) as error:
                self._refused(parcel, error)
                return
            except DeliveryFailed as error:
                self._settled(parcel, error)
                return
            else:
                return

    def _refused(self, parcel: Parcel, error: Exception) -> None:
        """A record that cannot be sent is sent in parts, until only the spans at fault are lost, and no marker."""
        if parts := parcel.parts():
            with self._lock:
                self._unsettled += len(parts) - 1
            for part in parts:
                self._send(part)
            return
        log.warning("attempt %s: %d spans or rewards dropped: %s", parcel.attempt.attempt_id, parcel.count, error)
        record = parcel.record
        if isinstance(record, SpanBatch) and record.spans and record.begin:
            self._let_go(parcel, lost=True)
            self._send(Parcel(replace(record, first_sequence=0, spans=[]), 0, 0, parcel.attempt, parcel.on_end))
        else:
            self._settled(parcel, DeliveryFailed(str(error)))

    def _settled(self, parcel: Parcel, failure: DeliveryFailed | None) -> None:
        if failure is not None:
            log.error("attempt %s: a record is lost: %s", parcel.attempt.attempt_id, failure)
        self._let_go(parcel, lost=failure is not None)
        with self._lock:
            self._unsettled -= 1
            self._room.notify_all()
        if parcel.on_end is not None:
            parcel.on_end(failure is None)

    def _let_go(self, parcel: Parcel, *, lost: bool) -> None:
        """Gives back what a parcel holds of the bound."""
        with self._lock:
            self._hold(-parcel.count, -parcel.bytes)
            if lost:
                parcel.attempt.dropped += parcel.count
                self.dropped += parcel.count
            self._room.notify_all()
