import asyncio
import contextlib
import json
import threading
from collections.abc import Iterator
from typing import Any

import pytest
from opentelemetry import trace
from opentelemetry.context import Context
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import SpanLimits, TracerProvider
from opentelemetry.trace import Link, SpanContext, SpanKind, Status, StatusCode

from spanloop.producers import context, emit_message, operation, record, tracer
from spanloop.producers.context import LocalAmbient, Scope
from spanloop.producers.recording import Recorded
from spanloop.schemas.packed import pack_ids, pack_logprobs
from spanloop.schemas.records import Span, SpanBatch, VersionRun
from spanloop.schemas.serde import encode_body


@pytest.fixture
def otel() -> Iterator[trace.Tracer]:
    """A tracer of a provider of its own; the process goes back to our own ambient behind it."""
    limits = SpanLimits(max_span_attributes=128, max_links=128)
    provider = tracer.install(TracerProvider(span_limits=limits, resource=Resource({"service.name": "tests"})))
    context.use_ambient(tracer.OtelAmbient())
    yield provider.get_tracer("instrumentation", "1.2")
    context.use_ambient(LocalAmbient())


def test_a_span_becomes_our_record(otel: trace.Tracer) -> None:
    linked = SpanContext(1, 2, False)
    with (
        record("ro-1", "at-1") as seen,
        otel.start_as_current_span(
            "chat",
            kind=SpanKind.CLIENT,
            attributes={"gen_ai.operation.name": "chat", "n": (1, 2)},
            links=[Link(linked)],
        ) as span,
    ):
        span.add_event("token", {"i": 1}, timestamp=5)
        span.set_status(Status(StatusCode.ERROR, "boo"))
    (got,) = seen.spans
    assert (got.name, got.kind, got.status, got.status_message) == ("chat", "client", "error", "boo")
    assert (got.scope_name, got.scope_version) == ("instrumentation", "1.2")
    assert json.loads(got.attributes) == {"gen_ai.operation.name": "chat", "n": [1, 2]}
    assert json.loads(got.events) == [{"name": "token", "time_ns": 5, "attributes": {"i": 1}}]
    assert json.loads(got.links) == [{"trace_id": "0" * 31 + "1", "span_id": "0" * 15 + "2"}]
    assert json.loads(got.resource)["service.name"] == "tests"
    assert got.end_ns is not None
    assert got.end_ns >= got.start_ns


def test_200_attributes_and_200_links_are_kept_or_counted(otel: trace.Tracer) -> None:  # PS-10
    links = [Link(SpanContext(1, i + 1, False)) for i in range(200)]
    with record() as seen, otel.start_as_current_span("s", links=links) as span:
        for i in range(200):
            span.set_attribute(f"k{i}", i)
    (got,) = seen.spans
    assert got.dropped_attributes + len(json.loads(got.attributes)) == 200
    assert got.dropped_links + len(json.loads(got.links)) == 200


def test_a_model_call_is_known_by_its_attributes_whatever_its_name(otel: trace.Tracer) -> None:  # TR-11
    with record() as seen:
        for attributes in (
            {"prompt_ids": [1, 2], "response_ids": [3], "logprobs": [-0.5], "spanloop.policy_version": 4},
            {"prompt_token_ids": "[1, 2]", "response_token_ids": "[[3]]", "gen_ai.request.model": "m"},
            {"gen_ai.prompt": "[]"},
            {"prompt_ids": "none", "response_ids": [3]},
            {"gen_ai.operation.name": "chat"},
        ):
            with otel.start_as_current_span("chat_model.llm", attributes=attributes):
                pass
    first, second, empty, wrong, plain = (s.call for s in seen.spans)
    assert first is not None
    assert (first.prompt_ids, first.response_ids) == (pack_ids([1, 2]), pack_ids([3]))
    assert (first.policy, first.policy_versions) == ("policy", [VersionRun(4, 0, 1)])
    assert first.logprobs == pack_logprobs([-0.5])
    assert second is not None
    assert (second.prompt_ids, second.response_ids, second.policy) == (pack_ids([1, 2]), pack_ids([3]), "m")
    for call in (empty, wrong):
        assert call is not None
        assert (call.prompt_ids, call.policy, call.flags) == (None, None, ["no_token_ids"])
    assert plain is None


def test_three_runs_in_a_row_are_three_roots(otel: trace.Tracer) -> None:  # TR-3
    async def run(n: int) -> Recorded:
        with record(f"ro-{n}") as seen, otel.start_as_current_span(f"run{n}"):
            await asyncio.sleep(0)
        return seen

    async def main() -> list[Recorded]:
        return [await run(n) for n in range(3)]

    runs = asyncio.run(main())
    assert [[(s.name, s.parent_span_id) for s in seen.spans] for seen in runs] == [
        [(f"run{n}", None)] for n in range(3)
    ]
    assert len({seen.spans[0].trace_id for seen in runs}) == 3


@pytest.mark.usefixtures("otel")
def test_entering_the_tracer_twice_gives_one_record() -> None:  # TR-10
    provider = TracerProvider()
    assert tracer.install(provider) is tracer.install(provider)
    scope = Scope("ro-1", "at-1", "p", seen := Recorded("ro-1", "at-1"))
    with context.attempt(scope), context.attempt(scope), provider.get_tracer("t").start_as_current_span("once"):
        pass
    assert [s.name for s in seen.spans] == ["once"]


