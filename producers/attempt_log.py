"""What one attempt has emitted, and one record of it on its way to Kafka; `spool` moves both."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Protocol

from ..schemas.errors import DeliveryFailed
from ..schemas.records import AttemptEnd, Reward, Span, SpanBatch

if TYPE_CHECKING:
    from ..infra.producer import Ack
    from .spool import Spool

OnEnd = Callable[[bool], None]
SPAN_BYTES = 200  # ids and times of a span, roughly
EXACT_CHARS = 64 << 10  # texts longer than this are measured in UTF-8


class Sender(Protocol):
    """What the spool needs of `infra.producer.Producer`."""

    def send(
        self,
        record: SpanBatch | Reward,
        *,
        on_delivery: Callable[[DeliveryFailed | None, Ack | None], None] | None = None,
    ) -> None:
        """Enqueues a record. Raises BackPressure, DeliveryFailed, RecordTooLarge, InvalidRecord."""
        ...


@dataclass(slots=True)
class Parcel:
    """One record on its way, with what it holds of the bound."""

    record: SpanBatch | Reward
    count: int
    bytes: int
    attempt: AttemptLog
    on_end: OnEnd | None = None

    def parts(self) -> list[Parcel]:
        """What else it can be sent as where it is refused: spans in halves, the end marker by itself; [] = nothing."""
        batch = self.record
        if not isinstance(batch, SpanBatch) or not batch.spans:
            return []
        if batch.end is not None:
            spans = replace(self, record=replace(batch, end=None), on_end=None)
            end = replace(batch, begin=False, first_sequence=0, spans=[])
            return [spans, Parcel(end, 0, 0, self.attempt, self.on_end)]
        middle = len(batch.spans) // 2
        return [self._part(batch, batch.spans[:middle]), self._part(batch, batch.spans[middle:])] if middle else []

    def _part(self, batch: SpanBatch, spans: list[Span]) -> Parcel:
        begin = batch.begin and spans[0] is batch.spans[0]
        record = replace(batch, begin=begin, first_sequence=spans[0].sequence, spans=spans)
        return Parcel(record, len(spans), sum(map(size_of, spans)), self.attempt)


def size_of(span: Span) -> int:
    """Roughly the bytes that a span takes; exact where it matters."""
    texts = [span.attributes, span.events, span.links, span.resource, span.name, span.status_message]
    packed = 0
    if (call := span.call) is not None:
        texts += [call.request, call.response or ""]
        packed = sum(len(p or b"") for p in (call.prompt_ids, call.response_ids, call.logprobs))
    chars = sum(map(len, texts))
    if chars > EXACT_CHARS:
        chars = sum(len(text.encode()) for text in texts)
    return SPAN_BYTES + chars + packed


class AttemptLog:
    """What one attempt has emitted so far; a `context.Sink`. Made by `Spool.open`."""

    __slots__ = ("_spool", "attempt_id", "begun", "buffer", "closed", "dropped", "due", "rewards", "rollout_id",
                 "size", "spans")  # fmt: skip

    def __init__(self, spool: Spool, rollout_id: str, attempt_id: str) -> None:
        self._spool = spool
        self.rollout_id = rollout_id
        self.attempt_id = attempt_id
        self.buffer: list[Span] = []
        self.size = 0
        self.due = False  # listed to be sealed when its linger is over
        self.begun = False
        self.closed = False
        self.spans = 0  # emitted, the dropped ones included: fewer arriving is then seen as missing
        self.rewards = 0
        self.dropped = 0

    def span(self, span: Span) -> None:
        """Takes a span; may block for the spool's limit, then drops it and counts."""
        if self._spool.ours():
            self._spool.add(self, span)

    def reward(self, reward: Reward) -> None:
        """Takes a reward; may block for the spool's limit, then drops it and counts."""
        if self._spool.ours():
            self._spool.add_reward(self, reward)

    def end(self, end: AttemptEnd, on_end: OnEnd | None = None) -> None:
        """Closes the attempt: everything it emitted, then the end marker with the counts. Only the first call counts.

        `on_end` learns, in another thread, whether the broker has acknowledged it.
        """
        self._spool.finish(self, end, on_end)
