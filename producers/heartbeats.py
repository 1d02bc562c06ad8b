"""A worker's heartbeats, from a thread of their own: an agent that blocks an event loop delays none.

One that holds the interpreter in a thread of the same process does; with isolation process nothing an agent does can.
"""

from __future__ import annotations

import logging
import socket
import sys
import threading
from collections.abc import Callable
from dataclasses import replace
from importlib.metadata import version

from ..infra.clock import Clock
from ..infra.producer import Ack, Producer
from ..schemas.errors import BackPressure, DeliveryFailed
from ..schemas.records import Worker

log = logging.getLogger(__name__)

BEAT_S = 1.0
MIN_BEAT_S = 0.1  # changes closer together than this share a heartbeat
VERSIONS = {"spanloop": version("spanloop"), "python": sys.version.split()[0]}
Heard = Callable[[list[str], float], None]  # attempts named, when that was sent


class Heartbeats:
    """Says what a worker holds, every second and at every change."""

    def __init__(self, producer: Producer, clock: Clock, beat: Callable[[], Worker], heard: Heard) -> None:
        """`beat` says what is held; `heard` learns of what was acknowledged."""
        self._producer = producer
        self._clock = clock
        self._beat = beat
        self._heard = heard
        self._changed = threading.Event()
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, name="heartbeats", daemon=True)

    def start(self) -> None:
        """The first heartbeat: from now on assignments may come."""
        self._thread.start()

    def changed(self) -> None:
        """The next heartbeat would say something else: it goes out soon."""
        self._changed.set()

    def check(self) -> None:
        """Raises DeliveryFailed where its thread has died: nobody would hear of this worker any more."""
        if not self._thread.is_alive():
            raise DeliveryFailed("the thread that sends heartbeats has died: start its process anew")

    def close(self, timeout_s: float) -> None:
        """Says goodbye, unless nothing was ever said; waits for it no longer than `timeout_s`."""
        self._over.set()
        self._changed.set()
        if self._thread.is_alive():
            self._thread.join(timeout_s)

    def _run(self) -> None:
        while not self._over.is_set():
            self._changed.clear()
            self._say(alive=True)
            self._over.wait(MIN_BEAT_S)
            self._changed.wait(BEAT_S - MIN_BEAT_S)
        self._say(alive=False)

    def _say(self, *, alive: bool) -> None:
        sent_s = self._clock.steady_s()
        beat = replace(
            self._beat(), host=socket.gethostname(), versions=VERSIONS, beat_ns=self._clock.now_ns(), alive=alive
        )

        def delivered(failure: DeliveryFailed | None, ack: Ack | None) -> None:
            del ack
            if failure is not None:
                log.warning("a heartbeat is lost: %s", failure)
            else:
                self._heard(beat.running, sent_s)

        try:
            self._producer.send(beat, on_delivery=delivered)
        except (BackPressure, DeliveryFailed) as error:
            log.warning("a heartbeat is skipped: %s", error)
