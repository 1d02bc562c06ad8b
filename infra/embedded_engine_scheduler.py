"""The engine's thread: which generations step, which wait, and under which weight version their tokens are drawn.

    submit ─▶ waiting ─(admit, unless paused)─▶ running ─▶ Drawn events, a list per step
                                                   │
    call ──▶ run between two steps: reload, score, stamp

No torch here; the network is a `Decoder`.
"""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from itertools import compress
from pathlib import Path
from random import Random
from typing import Literal, Protocol, TypeVar

log = logging.getLogger(__name__)
T = TypeVar("T")

# A prompt batch is padded to its longest; this bounds its padded size, and so the memory of one admission.
MAX_PREFILL_TOKENS = 16_384
PauseMode = Literal["wait", "keep", "abort"]
Finish = Literal["stop", "length", "abort", "error"]


@dataclass(slots=True, eq=False)
class Generation:
    """One sequence being generated. `cancelled` may be set by any thread; its next step is then its last."""

    prompt: list[int]
    max_tokens: int
    sink: Callable[[Drawn], None]  # called by whoever `post` hands the events to
    rng: Random  # its own, so that a seed gives the same tokens in any batch
    temperature: float = 1.0  # 0 = greedy
    top_p: float = 1.0
    top_k: int = 0  # 0 = all
    top_logprobs: int = 0
    stop_ids: frozenset[int] = frozenset()
    produced: int = 0
    cancelled: bool = False


@dataclass(frozen=True, slots=True)
class Draw:
    """A sampled token, its log-probability under the distribution it was drawn from, and the likeliest others."""

    token: int
    logprob: float
    top: list[tuple[int, float]] = field(default_factory=list[tuple[int, float]])


@dataclass(frozen=True, slots=True)
class Drawn:
    """What happened to a generation in a step; draw is None where it ended without a token."""

    generation: Generation
    draw: Draw | None
    version: str
    finish: Finish | None


class Decoder(Protocol):
    """The network with the cache of its running sequences, in order of their admission."""

    def prefill(self, rows: Sequence[Generation]) -> list[Draw]:
        """Adds sequences to those running; draws the first token of each."""
        ...

    def decode(self) -> list[Draw]:
        """Draws one token for each running sequence."""
        ...

    def keep(self, kept: Sequence[bool]) -> None:
        """Drops the running sequences that are not kept."""
        ...


class Weights(Protocol):
    """What can be done with the network's weights, between two steps."""

    def score(self, ids: Sequence[int], top: int) -> list[tuple[float, int, list[tuple[int, float]]]]:
        """Log-probability at T=1 and rank of ids[1:], each with the `top` likeliest tokens."""
        ...

    def load(self, folder: Path) -> None:
        """Takes over a folder's weights. Raises ValueError, and then nothing has changed."""
        ...


