"""Where bad records go: one dead letter each, with where it was, why, and its bytes; a limit against bad deploys."""

from __future__ import annotations

import hashlib
import re
from dataclasses import replace

from ..schemas.errors import InvalidRecord, RecordTooLarge, TooManyDeadLetters
from ..schemas.records import DeadLetter
from ..schemas.topics import MIB
from .clock import Clock, SystemClock
from .message import Message
from .producer import Producer

# What is kept of a record that dead-letters cannot hold: Kafka limits a batch as it is compressed, so that one record
# may be many times as long as its topic allows. Enough for people to see what it was.
CUT_BYTES = MIB
CUT_CHARS = 10_000
CUT = re.compile(r"; cut, of a key of \d+ and a value of \d+ bytes with SHA-256 [0-9a-f]{64}$")


def is_cut(letter: DeadLetter) -> bool:
    """True where a letter holds only the first bytes of its record."""
    return CUT.search(letter.message) is not None


class Quarantine:
    """Writes a consumer's dead letters and counts them."""

    def __init__(self, producer: Producer, consumer: str, limit: int, clock: Clock | None = None) -> None:
        self._producer = producer
        self._consumer = consumer
        self._limit = limit
        self._clock = clock or SystemClock()
        self._in_a_row = 0
        self.count = 0

    def put(self, message: Message, error: InvalidRecord) -> None:
        """Writes a dead letter and waits for it, so that the offset may move on. Raises TooManyDeadLetters.

        Of a record that is too large for one it keeps the first bytes, the length and the SHA-256.
        """
        letter = DeadLetter(
            consumer=self._consumer,
            topic=message.topic,
            partition=message.partition,
            offset=message.offset,
            reason=error.reason,
            key=message.key,
            raw=message.value,
            message=error.message,
            at_ns=self._clock.now_ns(),
        )
        try:
            self._producer.send_wait(letter)
        except RecordTooLarge:
            self._producer.send_wait(_cut(letter))
        self.count += 1
        self._in_a_row += 1
        if self._in_a_row > self._limit:
            raise TooManyDeadLetters(
                f"{self._consumer} refused {self._in_a_row} records in a row, the last at {message.topic}"
                f"[{message.partition}]@{message.offset} ({error}); is its version the right one? "
                "dlq_limit sets how many are borne"
            )

    def good(self) -> None:
        """Tells that a record was taken."""
        self._in_a_row = 0


def _cut(letter: DeadLetter) -> DeadLetter:
    key, raw = letter.key or b"", letter.raw or b""
    marks = (
        f"; cut, of a key of {len(key)} and a value of {len(raw)} bytes with SHA-256 {hashlib.sha256(raw).hexdigest()}"
    )
    return replace(
        letter,
        key=letter.key and key[:CUT_BYTES],
        raw=letter.raw and raw[:CUT_BYTES],
        message=letter.message[:CUT_CHARS] + marks,
    )
