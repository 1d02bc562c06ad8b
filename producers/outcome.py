"""How an attempt ended, as pure functions: an exception or an order becomes an end marker."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, cast

from ..schemas import semconv
from ..schemas.context import context_of
from ..schemas.records import Assignment, AttemptEnd, Span, SpanBatch, Task
from ..schemas.retry import CLASS_OF, is_final
from ..schemas.serde import encode_body
from ..schemas.spans import EndStatus, FailureClass
from . import attributes as attrs
from .context import Scope
from .emit import exception_attributes, make_span, number, text_of, type_of

if TYPE_CHECKING:
    from opentelemetry.sdk.trace import ReadableSpan

CONTEXT_OVERFLOW = "context_overflow"
ENGINE = "engine"
PROCESS = "process_died"
# What an engine or a provider says about a prompt that is too long, by one of these statuses; without the quotation
# marks and apostrophes in it, which JSON may escape.
OVERFLOW_STATUSES = frozenset({400, 413, 422})
_OVERFLOW = re.compile(
    "|".join((
        CONTEXT_OVERFLOW,  # our gateway
        "maximum context length",  # vLLM, SGLang, OpenAI, Mistral
        "context length is only",  # vLLM
        "longer than the maximum model length",  # vLLM
        "too long to fit into the model",  # vLLM
        r"longer than the model.{1,8}context length",  # SGLang
        "exceeds the maximum allowed length",  # SGLang
        "context_length_exceeded",  # OpenAI's code
        "exceed the configured limit",  # OpenAI
        "prompt is too long",  # Anthropic
        r"exceed[^\"]{0,40}context[ _](?:length|window|size|limit)",  # llama.cpp, Anthropic, OpenAI
        "exceeds the maximum number of tokens",  # Gemini
        r"inputs\W{1,4}(?:must have less than|tokens \+)",  # TGI
    )),
    re.IGNORECASE,
)  # fmt: skip
# Client errors that mean no answer came at all; by name, so that no client library is needed here.
_NO_ANSWER = ("APIConnectionError", "APITimeoutError", "ConnectError", "ReadError", "RemoteProtocolError",
              "ReadTimeout", "ConnectTimeout", "WriteError", "PoolTimeout")  # fmt: skip
_REASON_CHARS = 500
_REASON_BYTES = 4 << 10
_SERVER_ERROR = 500


@dataclass(frozen=True, slots=True)
class Outcome:
    """How an attempt ended. `reward`: what the agent returned; `facts`, `message`: what it raised. Picklable."""

    status: EndStatus
    reward: float | None = None
    reason: str | None = None
    error_type: str | None = None
    failure_class: FailureClass | None = None
    facts: dict[str, object] = field(default_factory=dict[str, object])  # OpenTelemetry's attributes of an exception
    message: str = ""


def of_result(result: object) -> Outcome:
    """What the agent returned: None, or a number as the final reward. Raises TypeError for anything else."""
    return Outcome("succeeded", None if result is None else number(result, "what the agent returned"))


def of_error(error: BaseException, gateway_url: str) -> Outcome:
    """What the agent raised: the agent's own failure, unless the gateway or an engine behind it failed."""
    facts, message = exception_attributes(error), text_of(error)
    if any(_is_overflow(e) for e in _chain(error)):
        return Outcome("failed", None, CONTEXT_OVERFLOW, CONTEXT_OVERFLOW, "agent", facts, message)
    kind = type_of(error)
    reason = f"{kind}: {message}"[:_REASON_CHARS]
    if any(_is_engine(e, gateway_url) for e in _chain(error)):
        return Outcome("failed", None, reason, ENGINE, "infra", facts, message)
    return Outcome("failed", None, reason, kind, "agent", facts, message)


def tells_overflow(text: str) -> bool:
    """Whether a refusal's text says that the prompt did not fit into the model's context."""
    return _OVERFLOW.search(text) is not None


def of_crash(how: str, *, begun: bool) -> Outcome:
    """The process that the agent ran in is gone; where the agent had not begun, the attempt is handed back."""
    if not begun:
        return of_order("returned", f"the agent's process {how} before the agent began")
    return Outcome("failed", None, f"the agent's process {how} in the middle of the attempt", PROCESS, "infra")


