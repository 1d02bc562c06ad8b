"""Write-ahead recording: an answer goes to the agent only after the broker has its span.

engine's answer ─▶ spans, delivered=true ─▶ broker ─▶ acknowledged ─▶ agent
                                              └─▶ not: the call fails, and the same spans follow with
                                                  delivered=false and higher sequences
"""

from __future__ import annotations

import asyncio
import itertools
import logging
from collections.abc import Callable
from typing import Protocol
from uuid import uuid4

from ..infra.clock import Clock, SystemClock
from ..infra.producer import Ack
from ..schemas.errors import DeliveryFailed, InvalidRecord, RecordTooLarge, SpanloopError
from ..schemas.records import DeadLetter, SpanBatch
from ..schemas.serde import encode_body
from ..schemas.topics import SPANS, Record
from .gateway_answer import Answer
from .gateway_call import Exchange
from .gateway_errors import Refused, told

log = logging.getLogger(__name__)

# The record itself is at fault, and only its answer can be: what was read of the request was looked at before.
NEVER = (RecordTooLarge, InvalidRecord)


class Sender(Protocol):
    """What recording needs of `infra.producer.Producer`."""

    def send(
        self, record: Record, *, on_delivery: Callable[[DeliveryFailed | None, Ack | None], None] | None = None
    ) -> None: ...

    async def send_async(self, record: Record) -> Ack: ...


class Recorder:
    """Numbers this gateway's spans and sends them; sequences rise over the gateway's whole life."""

    def __init__(self, sender: Sender, ack_timeout_s: float, clock: Clock | None = None) -> None:
        self._sender = sender
        self._ack_timeout_s = ack_timeout_s
        self._clock = clock or SystemClock()
        self._sequence = itertools.count()
        self.producer_id = f"gw-{uuid4().hex}"
        self.unrecorded = 0

    async def ahead(self, exchange: Exchange) -> None:
        """Records an answer and waits for the broker. Raises Refused, after the correction was sent.

        `not_recorded`, where another try may do better, else `too_large` or `internal_error`.
        """
        try:
            await asyncio.wait_for(self._sender.send_async(self._record(exchange, delivered=True)), self._ack_timeout_s)
        except NEVER as error:
            self.undelivered(exchange, f"not recorded: {error}")
            code = "too_large" if isinstance(error, RecordTooLarge) else "internal_error"
            raise Refused(code, f"the answer cannot be recorded and is withheld: {error}") from error
        except (SpanloopError, asyncio.TimeoutError) as error:
            reason = str(error) or f"no acknowledgement within {self._ack_timeout_s:g} s"
            self.undelivered(exchange, f"not recorded: {reason}")
            raise Refused(
                "not_recorded", f"the answer could not be recorded and is withheld: {reason}; try again", 1
            ) from error

    def undelivered(self, exchange: Exchange, why: str) -> None:
        """Records, without waiting, that the agent did not get this answer in whole."""
        exchange.error = exchange.error or why
        try:
            try:
                self._sender.send(self._record(exchange, delivered=False), on_delivery=self._settled)
            except NEVER:
                exchange.answer = Answer()
                self._sender.send(self._record(exchange, delivered=False), on_delivery=self._settled)
        except SpanloopError as error:
            self.unrecorded += 1
            log.warning("a call of attempt %s is not recorded: %s", exchange.origin.attempt_id, error)

    async def failed(self, exchange: Exchange) -> None:
        """Records a call that no engine answered; the agent gets its error whether or not this succeeds."""
        try:
            await asyncio.wait_for(self._failed(exchange), self._ack_timeout_s)
        except (SpanloopError, asyncio.TimeoutError) as error:
            self.unrecorded += 1
            log.warning("a failed call of attempt %s is not recorded: %s", exchange.origin.attempt_id, told(error))

    async def _failed(self, exchange: Exchange) -> None:
        try:
            await self._sender.send_async(self._record(exchange, delivered=False))
        except NEVER:
            exchange.answer = Answer()
            await self._sender.send_async(self._record(exchange, delivered=False))

    def _settled(self, failure: DeliveryFailed | None, ack: Ack | None) -> None:
        del ack
        if failure is not None:
            self.unrecorded += 1
            log.warning("a call is not recorded: %s", failure)

    def _record(self, exchange: Exchange, *, delivered: bool) -> SpanBatch | DeadLetter:
        spans = exchange.spans(self._clock.now_ns(), self._sequence.__next__, delivered=delivered)
        origin = exchange.origin
        batch = SpanBatch(origin.rollout_id, origin.attempt_id, self.producer_id, spans[0].sequence, spans=spans)
        return batch if origin.known else self._kept_apart(batch)

    def _kept_apart(self, batch: SpanBatch) -> DeadLetter:
        """A call for an attempt that is not live: people can read it, no trajectory can."""
        return DeadLetter(
            consumer=f"gateway/{self.producer_id}",
            topic=SPANS.name,
            partition=-1,  # it was never in the log
            offset=batch.first_sequence,
            reason="unknown_attempt",
            key=batch.rollout_id.encode(),
            raw=encode_body(batch),
            message=f"a call for {batch.rollout_id}/{batch.attempt_id}, which is not a live attempt",
            at_ns=self._clock.now_ns(),
        )
