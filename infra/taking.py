"""One message as a record, for every part that reads: a bad one goes to dead-letters, and where the registry cannot be
reached the record is fine, so that its partition waits.

    registry knows the id         the record
    registry does not know it     dead letter `unknown_schema_id` (after the tries that infra.registry makes)
    it is no Avro record's        dead letter `undecodable`
    registry cannot be reached    wait, try again, for ever; an id met before needs no registry
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable

from ..schemas.errors import InvalidRecord, Unavailable
from ..schemas.serde import Decoder
from ..schemas.topics import TOPICS, Record
from .message import Message
from .quarantine import Quarantine

log = logging.getLogger(__name__)

RETRY_S = 0.5
Check = Callable[[Record], object]


class Taking:
    """Decodes what a consumer reads. `check` is what else a record must pass; it raises InvalidRecord."""

    def __init__(self, decoder: Decoder, quarantine: Quarantine | None, stop: threading.Event) -> None:
        """Without a quarantine bad records are passed over: for reading again what was judged when it was new."""
        self.decoder = decoder
        self.quarantine = quarantine
        self.stop = stop
        self.gave_up = False
        """It was told to stop while it waited: the record that it had in hand was not taken."""
        self._waits = False

    def once(self, message: Message, check: Check | None = None) -> Record | None:
        """The record; None for a tombstone and a bad one. Raises Unavailable while its schema cannot be looked up."""
        found = self._judge(message, check)
        if isinstance(found, InvalidRecord):
            self._refuse(message, found)
            return None
        return found

    def within(self, message: Message, timeout_s: float, check: Check | None = None) -> Record | None:
        """The same for who tries again: Unavailable comes after a wait of so long, and its reason is told once."""
        try:
            found = self.once(message, check)
        except Unavailable as error:
            self._tell(message, error)
            self.stop.wait(timeout_s)
            raise
        self._went_on()
        return found

    def record(self, message: Message, check: Check | None = None) -> Record | None:
        """As `once`, waiting while the registry cannot be reached; None too where told to stop meanwhile."""
        while True:
            try:
                found = self.once(message, check)
            except Unavailable as error:
                self._tell(message, error)
                if self.stop.wait(RETRY_S):
                    self.gave_up = True
                    return None
            else:
                self._went_on()
                return found

    async def record_async(self, message: Message, check: Check | None = None) -> Record | None:
        """The same without holding up the event loop: the registry is asked in a thread."""
        while True:
            try:
                if message.value is not None and self.decoder.asks(message.value, message.headers):
                    found = await asyncio.to_thread(self._judge, message, check)
                else:
                    found = self._judge(message, check)
            except Unavailable as error:
                self._tell(message, error)
                await asyncio.sleep(RETRY_S)
                continue
            self._went_on()
            if isinstance(found, InvalidRecord):
                await asyncio.to_thread(self._refuse, message, found)
                return None
            return found

    def _judge(self, message: Message, check: Check | None) -> Record | InvalidRecord | None:
        if message.value is None:
            return None
        try:
            record = self.decoder.decode_topic(TOPICS[message.topic], message.value, message.headers)
            if check is not None:
                check(record)
        except InvalidRecord as error:
            return error
        if self.quarantine is not None:
            self.quarantine.good()
        return record

    def _refuse(self, message: Message, error: InvalidRecord) -> None:
        if self.quarantine is not None:
            self.quarantine.put(message, error)

    def _tell(self, message: Message, error: Unavailable) -> None:
        if not self._waits:
            log.warning("%s[%d] waits at offset %d: %s", message.topic, message.partition, message.offset, error)
        self._waits = True

    def _went_on(self) -> None:
        if self._waits:
            log.warning("goes on")
        self._waits = False
