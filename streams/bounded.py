"""Calls that may never come back, in a thread of their own, so that their caller can give them up."""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from ..schemas.errors import Unavailable

POLL_S = 0.1
# What a call may still take once its caller was told to stop; the whole program promises five seconds.
STOP_PATIENCE_S = 2.0


@dataclass(slots=True)
class _Call:
    work: Callable[[], object]
    done: threading.Event = field(default_factory=threading.Event)
    error: BaseException | None = None


class Bounded:
    """Runs one call at a time. After one that did not come back it is of no more use: it and its thread are left alone.

    librdkafka does not keep the time-outs of its transactional calls where the coordinator dies in the middle of one.
    """

    def __init__(self, stop: threading.Event) -> None:
        self._stop = stop
        self.stuck = False
        """A call was given up: what it worked on must not be touched any more."""
        self._calls: queue.SimpleQueue[_Call | None] = queue.SimpleQueue()
        threading.Thread(target=self._work, name="bounded", daemon=True).start()

    def __call__(self, name: str, work: Callable[[], object], limit_s: float) -> None:
        """What the call raises; Unavailable where it takes longer than the limit, or goes on after `stop`."""
        call = _Call(work)
        self._calls.put(call)
        begun = time.monotonic()
        told: float | None = None
        while not call.done.wait(POLL_S):
            now = time.monotonic()
            if told is None and self._stop.is_set():
                told = now
            self.stuck = now - begun > limit_s or (told is not None and now - told > STOP_PATIENCE_S)
            if self.stuck:
                why = "told to stop" if told is not None else f"{limit_s:g} s are the limit; is a broker down?"
                raise Unavailable(f"{name} did not come back after {now - begun:.1f} s: {why}")
        if call.error is not None:
            raise call.error

    def close(self) -> None:
        """Lets the thread end, once its call does."""
        self._calls.put(None)

    def _work(self) -> None:
        while (call := self._calls.get()) is not None:
            try:
                call.work()
            except BaseException as error:  # noqa: BLE001  whatever it is, it is the caller's
                call.error = error
            call.done.set()
