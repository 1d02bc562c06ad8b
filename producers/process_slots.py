"""Slots that are processes: an agent that crashes, leaks or never returns costs its attempt and nothing else.

    Attempts ─ claim, start ─▶ Seat ─ Order ─▶ process
       ▲                        │ ◀─ spans, rewards, Outcome, or its death
       └──────── on_done ───────┘

Each seat has a thread that reads what its process says, and replaces the process when it ends.
"""

from __future__ import annotations

import logging
import sys
import threading
import time
from collections.abc import Callable

from ..schemas.errors import ConfigError, SpanloopError, Unavailable
from ..schemas.records import Reward, Span
from . import outcome
from .outcome import Outcome
from .slot_child import GRACE_S, SlotChild
from .slot_messages import Begun, Hello, Order, Refusal, Start
from .slots import OnDone
from .work import Work

log = logging.getLogger(__name__)

START_TIMEOUT_S = 120.0  # importing an agent with torch on a busy machine takes most of a minute
MAX_STARTS = 3  # starts in a row that come to nothing before the worker gives up
POLL_S = 0.1
Spawn = Callable[[Start], SlotChild]


class Seat:
    """One slot: a process at a time. Its fields are guarded by the lock of its `ProcessSlots`."""

    def __init__(self) -> None:
        self.child: SlotChild | None = None
        self.ready = False  # its process waits for an order
        self.claimed: str | None = None  # attempt id
        self.work: Work | None = None
        self.on_done: OnDone | None = None
        self.begun = False
        self.asked_to_end = False
        self.kill_at_s: float | None = None
        self.attempts = 0  # that this process has done

    def vacate(self) -> tuple[Work, OnDone] | None:
        """Takes the work out, if there is any."""
        work, on_done = self.work, self.on_done
        self.work = self.on_done = self.claimed = None
        return None if work is None or on_done is None else (work, on_done)