class Scheduler:
    """Continuous batching on a thread of its own; every public method may be called from any thread."""

    def __init__(
        self, decoder: Decoder, post: Callable[[list[Drawn]], None], *, max_rows: int = 256, version: str = "default"
    ) -> None:
        self._decoder = decoder
        self._post = post
        self._max_rows = max_rows
        self._wake = threading.Condition()
        self._waiting: deque[Generation] = deque()
        self._running: list[Generation] = []
        self._calls: deque[Callable[[], None]] = deque()
        self._paused: PauseMode | None = None
        self._drained: list[Future[None]] = []
        self._closed = False
        self.version = version
        self._thread = threading.Thread(target=self._run, name="embedded-engine", daemon=True)
        self._thread.start()

    @property
    def paused(self) -> bool:
        """True between pause and resume."""
        return self._paused is not None

    def submit(self, generations: Sequence[Generation]) -> None:
        """Queues generations; while paused they stay queued."""
        with self._wake:
            self._waiting.extend(generations)
            self._wake.notify()

    def pause(self, mode: PauseMode) -> Future[None]:
        """Stops admitting; done once nothing steps: after the running ones (wait), at once (keep), cut off (abort)."""
        done: Future[None] = Future()
        with self._wake:
            self._paused = mode
            self._drained.append(done)
            self._wake.notify()
        return done

    def resume(self) -> None:
        """Goes on with what is running and queued."""
        with self._wake:
            self._paused = None
            self._wake.notify()

    def call(self, work: Callable[[], T]) -> Future[T]:
        """Runs `work` between two steps, paused or not; its error is the future's."""
        done: Future[T] = Future()

        def run() -> None:
            try:
                done.set_result(work())
            except Exception as error:  # noqa: BLE001 - handed to whoever asked, by the future
                done.set_exception(error)

        with self._wake:
            self._calls.append(run)
            self._wake.notify()
        return done

    def set_version(self, version: str) -> Future[None]:
        """Stamps every token drawn from now on."""

        def stamp() -> None:
            self.version = version

        return self.call(stamp)

    def close(self) -> None:
        """Ends the thread; what was running gets no further events."""
        with self._wake:
            self._closed = True
            self._wake.notify()
        self._thread.join()

    def _run(self) -> None:
        while True:
            with self._wake:
                self._wake.wait_for(self._has_work)
                if self._closed:
                    return
                calls, self._calls = self._calls, deque()
                paused = self._paused  # as of now: what changes it during the step is seen by the next
                admitted = [] if paused else self._take()
            for call in calls:
                call()
            if paused == "abort":
                events = self._cut()
            else:
                events = [] if paused == "keep" else self._step(admitted)
            if events:
                self._post(events)
            self._tell_drained(paused)

    def _has_work(self) -> bool:
        steps = bool(self._running) and self._paused != "keep"
        admits = bool(self._waiting) and self._paused is None
        return self._closed or bool(self._calls or self._drained) or steps or admits

    def _take(self) -> list[Generation]:
        taken: list[Generation] = []
        longest = 0
        while self._waiting and len(self._running) + len(taken) < self._max_rows:
            longest = max(longest, len(self._waiting[0].prompt))
            if taken and longest * (len(taken) + 1) > MAX_PREFILL_TOKENS:
                break
            row = self._waiting.popleft()
            if not row.cancelled:
                taken.append(row)
        return taken

    def _step(self, admitted: list[Generation]) -> list[Drawn]:
        """One token for each: those that run decode, those admitted are added with their first."""
        try:
            draws = self._decoder.decode() if self._running else []
            if admitted:
                draws += self._decoder.prefill(admitted)
        except (RuntimeError, ValueError) as error:  # out of memory, weights that give no distribution
            log.exception("a step failed: %s", error)
            return self._fail(admitted)
        rows = self._running + admitted
        events = [self._settle(row, draw) for row, draw in zip(rows, draws, strict=True)]
        kept = [event.finish is None for event in events]
        if not all(kept):
            self._decoder.keep(kept)
        self._running = list(compress(rows, kept))
        return events

    def _settle(self, row: Generation, draw: Draw) -> Drawn:
        row.produced += 1
        finish: Finish | None = None
        if row.cancelled:
            finish = "abort"
        elif draw.token in row.stop_ids:
            finish = "stop"
        elif row.produced >= row.max_tokens:
            finish = "length"
        return Drawn(row, draw, self.version, finish)

    def _cut(self) -> list[Drawn]:
        events = [Drawn(row, None, self.version, "abort") for row in self._running]
        self._decoder.keep([False] * len(self._running))
        self._running = []
        return events

    def _fail(self, admitted: list[Generation]) -> list[Drawn]:
        rows = self._running + admitted
        self._decoder.keep([])
        self._running = []
        return [Drawn(row, None, self.version, "error") for row in rows]

    def _tell_drained(self, paused: PauseMode | None) -> None:
        with self._wake:
            if self._paused != paused or (self._running and paused == "wait"):
                return
            done, self._drained = self._drained, []
        for future in done:
            future.set_result(None)
