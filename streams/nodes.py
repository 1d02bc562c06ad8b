"""Spans and rewards as the assembler keeps them: what assembly needs, who sent it, and a digest of all it said.

A node leaves the texts of requests, responses and attributes behind, so an open attempt costs little more than its
token ids. Two events are the same exactly if producer, sequence and content are.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, fields, replace
from hashlib import blake2b
from operator import attrgetter
from typing import Any, NamedTuple, cast

from msgspec.msgpack import Encoder

from ..schemas.messages import UNREADABLE
from ..schemas.records import AttemptEnd, ModelCall, Reward, Span
from ..schemas.semconv import AGENT_NAMES, GEN_AI_OPERATION, OI_KIND

DIGEST_BYTES = 16
# What a node costs besides its token ids, roughly: the object, its strings, its entry in three dicts.
NODE_BYTES = 1_200
AGENT_OPERATIONS = ("invoke_agent", "create_agent")
MARKERS = (*AGENT_NAMES, GEN_AI_OPERATION, OI_KIND)


class SpanNode(NamedTuple):
    """One version of a span. A tuple: quick to make, and of one without a call the garbage collector knows nothing."""

    span_id: str
    choice: int  # 0 unless the span is a call of n > 1 choices
    parent: str | None
    start_ns: int
    end_ns: int | None
    agent: str | None  # name of the agent whose span it is
    failed: bool
    call: ModelCall | None  # without its request and response
    producer: str
    sequence: int
    content: bytes  # digest of all it said besides its sequence
    partition: int
    offset: int

    @property
    def event(self) -> bytes:
        """Equal for two records exactly if they tell the same event."""
        return self.content + b"%d " % self.sequence + self.producer.encode()

    @property
    def ident(self) -> tuple[str, int]:
        """What the latest version of is kept."""
        return self.span_id, self.choice

    @property
    def size(self) -> int:
        """Bytes it holds, roughly."""
        call = self.call
        if call is None:
            return NODE_BYTES
        return NODE_BYTES + len(call.prompt_ids or b"") + len(call.response_ids or b"") + len(call.logprobs or b"")


@dataclass(frozen=True, slots=True)
class RewardNode:
    """One version of a reward."""

    reward: Reward
    digest: bytes
    offset: int


@dataclass(frozen=True, slots=True)
class EndNode:
    """An end marker and where it was; the first one in the partition decides."""

    end: AttemptEnd
    producer: str
    digest: bytes
    offset: int


def span_node(span: Span, producer: str, partition: int, offset: int) -> SpanNode:
    """A span as it is kept."""
    call = span.call
    return SpanNode(
        span.span_id,
        0 if call is None else call.choice,
        _parent(span.parent_span_id),
        span.start_ns,
        span.end_ns,
        agent_name(span),
        span.status == "error",
        None if call is None else ModelCall("", None, *_without_texts(call)),
        producer,
        span.sequence,
        digest(*_span_values(span)),
        partition,
        offset,
    )


def reward_node(reward: Reward, offset: int) -> RewardNode:
    """A reward as it is kept."""
    return RewardNode(reward if reward.comment is None else replace(reward, comment=None), digest(reward), offset)


def end_node(end: AttemptEnd, producer: str, offset: int) -> EndNode:
    """An end marker as it is kept."""
    return EndNode(end, producer, digest(producer, end), offset)


def agent_name(span: Span) -> str | None:
    """The agent a span belongs to, by the conventions in `semconv`; None where it names none."""
    text = span.attributes
    for marker in MARKERS:
        if marker in text:
            break
    else:
        return None
    try:
        attributes = json.loads(text)
    except UNREADABLE:  # such attributes name no agent; the span itself is kept
        return None
    if not isinstance(attributes, dict):
        return None
    found = cast("dict[str, Any]", attributes)
    for name in AGENT_NAMES:
        if isinstance(value := found.get(name), str) and value:
            return value.encode("utf-8", "replace").decode()  # JSON can hold half a surrogate pair, a record cannot
    is_agent = found.get(GEN_AI_OPERATION) in AGENT_OPERATIONS or found.get(OI_KIND) == "AGENT"
    return span.name if is_agent else None


def _parent(span_id: str | None) -> str | None:
    """None for a root, whose parent some SDKs write as zeros."""
    return span_id if span_id and span_id.strip("0") else None


def digest(*parts: object) -> bytes:
    """16 bytes that are equal for equal content, on every machine."""
    return blake2b(_encode(parts), digest_size=DIGEST_BYTES).digest()


_without_texts = attrgetter(*(f.name for f in fields(ModelCall) if f.name not in ("request", "response")))
_span_values = attrgetter(*(f.name for f in fields(Span) if f.name != "sequence"))
_encode = Encoder().encode
