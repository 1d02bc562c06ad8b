"""Which records the broker has acknowledged, by epoch: an offset is committed only after all that came of it."""

from __future__ import annotations

import threading

from ..infra.producer import Ack, Producer
from ..schemas.errors import DeliveryFailed
from ..schemas.records import Assembly, Attempt, Trajectory


class Epoch:
    """Records sent between two commits. Settled from the producer's thread."""

    def __init__(self) -> None:
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
        """Returns once everything is acknowledged. Raises DeliveryFailed."""
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

    def send(self, record: Trajectory | Attempt | Assembly, partition: int | None = None) -> None:
        """Sends a record in the current epoch. Raises RecordTooLarge, BackPressure."""
        epoch = self._epoch
        epoch.add()
        try:
            self._producer.send(record, partition=partition, on_delivery=epoch.settle)
        except BaseException:
            epoch.settle(None, None)
            raise

    def seal(self) -> Epoch:
        """Ends the current epoch, to be waited for, and begins the next."""
        epoch, self._epoch = self._epoch, Epoch()
        epoch.seal()
        return epoch
