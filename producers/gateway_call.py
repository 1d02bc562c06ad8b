"""From one exchange with an engine to the spans that record it: one span a choice, n of them sharing the prompt.

Token identity is (span, position); with n > 1 the first span's id goes into the answer's header.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace

from ..schemas import ids, semconv
from ..schemas.packed import pack_ids, pack_logprobs
from ..schemas.spans import LogprobMode, ModelCall, Sampling, Span, SpanStatus, Usage, VersionRun
from .attributes import clean
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
    may_be_sampled: bool = False  # an engine was reached that has not refused; a 5xx may come after the sampling
    http_status: int | None = None
    error: str | None = None  # None = answered
    overflow: bool = False  # refused because the prompt was too long
    answer: Answer = field(default_factory=Answer)

    def __post_init__(self) -> None:
        self.span_ids = [ids.span_id() for _ in range(self.prepared.choices)]

    def spans(self, end_ns: int, number: Callable[[], int], *, delivered: bool) -> list[Span]:
        """One span for each choice that came, at least one; `number` gives each its sequence."""
        came = sorted(self.answer.choices)[: len(self.span_ids)]
        choices = [self.answer.choices[index] for index in came] or [Choice(0, ids=None)]
        return [
            self._span(i, number(), self._call(choice, i == 0, delivered, answered=bool(came)), end_ns)
            for i, choice in enumerate(choices)
        ]

    def _span(self, position: int, sequence: int, call: ModelCall, end_ns: int) -> Span:
        status: SpanStatus = "ok" if self.error is None else "error"
        return Span(
            trace_id=self.origin.trace_id,
            span_id=self.span_ids[position],
            name=f"chat {self.prepared.model}".rstrip(),
            start_ns=self.start_ns,
            parent_span_id=self.origin.parent_span_id,
            trace_state=self.origin.trace_state,
            sequence=sequence,
            kind="client",
            scope_name=SCOPE,
            end_ns=end_ns,
            status=status,
            status_message=clean(self.error or ""),
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

    def _call(self, choice: Choice, first: bool, delivered: bool, *, answered: bool) -> ModelCall:
        p, engine, answer = self.prepared, self.engine, self.answer
        logprobs, nonfinite = choice.finite_logprobs()
        versions, mixed = self._versions(choice)
        flags = (
            ("context_overflow", self.overflow),
            ("mixed_version", mixed),
            ("nonfinite_logprobs", nonfinite > 0),
            ("no_token_ids", answered and choice.ids is None),
            ("empty", choice.ids is not None and not choice.ids),
            ("token_count_mismatch", answer.miscounts_response() or choice.miscounts_logprobs()),
            ("prompt_count_mismatch", answer.miscounts_prompt()),
        )
        policy = None if engine is None else engine.policy
        return ModelCall(
            request=p.recorded,
            response=dumps(answer.stored(choice)).decode() if answered else None,
            prompt_ids=None if answer.prompt_ids is None else pack_ids(answer.prompt_ids),
            response_ids=None if choice.ids is None else pack_ids(choice.ids),
            logprobs=None if logprobs is None else pack_logprobs(logprobs),
            policy=policy or (p.model if choice.versions else None),
            policy_versions=versions,
            model=p.model,
            engine=None if engine is None else engine.worker_id or engine.url,
            sampling=p.sampling if engine is None else _with_mode(p.sampling, engine.logprob_mode),
            finish_reason=choice.finish_reason,
            truncated=choice.finish_reason == "length",
            choice=choice.index,
            choices=p.choices,
            usage=answer.usage if first else Usage(),  # it counts all choices: once
            tries=self.tries,
            delivered=delivered,
            client_retry=self.client_retry,
            constrained=p.constrained,
            multimodal=p.multimodal,
            flags=[name for name, is_set in flags if is_set],
            nonfinite_logprobs=nonfinite,
        )

    def _versions(self, choice: Choice) -> tuple[list[VersionRun], bool]:
        """The engine's own account, or else its heartbeats': the version at the start, and whether it changed."""
        if choice.versions or not choice.ids or self.version_start is None:
            return choice.versions, False
        return [VersionRun(self.version_start, 0, len(choice.ids))], self.version_end not in (None, self.version_start)


def _with_mode(sampling: Sampling, mode: LogprobMode) -> Sampling:
    return sampling if mode == sampling.logprob_mode else replace(sampling, logprob_mode=mode)


def origin_of(rollout_id: str, attempt_id: str, traceparent: str, trace_state: str, *, known: bool = True) -> Origin:
    """Reads a W3C traceparent (`00-<trace>-<parent>-<flags>`); a malformed one is as good as none."""
    parts = traceparent.strip().split("-")
    if len(parts) >= 4 and _hex(parts[1], 32) and _hex(parts[2], 16):
        return Origin(rollout_id, attempt_id, parts[1], parts[2], trace_state, known)
    return Origin(rollout_id, attempt_id, ids.trace_of(attempt_id), known=known)


def _hex(text: str, length: int) -> bool:
    return len(text) == length and all(c in "0123456789abcdef" for c in text) and set(text) != {"0"}
