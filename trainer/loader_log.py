"""The loader's inbox: `workers` and `resources`, read into what it decides from."""

from __future__ import annotations

import threading

from ..infra.kafka import Message, Reader
from ..infra.taking import Taking
from ..schemas import topics
from ..schemas.records import Resource, Worker
from ..schemas.topics import Record
from .loader_plan import Lease, Versions

POLL_S = 0.1


class LoaderLog:
    """Folds records into a Lease and Versions, in log order. Bad records are quarantined."""

    def __init__(self, reader: Reader, taking: Taking, lease: Lease, versions: Versions) -> None:
        self._reader = reader
        self._taking = taking
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
            if not stop.is_set():
                self._taking.record(message, self._see)

    def _see(self, record: Record) -> None:
        if isinstance(record, Worker):
            self._lease.see(record)
        elif isinstance(record, Resource):
            self._versions.see(record)
