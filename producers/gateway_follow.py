"""Follows the topics a gateway lives by: `attempts` (who may call) and `workers` (which engines there are)."""

from __future__ import annotations

import asyncio
import threading
from concurrent.futures import Future

from ..infra.clock import NS_PER_S, Clock, SystemClock
from ..infra.kafka import Message, Reader
from ..infra.quarantine import Quarantine
from ..infra.registry import connect
from ..infra.settings import Settings
from ..infra.taking import Taking
from ..schemas.errors import Unavailable
from ..schemas.records import Attempt, Worker
from ..schemas.serde import Decoder
from ..schemas.topics import ATTEMPTS, WORKERS
from .gateway_attempts import Attempts
from .gateway_engines import Engines

POLL_S = 0.05
# Every live engine beats within seconds, so of the old heartbeats a few suffice.
OLD_HEARTBEATS = 1000


class Follower:
    """Reads both topics on a thread of its own."""

    def __init__(
        self,
        settings: Settings,
        attempts: Attempts,
        engines: Engines,
        quarantine: Quarantine,
        clock: Clock | None = None,
    ) -> None:
        self._attempts = attempts
        self._engines = engines
        self._quarantine = quarantine
        self._clock = clock or SystemClock()
        self._registry = connect(settings)
        self._reader = Reader(settings, "gateway")
        # Of one transaction a worker may see its assignment before we see the attempt: partitions are told of its end
        # one after the other, and one whose leader has died much later. So an open one is waited for.
        self._ends = Reader(settings, "gateway", isolation="read_uncommitted")
        self._lock = threading.Lock()
        self._waiting: list[Future[None]] = []
        self._ended = False

    async def caught_up(self) -> None:
        """Returns once everything that was in `attempts` when it was called has been read, open transactions too.

        Raises Unavailable.
        """
        await asyncio.wrap_future(self.ask())

    def ask(self) -> Future[None]:
        """The same for threads."""
        done: Future[None] = Future()
        done.set_running_or_notify_cancel()  # a caller that gave up must not make the follower fail
        with self._lock:
            if self._ended:
                done.set_exception(Unavailable("the gateway is stopping"))
            else:
                self._waiting.append(done)
        return done

    def run(self, stop: threading.Event) -> None:
        """Follows until `stop`. Raises DataLost, TooManyDeadLetters, Unavailable (topics missing)."""
        taking = Taking(Decoder(self._registry), self._quarantine, stop)
        try:
            self._start()
            while not stop.is_set():
                self._take(taking)
                self._answer_waiting(taking)
        finally:
            self._give_up(Unavailable("the gateway is stopping"))
            self._reader.close()
            self._ends.close()
            self._registry.close()

    def _start(self) -> None:
        first, _ = self._reader.watermarks((ATTEMPTS.name, 0))
        low, high = self._reader.watermarks((WORKERS.name, 0))
        self._reader.assign({(ATTEMPTS.name, 0): first, (WORKERS.name, 0): max(low, high - OLD_HEARTBEATS)})

    def _answer_waiting(self, taking: Taking) -> None:
        with self._lock:
            count = len(self._waiting)
        if not count:
            return
        failure = None
        try:
            end = {(ATTEMPTS.name, 0): self._ends.watermarks((ATTEMPTS.name, 0))[1]}
            while not self._reader.reached(end):
                if taking.stop.is_set():
                    raise Unavailable("the gateway is stopping")
                self._take(taking)
        except Unavailable as error:  # what else is raised ends the follower, and that settles all who wait
            failure = error
        self._settle(count, failure)

    def _give_up(self, error: Unavailable) -> None:
        with self._lock:
            self._ended = True
        self._settle(len(self._waiting), error)

    def _settle(self, count: int, error: Unavailable | None) -> None:
        """Answers those who have waited longest."""
        with self._lock:
            settled, self._waiting = self._waiting[:count], self._waiting[count:]
        for done in settled:
            if error is None:
                done.set_result(None)
            else:
                done.set_exception(error)

    def _take(self, taking: Taking) -> None:
        for message in self._reader.poll(1000, POLL_S):
            record = taking.record(message)
            if isinstance(record, Attempt):
                self._attempts.observe(record)
            elif isinstance(record, Worker):
                self._engines.observe(record, self._age_s(message))

    def _age_s(self, message: Message) -> float:
        """By the log's clock; a heartbeat from the future is a fresh one."""
        return max(0.0, self._clock.now_ns() / NS_PER_S - message.timestamp_ms / 1000)
