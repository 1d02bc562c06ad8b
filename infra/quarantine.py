"""Where bad records go: one dead letter each, with where it was, why, and its bytes; a limit against bad deploys."""

from __future__ import annotations

from ..schemas.errors import InvalidRecord, TooManyDeadLetters
from ..schemas.records import DeadLetter
from .clock import Clock, SystemClock
from .message import Message
from .producer import Producer


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
        """Writes a dead letter and waits for it, so that the offset may move on. Raises TooManyDeadLetters."""
        self._producer.send_wait(
            DeadLetter(
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
        )
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
