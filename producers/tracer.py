"""OpenTelemetry spans into attempts: whatever instrumentation a process has, its spans land in the attempt they ran in.

    span starts ─ whose context? parent? trace? baggage or resource? ─▶ Scope ─ span ends ─▶ its sink

Spans of ours and OpenTelemetry's nest in each other: once installed, OpenTelemetry's context holds the open span.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from contextvars import ContextVar
from dataclasses import replace
from typing import cast
from weakref import WeakSet

from opentelemetry import baggage, trace
from opentelemetry import context as otel
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import Event, ReadableSpan, SpanLimits, SpanProcessor, TracerProvider
from opentelemetry.sdk.trace import Span as OtelSpan
from opentelemetry.trace import INVALID_SPAN_CONTEXT, Link, NonRecordingSpan, SpanContext, TraceFlags

from ..schemas import ids, semconv
from ..schemas.model_attributes import call_of
from ..schemas.records import ModelCall, Span
from ..schemas.spans import SpanKind, SpanStatus
from . import attributes as attrs
from . import context
from .context import Scope
from .emit import MAX_MESSAGE_BYTES, MAX_NAME_BYTES

log = logging.getLogger(__name__)

MAX_NS = (1 << 63) - 1
MAX_CALL_BYTES = 3 << 20  # of a request or a response: with attributes and events they fit into the topic's 16 MiB
# Spans that were started and never ended; beyond it the oldest are forgotten.
MAX_OPEN = 100_000
KINDS: dict[trace.SpanKind, SpanKind] = {
    trace.SpanKind.INTERNAL: "internal",
    trace.SpanKind.SERVER: "server",
    trace.SpanKind.CLIENT: "client",
    trace.SpanKind.PRODUCER: "producer",
    trace.SpanKind.CONSUMER: "consumer",
}
STATUSES: dict[trace.StatusCode, SpanStatus] = {
    trace.StatusCode.UNSET: "unset",
    trace.StatusCode.OK: "ok",
    trace.StatusCode.ERROR: "error",
}


SAMPLED = TraceFlags(TraceFlags.SAMPLED)
_Own = tuple[otel.Context, Scope, str]  # a context we attached, for which span
_own: ContextVar[_Own | None] = ContextVar("spanloop_otel_span", default=None)


def install(provider: TracerProvider | None = None) -> TracerProvider:
    """Adds our processor to a provider, by default the global one, which is made if there is none. Once is enough."""
    provider = provider or _global_provider()
    if provider not in _installed:
        _installed.add(provider)
        provider.add_span_processor(_processor)
        context.use_ambient(_ambient)
    return provider


def _global_provider() -> TracerProvider:
    found = trace.get_tracer_provider()
    if isinstance(found, TracerProvider):
        return found
    limits = SpanLimits(
        max_span_attributes=attrs.MAX_ATTRIBUTES,
        max_links=attrs.MAX_ATTRIBUTES,
        max_events=attrs.MAX_ATTRIBUTES,
    )
    made = TracerProvider(span_limits=limits)
    trace.set_tracer_provider(made)
    return made


class OpenSpan:
    """A span of an attempt that has not ended; a `context.Unended`."""

    __slots__ = ("scope", "span")

    def __init__(self, span: OtelSpan, scope: Scope) -> None:
        self.span: OtelSpan | None = span
        self.scope = scope

    def so_far(self) -> Span | None:
        span, self.span = self.span, None  # what never ends is not kept for ever
        return None if span is None else _taken(span, self.scope)


class AttemptProcessor(SpanProcessor):
    """Gives each ended span to the attempt that it was started in; others are counted and left alone."""

    def __init__(self) -> None:
        self.foreign = 0  # ended spans of no attempt
        self._open: dict[int, OpenSpan] = {}

    def on_start(self, span: OtelSpan, parent_context: otel.Context | None = None) -> None:
        scope = context.active() or _by_identity(span, parent_context)
        if scope is not None:
            if len(self._open) >= MAX_OPEN:
                self._open.pop(next(iter(self._open)), None)
            span_id = span.get_span_context().span_id
            scope.unended[span_id] = self._open[span_id] = OpenSpan(span, scope)

    def on_end(self, span: ReadableSpan) -> None:
        span_id = (span.get_span_context() or INVALID_SPAN_CONTEXT).span_id
        found = self._open.pop(span_id, None)
        if found is None:
            self.foreign += 1
            return
        found.scope.unended.pop(span_id, None)
        if (taken := _taken(span, found.scope)) is not None:
            found.scope.sink.span(taken)

    def owner(self, span_id: int) -> Scope | None:
        """The attempt of an open span."""
        found = self._open.get(span_id)
        return None if found is None else found.scope


def _taken(span: ReadableSpan, scope: Scope) -> Span | None:
    """A span as our record; one that cannot be told is lost with a warning, since instrumented code must not fail."""
    try:
        return convert(span, scope)
    except Exception:
        log.exception("attempt %s: a span cannot be taken in", scope.attempt_id)
        return None


def _by_identity(span: OtelSpan, parent_context: otel.Context | None) -> Scope | None:
    parent = trace.get_current_span(parent_context).get_span_context()
    trace_id = trace.format_trace_id(span.get_span_context().trace_id)
    found = _processor.owner(parent.span_id) or context.of_trace(trace_id)
    if found is not None:
        return found
    named = baggage.get_baggage(semconv.ATTEMPT_ID, parent_context) or span.resource.attributes.get(semconv.ATTEMPT_ID)
    return context.of_trace(ids.trace_of(attrs.clean(named))) if isinstance(named, str) else None


class OtelAmbient:
    """Keeps the open span in OpenTelemetry's context, where instrumentation looks for its parent."""

    def current(self, scope: Scope) -> str | None:
        here, own = otel.get_current(), _own.get()
        if own is not None and own[0] is here:
            return own[2] if own[1] is scope else None
        found = trace.get_current_span(here).get_span_context()
        if not found.is_valid:
            return None
        mine = trace.format_trace_id(found.trace_id) == scope.trace_id or _processor.owner(found.span_id) is scope
        return trace.format_span_id(found.span_id) if mine else None

    def here(self) -> object:
        return otel.get_current(), _own.get()

    def enter(self, scope: Scope, span_id: str) -> object:
        before = self.here()
        parent = SpanContext(int(scope.trace_id, 16), int(span_id, 16), False, SAMPLED)
        here = trace.set_span_in_context(NonRecordingSpan(parent))
        otel.attach(here)
        _own.set((here, scope, span_id))
        return before

    def leave(self, token: object) -> None:
        # attach, not detach: a generator may be closed in another context than the one it was started in
        found, own = cast("tuple[otel.Context, _Own | None]", token)
        otel.attach(found)
        _own.set(own)