class ProcessSlots:
    """Runs an agent in `count` processes. `Slots`; its seats' threads end with `close`."""

    def __init__(
        self, spec: str, count: int, *, recycle: int = 0, trace: bool = True, spawn: Spawn = SlotChild
    ) -> None:
        """`spec` names the agent; `recycle`: attempts after which a process is replaced, 0 = never."""
        self.name = spec.rpartition(":")[2]
        self.replaced = 0
        self._start = Start(spec, list(sys.path), trace)
        self._recycle = recycle
        self._spawn = spawn
        self._lock = threading.Lock()
        self._failure: SpanloopError | None = None
        self._failed_starts = 0
        self._closing = False
        self._seats = [Seat() for _ in range(count)]
        self._threads = [
            threading.Thread(target=self._live, args=(seat,), name=f"seat-{n}", daemon=True)
            for n, seat in enumerate(self._seats)
        ]
        for thread in self._threads:
            thread.start()

    def wait_ready(self, stop: threading.Event) -> None:
        """Waits until every process can take an order, or `stop`. Raises as `tick` does."""
        while not stop.wait(POLL_S):
            self.tick()
            with self._lock:
                if all(seat.ready for seat in self._seats):
                    return

    def claim(self, attempt_id: str) -> bool:
        with self._lock:
            for seat in self._seats:
                if seat.ready and seat.claimed is None:
                    seat.claimed = attempt_id
                    return True
        return False

    def start(self, work: Work, on_done: OnDone) -> None:
        with self._lock:
            seat = self._of(work.attempt_id)
            if seat is None:  # stopped meanwhile
                return
            child, alive = seat.child, seat.ready
            if alive:
                seat.work, seat.on_done, seat.begun = work, on_done, False
            else:
                seat.claimed = None
        if child is None or not alive:
            on_done(work.attempt_id, outcome.of_crash("ended", begun=False))
        else:
            child.send(Order(work.job, work.scope.root_id or "", work.scope.producer_id, work.gateway_url))

    def stop(self, attempt_id: str, why: str) -> None:
        with self._lock:
            seat = self._of(attempt_id)
            if seat is None or seat.vacate() is None or seat.child is None:
                return
            seat.ready, seat.asked_to_end = False, True
            seat.kill_at_s = time.monotonic() + GRACE_S
            child = seat.child
        log.warning("attempt %s: %s; its process %d is ended", attempt_id, why, child.pid)
        child.terminate()

    def tick(self) -> None:
        now = time.monotonic()
        with self._lock:
            if self._failure is not None:
                raise self._failure
            late = [s for s in self._seats if s.kill_at_s is not None and now >= s.kill_at_s]
            for seat in late:
                seat.kill_at_s = None
        for seat in late:
            if seat.child is not None:
                seat.child.kill()

    def close(self, timeout_s: float) -> None:
        with self._lock:
            self._closing = True
            children = [seat.child for seat in self._seats if seat.child is not None]
            for seat in self._seats:
                seat.asked_to_end = True
        for child in children:
            child.terminate()
        self._join(timeout_s)
        for child in children:
            child.kill()
        self._join(1.0)

    def _of(self, attempt_id: str) -> Seat | None:
        return next((s for s in self._seats if s.claimed == attempt_id), None)

    def _join(self, timeout_s: float) -> None:
        deadline = time.monotonic() + timeout_s
        for thread in self._threads:
            thread.join(max(0.0, deadline - time.monotonic()))

    # --- a seat's thread

    def _live(self, seat: Seat) -> None:
        while (child := self._replace(seat)) is not None:
            while not child.over:
                message = child.receive(POLL_S)
                if message is not None:
                    self._take(seat, child, message)
            self._ended(seat, child.end(GRACE_S))

    def _replace(self, seat: Seat) -> SlotChild | None:
        """A new process for a seat; None where no more is wanted."""
        with self._lock:
            if self._closing or self._failure is not None:
                return None
        try:
            child = self._spawn(self._start)
        except OSError as error:
            with self._lock:
                self._failure = Unavailable(f"no process for an agent can be started: {error}")
            return None
        with self._lock:
            seat.child, seat.ready, seat.asked_to_end = child, False, self._closing
            seat.kill_at_s, seat.attempts = time.monotonic() + START_TIMEOUT_S, 0
        if seat.asked_to_end:  # closed meanwhile
            child.terminate()
        return child

    def _take(self, seat: Seat, child: SlotChild, message: object) -> None:
        work = seat.work
        if isinstance(message, (Span, Reward)):
            if work is not None:
                work.scope.skip_to(message.sequence + 1)
                sink = work.scope.sink
                sink.span(message) if isinstance(message, Span) else sink.reward(message)
        elif isinstance(message, Begun):
            seat.begun = True
        elif isinstance(message, Outcome):
            self._done(seat, child, message)
        elif isinstance(message, Hello):
            with self._lock:
                self.name, self._failed_starts = message.name, 0
                seat.ready, seat.kill_at_s = True, None
        elif isinstance(message, Refusal):
            with self._lock:
                self._failure = self._failure or ConfigError(message.message)

    def _done(self, seat: Seat, child: SlotChild, ended: Outcome) -> None:
        with self._lock:
            found = seat.vacate()
            seat.attempts += 1
            worn = bool(self._recycle) and seat.attempts >= self._recycle
            if worn:
                seat.ready, seat.asked_to_end = False, True
        if worn:
            child.leave()
        if found is not None:
            found[1](found[0].attempt_id, ended)

    def _ended(self, seat: Seat, how: str) -> None:
        with self._lock:
            was_ready, begun, expected = seat.ready, seat.begun, seat.asked_to_end
            seat.ready, seat.child, seat.kill_at_s = False, None, None
            found = seat.vacate() if seat.work is not None else None
            self.replaced += 1
            if not (was_ready or expected):
                self._failed_starts += 1
                if self._failed_starts >= MAX_STARTS:
                    self._failure = self._failure or Unavailable(
                        f"the agent's process {how} before it was ready, {MAX_STARTS} times in a row: does "
                        f"{self._start.spec!r} load by itself?"
                    )
        if not expected and self._failure is None:
            log.warning("an agent's process %s and is replaced", how)
        if found is not None:
            found[1](found[0].attempt_id, outcome.of_crash(how, begun=begun))
