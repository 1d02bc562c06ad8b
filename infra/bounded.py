"""Calls that may never come back, in threads of their own: their caller can give them up, and so can the process."""

from __future__ import annotations

import math
import queue
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable
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

    librdkafka does not keep the time-outs of its transactional calls where the coordinator dies in the middle of one,
    and gives a commit none at all, nor a close behind it.
    """

    def __init__(self, stop: threading.Event, patience_s: float = STOP_PATIENCE_S) -> None:
        """`patience_s`: what a call may still take once `stop` is set."""
        self._stop = stop
        self._patience_s = patience_s
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
            if told is not None and now - told > self._patience_s:
                self.stuck = True
                raise Unavailable(
                    f"{name} goes on {now - told:.1f} s after it was told to stop; is what it waits for down, or slow?"
                )
            if now - begun > limit_s:
                self.stuck = True
                took = f"{now - begun:.1f} s: {limit_s:g} s are the limit"
                raise Unavailable(f"{name} did not come back after {took}; is a broker down?")
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


def side_by_side(works: Iterable[Callable[[], object]], at_once: int, within_s: float = math.inf) -> None:
    """Runs them, so many at once, then raises what the first that failed raised.

    A failure keeps none from being begun, unless `within_s` have passed: what took so long to fail may not answer.
    Unlike those of a pool, its threads do not keep a process that ends meanwhile.
    """
    left, failures, end = deque(works), list[BaseException](), time.monotonic() + within_s

    def work() -> None:
        while not failures or time.monotonic() < end:
            try:
                one = left.popleft()
            except IndexError:
                return
            try:
                one()
            except BaseException as error:  # noqa: BLE001  whatever it is, it is the caller's
                failures.append(error)

    threads = [threading.Thread(target=work, name=f"side-{n}", daemon=True) for n in range(min(at_once, len(left)))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if failures:
        raise failures[0]