def judge(scope: Scope, result: object, error: BaseException | None, gateway_url: str) -> Outcome:
    """How an agent that is done has ended; spans it returned go to its attempt. Never raises."""
    try:
        if error is None:
            if isinstance(result, (list, tuple)):
                take_spans(scope, cast("Iterable[object]", result))
                result = None
            return of_result(result)
    except BaseException as wrong:  # noqa: BLE001 - what an agent returns is its code too, and may raise anything
        error = wrong
    try:
        return of_error(error, gateway_url)
    except BaseException:  # noqa: BLE001 - as are the properties of what it raises
        kind, message = type_of(error), text_of(error)
        return Outcome("failed", None, f"{kind}: {message}"[:_REASON_CHARS], kind, "agent", message=message)


def take_spans(scope: Scope, spans: Iterable[object]) -> None:
    """Puts spans of ours or of OpenTelemetry's into an attempt.

    Raises TypeError for anything else, InvalidRecord for a span of ours whose fields hold what they cannot.
    """
    for span in spans:
        if isinstance(span, Span):
            encode_body(SpanBatch(scope.rollout_id, scope.attempt_id, scope.producer_id, spans=[span]))
            scope.sink.span(replace(span, sequence=scope.sequence()))
        elif hasattr(span, "get_span_context"):
            from .tracer import convert

            scope.sink.span(convert(cast("ReadableSpan", span), scope))
        else:
            raise TypeError(f"an agent returns a number, None or spans; got a list with a {type(span).__name__}")


def root_span(scope: Scope, name: str, outcome: Outcome, start_ns: int, end_ns: int) -> Span:
    """The span of the whole attempt; carries what the agent raised."""
    facts: dict[str, object] = {semconv.KIND: "rollout", **outcome.facts}
    return make_span(
        scope,
        name,
        facts,
        start_ns=start_ns,
        end_ns=end_ns,
        span_id=scope.root_id,
        status="ok" if outcome.status == "succeeded" else "error",
        message=outcome.message or outcome.reason or "",
    )


def of_order(status: EndStatus, reason: str) -> Outcome:
    """An end that the agent did not choose: timeout, cancelled, returned."""
    return Outcome(status, None, reason, status, CLASS_OF[status])


def end_marker(assignment: Assignment, task: Task, outcome: Outcome, worker_id: str, now_ns: int) -> AttemptEnd:
    """The end marker; its counts are filled in by the spool."""
    error_type = None if outcome.error_type is None else attrs.text_of(outcome.error_type, _REASON_BYTES)
    return AttemptEnd(
        status=outcome.status,
        end_ns=now_ns,
        reason=None if outcome.reason is None else attrs.text_of(outcome.reason, _REASON_BYTES),
        error_type=error_type,
        failure_class=outcome.failure_class,
        context=context_of(task, pins=assignment.pins, attempt_number=assignment.attempt_number, worker_id=worker_id),
        final=is_final(
            task,
            assignment.attempt_number,
            outcome.status,
            failure_class=outcome.failure_class,
            error_type=error_type,
        ),
    )


def _chain(error: BaseException | None) -> Iterator[BaseException]:
    """An exception and what led to it; agents wrap what their client raised."""
    seen: set[int] = set()
    while error is not None and id(error) not in seen:
        seen.add(id(error))
        yield error
        error = error.__cause__ or (None if error.__suppress_context__ else error.__context__)


def _http_status(error: BaseException) -> int | None:
    found = getattr(error, "status_code", None) or getattr(getattr(error, "response", None), "status_code", None)
    return found if isinstance(found, int) else None


def _is_overflow(error: BaseException) -> bool:
    return _http_status(error) in OVERFLOW_STATUSES and tells_overflow(text_of(error))


def _is_engine(error: BaseException, gateway_url: str) -> bool:
    if not _url(error).startswith(gateway_url.rstrip("/")):
        return False
    status = _http_status(error)
    return status >= _SERVER_ERROR if status is not None else type(error).__name__ in _NO_ANSWER


def _url(error: BaseException) -> str:
    """Where a client error's request went; looked up past properties, which raise where there was no request."""
    for holder in (error, getattr(error, "response", None)):
        fields = cast("dict[str, object]", getattr(holder, "__dict__", {}))
        request = fields.get("request") or fields.get("_request")
        if request is not None:
            return str(getattr(request, "url", ""))
    return ""
