"""The loader's inbox: `workers` and `resources`, read into what it decides from."""

from __future__ import annotations

import logging
import threading

from ..infra.kafka import Message, Reader
from ..infra.quarantine import Quarantine
from ..schemas import topics
from ..schemas.errors import InvalidRecord, Unavailable
from ..schemas.records import Resource, Worker
from ..schemas.serde import Decoder
from .loader_plan import Lease, Versions

log = logging.getLogger(__name__)

POLL_S = 0.1
REGISTRY_RETRY_S = 1.0


class LoaderLog:
    """Folds records into a Lease and Versions, in log order. Bad resources are quarantined."""

    def __init__(
        self, reader: Reader, decoder: Decoder, quarantine: Quarantine, lease: Lease, versions: Versions
    ) -> None:
        self._reader = reader
        self._decoder = decoder
        self._quarantine = quarantine
        self._lease = lease
        self._versions = versions
        reader.assign_topics([topics.WORKERS, topics.RESOURCES])

    def catch_up(self, stop: threading.Event) -> None:
        """Reads everything that is in the log now."""
        ends = self._reader.ends()
        while not stop.is_set() and not self._reader.reached(ends):
            self._take(self._reader.poll(timeout_s=POLL_S), stop)

    def follow(self, stop: threading.Event) -> None:
        """Waits a moment for something new, then reads all of it, so that only the newest version is loaded."""
        messages = self._reader.poll(timeout_s=POLL_S)
        while messages and not stop.is_set():
            self._take(messages, stop)
            messages = self._reader.poll(timeout_s=0.0)

    def _take(self, messages: list[Message], stop: threading.Event) -> None:
        for message in messages:
            while not stop.is_set():
                try:
                    self._see(message)
                    break
                except Unavailable as error:  # the record is fine; its schema cannot be looked up yet
                    log.warning("%s; trying again", error)
                    stop.wait(REGISTRY_RETRY_S)

    def _see(self, message: Message) -> None:
        if message.value is None:  # tombstones: compaction's business
            return
        try:
            if message.topic == topics.WORKERS.name:
                self._lease.see(self._decoder.decode(Worker, message.value, message.headers))
            else:
                self._versions.see(self._decoder.decode(Resource, message.value, message.headers))
                self._quarantine.good()
        except InvalidRecord as error:
            log.warning("%s[%d]@%d: %s", message.topic, message.partition, message.offset, error)
            if message.topic == topics.RESOURCES.name:  # heartbeats are the controller's to quarantine
                self._quarantine.put(message, error)