def test_spans_of_both_kinds_nest_in_each_other(otel: trace.Tracer) -> None:
    scope = Scope("ro-1", "at-" + "c" * 32, "p", seen := Recorded("ro-1", "at-1"), root_id="a" * 16)
    with context.attempt(scope), operation("ours"), otel.start_as_current_span("theirs"):
        emit_message("deep")
    by_name = {s.name: s for s in seen.spans}
    assert by_name["spanloop.message"].parent_span_id == by_name["theirs"].span_id
    assert by_name["theirs"].parent_span_id == by_name["ours"].span_id
    assert by_name["ours"].parent_span_id == "a" * 16
    assert {s.trace_id for s in seen.spans} == {"c" * 32}


def test_concurrent_rollouts_never_mix(otel: trace.Tracer) -> None:
    good: dict[int, bool] = {}

    def work(n: int) -> None:
        with record(f"ro-{n}") as seen:
            for i in range(30):
                with otel.start_as_current_span(f"{n}/{i}"):
                    pass
        good[n] = [s.name for s in seen.spans] == [f"{n}/{i}" for i in range(30)]

    threads = [threading.Thread(target=work, args=(n,)) for n in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert good == dict.fromkeys(range(8), True)


def test_a_span_of_a_bare_thread_is_known_by_its_trace(otel: trace.Tracer) -> None:
    with record() as seen, otel.start_as_current_span("parent") as parent:

        def work() -> None:
            otel.start_span("child", trace.set_span_in_context(parent, Context())).end()

        thread = threading.Thread(target=work)
        thread.start()
        thread.join()
    assert [s.name for s in seen.spans] == ["child", "parent"]


def test_a_span_of_no_rollout_is_left_alone(otel: trace.Tracer) -> None:
    with record() as seen:
        pass
    with otel.start_as_current_span("foreign"):
        pass
    assert seen.spans == []


def test_a_span_that_ends_after_its_rollout_still_belongs_to_it(otel: trace.Tracer) -> None:
    with record("ro-1") as first:
        late = otel.start_span("late")
    with record("ro-2") as second:
        late.end()
    assert [(s.name, s.end_ns is None) for s in first.spans] == [("late", True), ("late", False)]
    assert second.spans == []


def encodable(seen: Recorded) -> list[Span]:
    """The spans, once a record of them has been written."""
    assert len(encode_body(SpanBatch("ro-1", "at-1", "p", spans=seen.spans))) < 16 << 20
    return seen.spans


def test_times_names_and_texts_of_any_kind_make_a_span_that_can_be_sent(otel: trace.Tracer) -> None:
    anyhow: Any = otel
    most = 2**63 - 1
    with record() as seen:
        anyhow.start_span("a", start_time=5.5).end(end_time=9.25)
        anyhow.start_span("b", start_time=2**64).end(end_time=float("inf"))
        anyhow.start_span("c", start_time=float("-inf")).end(end_time=2**64)
        anyhow.start_span("d", start_time=7).end(end_time="then")
        anyhow.start_span(123, kind="client").end()
        anyhow.start_span(None).end()
        anyhow.start_span("x" * (20 << 20)).end()
        anyhow.start_span("\ud83d", attributes={"gen_ai.prompt": "\ud83d" + "x" * (20 << 20)}).end()
        anyhow.start_span("v", attributes={"prompt_ids": [1], "spanloop.policy_version": 2**70}).end()
        anyhow.start_span("deep", attributes={"prompt_ids": "[" * 3000, "response_ids": "[3]"}).end()
    spans = encodable(seen)
    assert [(s.start_ns, s.end_ns) for s in spans[:4]] == [(5, 9), (most, most), (-most - 1, most), (7, 7)]
    assert [s.name for s in spans[4:6]] == ["123", ""]
    assert spans[6].name.endswith("x… (20971520 bytes, cut)")
    assert spans[7].name == "\ufffd"
    assert spans[7].call is not None
    assert spans[7].call.request.startswith("\ufffdxxx")
    assert [s.name for s in spans[8:]] == ["v", "deep"]


def test_an_exception_without_end_keeps_its_span(otel: trace.Tracer) -> None:
    with record() as seen, contextlib.suppress(ValueError), otel.start_as_current_span("chat"):
        raise ValueError("x" * (20 << 20))
    (span,) = encodable(seen)
    assert (span.status, len(span.status_message) <= 64 << 10) == ("error", True)


def test_a_span_that_cannot_be_taken_in_does_not_break_what_it_measures(
    otel: trace.Tracer, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(*_: object) -> None:
        raise RuntimeError("a bug")

    monkeypatch.setattr(tracer, "call_of", fail)
    with record() as seen:
        otel.start_span("chat").end()
    assert seen.spans == []
    assert "a span cannot be taken in" in caplog.text


def test_spans_still_open_at_the_end_are_handed_over_without_one(otel: trace.Tracer) -> None:
    scope = Scope("ro-1", "at-" + "c" * 32, "p", seen := Recorded("ro-1", "at-1"), root_id="a" * 16)
    with context.attempt(scope):
        forgotten = otel.start_span("forgotten")
        with trace.use_span(forgotten):
            emit_message("child")
        with operation("running"):
            scope.hand_over()
        forgotten.end()
        scope.hand_over()
    assert [(s.name, s.end_ns is None) for s in seen.spans] == [
        ("spanloop.message", False),
        ("forgotten", True),
        ("running", True),
        ("running", False),
        ("forgotten", False),
    ]
    assert [s.sequence for s in seen.spans] == list(range(5))
    assert len({s.span_id for s in seen.spans}) == 3
