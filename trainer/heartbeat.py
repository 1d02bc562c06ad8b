"""Tells everyone that the trainer lives, what it trains and how much work may be outstanding."""

from __future__ import annotations

import logging
import socket
import threading
from collections.abc import Callable
from types import TracebackType

from ..infra.clock import Clock
from ..infra.producer import Ack, Producer
from ..schemas.errors import BackPressure, DeliveryFailed
from ..schemas.ids import worker_id
from ..schemas.records import Worker
from .config import TrainerConfig

log = logging.getLogger(__name__)


class Heartbeat:
    """A thread that beats from entry to exit, and says goodbye."""

    def __init__(self, producer: Producer, config: TrainerConfig, version: Callable[[], int], clock: Clock) -> None:
        """`version` gives the newest published version, 0 = none."""
        self._producer = producer
        self._config = config
        self._version = version
        self._clock = clock
        self._id = worker_id()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="trainer-heartbeat", daemon=True)

    def __enter__(self) -> Heartbeat:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stop.set()
        self._thread.join()
        self._beat(alive=False)

    def _run(self) -> None:
        while True:
            self._beat(alive=True)
            if self._stop.wait(self._config.beat_s):
                return

    def _beat(self, *, alive: bool) -> None:
        config = self._config
        beat = Worker(
            worker_id=self._id,
            name=config.trainer_id,
            role="trainer",
            credit=config.credit_rollouts,
            policy=config.policy,
            policy_version=self._version() or None,
            host=socket.gethostname(),
            run_id=config.run_id,
            beat_ns=self._clock.now_ns(),
            alive=alive,
        )
        try:
            self._producer.send(beat, on_delivery=_told)
        except (BackPressure, DeliveryFailed) as error:  # the next beat tells the same; the loop ends if none can
            log.warning("a heartbeat was not sent: %s", error)


def _told(failure: DeliveryFailed | None, ack: Ack | None) -> None:
    del ack
    if failure is not None:
        log.warning("a heartbeat was lost: %s", failure)
