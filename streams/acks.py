"""Which records the broker has acknowledged, by epoch: an offset is committed only after all that came of it."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Iterable

from ..infra.producer import Ack, Producer
from ..schemas.errors import DeliveryFailed, RecordTooLarge
from ..schemas.records import Assembly, Attempt, Trajectory

log = logging.getLogger(__name__)

ACK_TIMEOUT_S = 60.0


class Epoch:
    """Records sent between two commits. Settled from the producer's thread.

    It is done when those before it are too: one whose wait was given up, or that failed, holds back all that follow.
    """

    def __init__(self, earlier: Epoch | None = None) -> None:
        self._earlier = earlier
        self._lock = threading.Lock()
        self._open = 0
        self._sealed = False
        self._failure: DeliveryFailed | None = None
        self._done = threading.Event()

    def add(self) -> None:
        """One more record is on its way."""
        with self._lock:
            self._open += 1

    def settle(self, failure: DeliveryFailed | None, ack: Ack | None) -> None:
        """A record was acknowledged, or will not be."""
        del ack
        with self._lock:
            self._open -= 1
            self._failure = self._failure or failure
            self._check()

    def seal(self) -> None:
        """Nothing more is added."""
        with self._lock:
            self._sealed = True
            self._check()

    def wait(self, timeout_s: float) -> None:
        """Returns once everything up to its end is acknowledged. Raises DeliveryFailed."""
        if (earlier := self._earlier) is not None:
            earlier.wait(timeout_s)
            self._earlier = None
        if not self._done.wait(timeout_s):
            raise DeliveryFailed(f"{self._open} records were not acknowledged within {timeout_s:g} s")
        if self._failure is not None:
            raise self._failure

    def _check(self) -> None:
        if self._sealed and not self._open:
            self._done.set()


class Outbox:
    """Sends the assembler's records and knows which are still on their way."""

    def __init__(self, producer: Producer) -> None:
        self._producer = producer
        self._epoch = Epoch()
        self._assemblies: list[tuple[Assembly, int]] = []

    def send(self, record: Trajectory | Attempt | Assembly, partition: int | None = None) -> None:
        """Sends a record in the current epoch. Raises RecordTooLarge, BackPressure."""
        epoch = self._epoch
        epoch.add()
        try:
            self._producer.send(record, partition=partition, on_delivery=epoch.settle)
        except BaseException:
            epoch.settle(None, None)
            raise

    def send_first(self, versions: Iterable[Trajectory | Attempt]) -> None:
        """Sends the first version of a record that is not too large, if any is. Raises BackPressure."""
        for record in versions:
            try:
                self.send(record)
            except RecordTooLarge as error:
                log.warning("a record of %s is cut: %s", record.attempt_id, error)
            else:
                return

    def remember(self, assembly: Assembly, partition: int) -> None:
        """Keeps an assembly until `settle` knows that what it tells of is acknowledged."""
        self._assemblies.append((assembly, partition))

    async def settle(self) -> None:
        """Waits until all that was sent is acknowledged, then for its assemblies. One call at a time.

        Assemblies go last: one says that its attempt need not be read again, so nothing of it may still be under way.
        Raises DeliveryFailed: then every later call does.
        """
        count = len(self._assemblies)
        await self._acknowledged()
        assemblies, self._assemblies = self._assemblies[:count], self._assemblies[count:]
        for assembly, partition in assemblies:
            self.send(assembly, partition)
        if assemblies:
            await self._acknowledged()

    async def _acknowledged(self) -> None:
        epoch, self._epoch = self._epoch, Epoch(self._epoch)
        epoch.seal()
        await asyncio.to_thread(epoch.wait, ACK_TIMEOUT_S)
