"""Builders of what attempts emit, in the notation of the cases: SPAN, LLM, REW, END; times in ms after T0."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from hashlib import md5
from typing import Any

from spanloop.schemas.packed import pack_ids, pack_logprobs
from spanloop.schemas.records import (
    AttemptContext,
    AttemptEnd,
    Credit,
    EndStatus,
    ModelCall,
    Reward,
    Span,
    SpanBatch,
    Trajectory,
    VersionRun,
)
from spanloop.streams.assembler import Assembler
from spanloop.streams.messages import Emitted, Message, Output, Policy, Reread

T0_MS = 1_760_000_000_000
MS = 1_000_000
NOW = T0_MS * MS
S = 1_000_000_000
TRACE = "0" * 31 + "1"


def span_id(name: str) -> str:
    """16 hex digits for a short name such as s1."""
    return md5(name.encode()).hexdigest()[:16]


def at(ms: float) -> int:
    """Milliseconds after T0 as Unix nanoseconds."""
    return int((T0_MS + ms) * MS)


def span(
    name: str,
    parent: str | None = None,
    start: float = 0,
    end: float | None = 1000,
    *,
    seq: int = 0,
    attrs: dict[str, Any] | None = None,
    label: str = "step",
    call: ModelCall | None = None,
    failed: bool = False,
) -> Span:
    """SPAN{id, parent, start, end, seq, attrs}."""
    return Span(
        trace_id=TRACE,
        span_id=span_id(name),
        name=label,
        start_ns=at(start),
        parent_span_id=None if parent is None else span_id(parent),
        sequence=seq,
        end_ns=None if end is None else at(end),
        status="error" if failed else "unset",
        attributes=json.dumps(attrs or {}),
        call=call,
    )


def model_call(
    prompt: Sequence[int] | None, response: Sequence[int] | None, lp: Sequence[float] | None = None, **fields: Any
) -> ModelCall:
    """A ModelCall with ids P and R; log-probs −0.5 unless given."""
    if lp is None and response is not None:
        lp = [-0.5] * len(response)
    fields.setdefault("policy", "policy")
    return ModelCall(
        request="{}",
        response="{}",
        prompt_ids=None if prompt is None else pack_ids(prompt),
        response_ids=None if response is None else pack_ids(response),
        logprobs=None if lp is None else pack_logprobs(lp),
        **fields,
    )


def llm(
    name: str,
    prompt: Sequence[int] | None,
    response: Sequence[int] | None,
    *,
    parent: str | None = None,
    start: float = 100,
    end: float = 200,
    seq: int = 1,
    wv: int = 1,
    failed: bool = False,
    attrs: dict[str, Any] | None = None,
    **fields: Any,
) -> Span:
    """LLM(id, parent, start, end, P, R, wv)."""
    if response and "policy_versions" not in fields:
        fields["policy_versions"] = [VersionRun(wv, 0, len(response))]
    call = model_call(prompt, response, **fields)
    return span(name, parent, start, end, seq=seq, call=call, failed=failed, label="chat", attrs=attrs)


def rew(
    value: float | None,
    target: str | None = None,
    *,
    rid: str = "rw-1",
    rollout: str = "ro-1",
    attempt: str | None = "at-1",
    created: float = 900,
    **fields: Any,
) -> Reward:
    """REW(value, target, dims); with a target it is a step reward."""
    fields.setdefault("scope", "final" if target is None else "step")
    return Reward(
        reward_id=rid,
        rollout_id=rollout,
        attempt_id=attempt,
        value=value,
        span_id=None if target is None else span_id(target),
        created_ns=at(created),
        **fields,
    )


def end(status: EndStatus = "succeeded", *, mode: Any = "identical", gamma: float = 1.0, **fields: Any) -> AttemptEnd:
    """END(status)."""
    fields.setdefault("final", True)
    context = fields.pop("context", AttemptContext(run_id="run", credit=Credit(mode, gamma)))
    return AttemptEnd(status=status, end_ns=at(1000), context=context, **fields)


def batch(
    *spans: Span,
    rollout: str = "ro-1",
    attempt: str = "at-1",
    producer: str = "p1",
    begin: bool = False,
    end: AttemptEnd | None = None,
) -> SpanBatch:
    """A batch of spans from one producer."""
    return SpanBatch(rollout, attempt, producer, 0, begin, list(spans), end)


@dataclass
class Bench:
    """An assembler with one partition, offsets counted for it, and time moved by hand."""

    policy: Policy = field(default_factory=Policy)
    now: int = NOW
    out: list[Output] = field(default_factory=list[Output])
    log: list[Message] = field(default_factory=list[Message])  # what was given
    spans: int = 0
    rewards: int = 0

    def __post_init__(self) -> None:
        self.assembler = Assembler(self.policy)
        self.assembler.assign(0, spans=0, rewards=0)

    def give(self, *records: SpanBatch | Reward) -> list[Output]:
        """Adds records in order; returns what they led to."""
        new: list[Output] = []
        for record in records:
            self.log.append(self.message(record))
            new += self.assembler.add(self.log[-1], self.now)
        self.out += new
        return new

    def reread(self, *wanted: Output, lost: bool = False) -> list[Output]:
        """Gives everything again to the attempts that are wanted; returns what that led to."""
        rereads = [output for output in wanted if isinstance(output, Reread)]
        for message in [] if lost else self.log:
            self.assembler.restore(message)
        new = [o for reread in rereads for o in self.assembler.restored(reread, self.now, lost=lost)]
        self.out += new
        return new

    def restart(self) -> list[Output]:
        """Another assembler, which knows what was emitted and reads everything again."""
        assemblies = {o.assembly.attempt_id: o.assembly for o in self.out if isinstance(o, Emitted)}
        self.assembler = Assembler(self.policy)
        self.assembler.assign(0, spans=0, rewards=0, assemblies=assemblies.values())
        new = [o for message in self.log for o in self.assembler.add(message, self.now)]
        self.out += new
        return new

    def message(self, record: SpanBatch | Reward) -> Message:
        """A record at the next offset of its topic."""
        if isinstance(record, SpanBatch):
            self.spans += 1
            return Message("spans", 0, self.spans - 1, record)
        self.rewards += 1
        return Message("rewards", 0, self.rewards - 1, record)

    def wait(self, seconds: float) -> list[Output]:
        """Moves time on and ticks."""
        self.now += int(seconds * S)
        new = self.assembler.tick(self.now)
        self.out += new
        return new

    def trajectories(self) -> list[Trajectory]:
        """Every revision emitted so far."""
        return [o.trajectory for o in self.out if isinstance(o, Emitted)]

    def last(self, attempt: str = "at-1") -> Trajectory:
        """The last revision of an attempt."""
        return [t for t in self.trajectories() if t.attempt_id == attempt][-1]

    def committable(self) -> dict[str, int]:
        """Next offsets that may be committed."""
        return {str(k): v for k, v in self.assembler.partitions[0].committable().items()}


def renamed(record: SpanBatch, attempt: str) -> SpanBatch:
    """The same batch for another attempt."""
    return replace(record, attempt_id=attempt)