def convert(span: ReadableSpan, scope: Scope) -> Span:
    """An OpenTelemetry span as our record, numbered in its attempt's sequence."""
    own, at = span.get_span_context() or INVALID_SPAN_CONTEXT, span.instrumentation_scope
    start_ns = _ns(span.start_time, 0)
    attributes, over = attrs.encode(span.attributes)
    events, events_over = attrs.encode_list(_events(span.events))
    links, links_over = attrs.encode_list(_links(span.links))
    return Span(
        trace_id=trace.format_trace_id(own.trace_id),
        span_id=trace.format_span_id(own.span_id),
        name=_text(span.name),
        start_ns=start_ns,
        parent_span_id=trace.format_span_id(span.parent.span_id) if span.parent else None,
        trace_state=own.trace_state.to_header(),
        sequence=scope.sequence(),
        kind=KINDS.get(span.kind, "internal"),
        scope_name=_text(at.name if at else None),
        scope_version=_text(at.version if at else None),
        end_ns=None if span.end_time is None else _ns(span.end_time, start_ns),
        status=STATUSES.get(span.status.status_code, "unset"),
        status_message=_text(span.status.description, MAX_MESSAGE_BYTES),
        attributes=attributes,
        events=events,
        links=links,
        resource=_resources.text(span.resource),
        dropped_attributes=span.dropped_attributes + over,
        dropped_events=span.dropped_events + events_over,
        dropped_links=span.dropped_links + links_over,
        flags=int(own.trace_flags) & 0xFF,
        call=_call(span.attributes),
    )


def _text(value: object, limit: int = MAX_NAME_BYTES) -> str:
    return "" if value is None else attrs.text_of(value, limit)


def _ns(value: object, unreadable: int) -> int:
    """A time, which callers give as a float, too; what 64 bits do not hold, infinity included, is their limit."""
    number = cast("float", value)
    try:
        return max(-MAX_NS - 1, min(MAX_NS, int(number)))
    except OverflowError:
        return MAX_NS if number > 0 else -MAX_NS - 1
    except (ValueError, TypeError):
        return unreadable


def _call(attributes: Mapping[str, object] | None) -> ModelCall | None:
    """The call that a span is, with texts that a record can hold."""
    call = call_of(attributes)
    if call is None:
        return None
    return replace(
        call,
        request=_text(call.request, MAX_CALL_BYTES),
        response=None if call.response is None else _text(call.response, MAX_CALL_BYTES),
        policy=None if call.policy is None else _text(call.policy),
        model=_text(call.model),
    )


def _events(events: Iterable[Event]) -> Iterable[dict[str, object]]:
    return ({"name": e.name, "time_ns": e.timestamp, "attributes": e.attributes} for e in events)


def _links(links: Iterable[Link]) -> Iterable[dict[str, object]]:
    for link in links:
        yield {
            "trace_id": trace.format_trace_id(link.context.trace_id),
            "span_id": trace.format_span_id(link.context.span_id),
            "attributes": link.attributes,
        }


class _Resources:
    """The JSON of the resource last seen: a process nearly always has one."""

    def __init__(self) -> None:
        self._last: tuple[Resource | None, str] = (None, "{}")

    def text(self, resource: Resource) -> str:
        last = self._last
        if last[0] is not resource:
            last = self._last = (resource, attrs.encode(resource.attributes)[0])
        return last[1]


_processor = AttemptProcessor()
_ambient = OtelAmbient()
_resources = _Resources()
_installed: WeakSet[TracerProvider] = WeakSet()
