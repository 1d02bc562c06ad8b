"""From one exchange with an engine to the spans that record it: one span a choice, n of them sharing the prompt.

Token identity is (span, position); with n > 1 the first span's id goes into the answer's header.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field, replace

from ..schemas import ids, semconv
from ..schemas.packed import pack_ids, pack_logprobs
from ..schemas.spans import ModelCall, Span, SpanStatus, Usage, VersionRun
from .gateway_answer import Answer, Choice
from .gateway_engines import Engine
from .gateway_json import Object, dumps
from .gateway_request import Prepared

SCOPE = "spanloop.gateway"


@dataclass(frozen=True, slots=True)
class Origin:
    """Whose call it is, and where it hangs in the attempt's tree."""

    rollout_id: str
    attempt_id: str
    trace_id: str
    parent_span_id: str | None = None
    trace_state: str = ""
    known: bool = True  # false: not a live attempt, kept out of every rollout


@dataclass(slots=True)
class Exchange:
    """One call as far as it has come; becomes spans at any point."""

    origin: Origin
    prepared: Prepared
    start_ns: int
    client_retry: bool = False
    span_ids: list[str] = field(default_factory=list[str])
    engine: Engine | None = None
    version_start: int | None = None  # policy version of the engine's heartbeat when the call began
    version_end: int | None = None
    tries: int = 0
    http_status: int | None = None
    error: str | None = None  # None = answered
    overflow: bool = False  # refused because the prompt was too long
    answer: Answer = field(default_factory=Answer)

    def __post_init__(self) -> None:
        self.span_ids = [ids.span_id() for _ in range(self.prepared.choices)]

    def spans(self, end_ns: int, *, delivered: bool) -> list[Span]:
        """One span for each choice that came, at least one; sequences are still to be given."""
        came = sorted(self.answer.choices)[: len(self.span_ids)]
        if not came:
            return [self._span(0, self._call(None, first=True, delivered=delivered), end_ns)]
        return [
            self._span(i, self._call(self.answer.choices[index], first=i == 0, delivered=delivered), end_ns)
            for i, index in enumerate(came)
        ]

    def _span(self, position: int, call: ModelCall, end_ns: int) -> Span:
        status: SpanStatus = "ok" if self.error is None else "error"
        return Span(
            trace_id=self.origin.trace_id,
            span_id=self.span_ids[position],
            name=f"chat {self.prepared.model}".rstrip(),
            start_ns=self.start_ns,
            parent_span_id=self.origin.parent_span_id,
            trace_state=self.origin.trace_state,
            kind="client",
            scope_name=SCOPE,
            end_ns=end_ns,
            status=status,
            status_message=self.error or "",
            attributes=dumps(self._attributes(call)).decode(),
            call=call,
        )

    def _attributes(self, call: ModelCall) -> Object:
        found: Object = {
            semconv.GEN_AI_OPERATION: "chat",
            semconv.GEN_AI_REQUEST_MODEL: self.prepared.model,
            semconv.GEN_AI_RESPONSE_MODEL: self.answer.head.get("model"),
            semconv.GEN_AI_RESPONSE_ID: self.answer.head.get("id"),
            semconv.GEN_AI_FINISH_REASONS: None if call.finish_reason is None else [call.finish_reason],
            semconv.GEN_AI_INPUT_TOKENS: call.usage.input,
            semconv.GEN_AI_OUTPUT_TOKENS: call.usage.output,
            semconv.HTTP_STATUS: self.http_status,
            semconv.ROLLOUT_ID: self.origin.rollout_id,
            semconv.ATTEMPT_ID: self.origin.attempt_id,
            semconv.POLICY: call.policy,
            semconv.POLICY_VERSION: call.policy_versions[-1].version if call.policy_versions else self.version_start,
        }
        return {name: value for name, value in found.items() if value is not None}

    def _call(self, choice: Choice | None, *, first: bool, delivered: bool) -> ModelCall:
        p = self.prepared
        mode = "unknown" if self.engine is None else self.engine.logprob_mode
        base = ModelCall(
            request=p.recorded,
            prompt_ids=None if self.answer.prompt_ids is None else pack_ids(self.answer.prompt_ids),
            model=p.model,
            engine=None if self.engine is None else self.engine.worker_id or self.engine.url,
            sampling=replace(p.sampling, logprob_mode=mode),
            choices=p.choices,
            usage=self.answer.usage if first else Usage(),  # it counts all choices: once
            tries=self.tries,
            delivered=delivered,
            client_retry=self.client_retry,
            constrained=p.constrained,
            multimodal=p.multimodal,
            flags=["context_overflow"] if self.overflow else [],
            policy=None if self.engine is None else self.engine.policy,
        )
        return base if choice is None else self._answered(base, choice)

    def _answered(self, base: ModelCall, choice: Choice) -> ModelCall:
        logprobs = choice.padded_logprobs()
        nonfinite = sum(x != x for x in logprobs or ())
        versions, mixed = self._versions(choice)
        flags = {
            "mixed_version": mixed,
            "nonfinite_logprobs": nonfinite > 0,
            "no_token_ids": choice.ids is None,
            "empty": choice.ids == [],
        }
        return replace(
            base,
            response=dumps(self.answer.stored(choice.index)).decode(),
            response_ids=None if choice.ids is None else pack_ids(choice.ids),
            logprobs=None if logprobs is None else pack_logprobs(logprobs),
            policy=base.policy or (base.model if choice.versions else None),
            policy_versions=versions,
            finish_reason=choice.finish_reason,
            truncated=choice.finish_reason == "length",
            choice=choice.index,
            flags=[*base.flags, *(name for name, is_set in flags.items() if is_set)],
            nonfinite_logprobs=nonfinite,
        )

    def _versions(self, choice: Choice) -> tuple[list[VersionRun], bool]:
        """The engine's own account, or else its heartbeats': the version at the start, and whether it changed."""
        if choice.versions or not choice.ids or self.version_start is None:
            return choice.versions, False
        return [VersionRun(self.version_start, 0, len(choice.ids))], self.version_start != self.version_end


def trace_of(attempt_id: str) -> str:
    """The trace that an attempt's spans share where no caller names one; the same from every producer."""
    tail = attempt_id.removeprefix("at-")
    if len(tail) == 32 and all(c in "0123456789abcdef" for c in tail):
        return tail
    return hashlib.sha256(attempt_id.encode()).hexdigest()[:32]


def origin_of(rollout_id: str, attempt_id: str, traceparent: str, trace_state: str, *, known: bool = True) -> Origin:
    """Reads a W3C traceparent (`00-<trace>-<parent>-<flags>`); a malformed one is as good as none."""
    parts = traceparent.strip().split("-")
    if len(parts) >= 4 and _hex(parts[1], 32) and _hex(parts[2], 16):
        return Origin(rollout_id, attempt_id, parts[1], parts[2], trace_state, known)
    return Origin(rollout_id, attempt_id, trace_of(attempt_id), known=known)


def _hex(text: str, length: int) -> bool:
    return len(text) == length and all(c in "0123456789abcdef" for c in text) and set(text) != {"0"}
