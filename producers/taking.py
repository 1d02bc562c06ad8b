"""One message as a record: bad ones go to dead-letters, and a registry that is away is waited for."""

from __future__ import annotations

import logging
import threading
from dataclasses import dataclass

from ..infra.kafka import Message
from ..infra.quarantine import Quarantine
from ..schemas.errors import InvalidRecord, Unavailable
from ..schemas.serde import Decoder
from ..schemas.topics import TOPICS, Record

log = logging.getLogger(__name__)

RETRY_S = 1.0


@dataclass(frozen=True, slots=True)
class Taking:
    """Decodes what workers and gateways read."""

    decoder: Decoder
    quarantine: Quarantine
    stop: threading.Event

    def record(self, message: Message) -> Record | None:
        """The record; null for a tombstone, for a bad one (quarantined), and when told to stop while waiting."""
        if message.value is None:
            return None
        while not self.stop.is_set():
            try:
                found = self.decoder.decode_topic(TOPICS[message.topic], message.value, message.headers)
            except Unavailable as error:
                log.warning("waiting: %s", error)
                self.stop.wait(RETRY_S)
            except InvalidRecord as error:
                self.quarantine.put(message, error)
                return None
            else:
                self.quarantine.good()
                return found
        return None
