"""Keeps a copy of every Avro topic as Avro object containers, one file a topic, bodies copied undecoded."""

from __future__ import annotations

import logging
import os
import threading
import time
from contextlib import ExitStack, closing
from pathlib import Path
from typing import IO

from ..infra.kafka import Message, Reader
from ..infra.registry import connect, wait_for_registry
from ..infra.settings import Settings
from ..schemas.errors import InvalidRecord, Unavailable
from ..schemas.serde import Decoder, fingerprint, schema_json, split
from ..schemas.topics import TOPICS
from .avro_container import Container

log = logging.getLogger(__name__)

MAX_RECORDS = 2000
POLL_S = 0.2
# How long nothing may come while the end of a topic is not reached; a part has four seconds to leave.
SILENCE_S = 3.0
RETRY_S = 1.0


class ExportService:
    """Follows all topics from their first record and appends to `<folder>/<topic>.avro`.

    A record written with another schema than this version's goes to `<topic>-<fingerprint>.avro`. Tombstones and
    records without framing have no body to copy and are left to ClickHouse and the dead letters.
    """

    def __init__(self, settings: Settings, folder: Path) -> None:
        self._settings = settings
        self._folder = folder
        self._files: dict[str, tuple[IO[bytes], Container]] = {}

    def run(self, stop: threading.Event) -> None:
        """Works until stopped, then reads on to the end of every topic."""
        if not wait_for_registry(self._settings, stop):
            return
        self._folder.mkdir(parents=True, exist_ok=True)
        with ExitStack() as stack:
            stack.callback(self._close)
            self._decoder = Decoder(stack.enter_context(closing(connect(self._settings))))
            reader = stack.enter_context(closing(Reader(self._settings, "export")))
            reader.assign_topics(list(TOPICS.values()))
            while not stop.is_set():
                self._append(reader.poll(MAX_RECORDS, POLL_S), stop)
            self._read_on(reader, stop)

    def _read_on(self, reader: Reader, stop: threading.Event) -> None:
        ends, heard = reader.ends(), time.monotonic()
        while not reader.reached(ends):
            if messages := reader.poll(MAX_RECORDS, POLL_S):
                self._append(messages, stop)
                heard = time.monotonic()
            elif time.monotonic() - heard > SILENCE_S:
                log.warning("the export ends before the topics do: nothing came for %g s", SILENCE_S)
                return

    def _close(self) -> None:
        for file, _ in self._files.values():
            file.close()

    def _append(self, messages: list[Message], stop: threading.Event) -> None:
        for name, records in self._blocks(messages, stop).items():
            file, container = self._files[name]
            file.write(container.block(records))
            file.flush()

    def _blocks(self, messages: list[Message], stop: threading.Event) -> dict[str, list[tuple[int, int, bytes]]]:
        """Bodies by file. Waits for a registry that is away; raises Unavailable where told to stop meanwhile."""
        while True:
            try:
                return self._sorted(messages)
            except Unavailable as error:
                log.warning("the export waits: %s", error)
                if stop.wait(RETRY_S):
                    raise

    def _sorted(self, messages: list[Message]) -> dict[str, list[tuple[int, int, bytes]]]:
        blocks: dict[str, list[tuple[int, int, bytes]]] = {}
        for m in messages:
            if m.value is None:
                continue
            try:
                schema_id, body = split(m.value, m.headers)
                writer = self._decoder.writer(schema_id)
            except InvalidRecord:
                continue
            blocks.setdefault(self._name(m.topic, writer), []).append((m.partition, m.offset, body))
        return blocks

    def _name(self, topic: str, writer: str) -> str:
        own = writer == schema_json(TOPICS[topic].record)
        name = topic if own else f"{topic}-{fingerprint(writer)}"
        if name not in self._files:
            container = Container(writer, os.urandom(16))
            file = (self._folder / f"{name}.avro").open("wb")
            file.write(container.header)
            self._files[name] = (file, container)
        return name
