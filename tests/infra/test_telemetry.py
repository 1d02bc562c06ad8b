from __future__ import annotations

import sys
from typing import Any

import pytest
from fake_meter import FakeMeter
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from spanloop.infra import telemetry
from spanloop.infra.clock import ManualClock
from spanloop.infra.settings import Settings
from spanloop.schemas.errors import ConfigError
from spanloop.schemas.semconv import METRICS


def points(reader: InMemoryMetricReader) -> dict[str, tuple[str, Any, dict[str, Any]]]:
    """Metric name -> (unit, first value, its labels)."""
    data = reader.get_metrics_data()
    assert data is not None
    out: dict[str, tuple[str, Any, dict[str, Any]]] = {}
    for metric in data.resource_metrics[0].scope_metrics[0].metrics:
        point = next(iter(metric.data.data_points))
        value = getattr(point, "value", None)
        out[metric.name] = (metric.unit or "", getattr(point, "sum", value), dict(point.attributes or {}))
    return out


def test_nothing_is_recorded_unless_an_endpoint_is_set() -> None:
    meter = telemetry.meter(Settings(), "gateway")
    assert meter is telemetry.OFF
    meter.add("spanloop.records", 3, topic="spans")
    with meter.span("work"):
        pass
    meter.close()


def test_a_name_outside_the_closed_list_is_refused_on_or_off() -> None:
    with pytest.raises(ValueError, match=r"spanloop\.recrods.*semconv\.METRICS"):
        telemetry.OFF.add("spanloop.recrods")
    meter = telemetry.OtelMeter("test", InMemoryMetricReader())
    with pytest.raises(ValueError, match=r"spanloop\.recrods.*semconv\.METRICS"):
        meter.add("spanloop.recrods")
    meter.close()


def test_counters_add_gauges_keep_the_last_and_histograms_observe() -> None:
    reader = InMemoryMetricReader()
    meter = telemetry.OtelMeter("test", reader)
    for amount in (2, 3):
        meter.add("spanloop.records", amount, topic="spans")
        meter.add("spanloop.read_lag", amount, topic="spans")
        meter.add("spanloop.gateway.duration", amount)
    found = points(reader)
    assert found["spanloop.records"] == ("{record}", 5, {"topic": "spans"})
    assert found["spanloop.read_lag"] == ("{record}", 3, {"topic": "spans"})
    assert found["spanloop.gateway.duration"] == ("s", 5, {})
    meter.close()


def test_every_metric_of_the_list_can_be_recorded() -> None:
    reader = InMemoryMetricReader()
    meter = telemetry.OtelMeter("test", reader)
    for name in METRICS:
        meter.add(name, 1)
    assert {name: unit for name, (unit, _, _) in points(reader).items()} == METRICS
    assert METRICS.keys() >= telemetry.GAUGES | telemetry.HISTOGRAMS
    meter.close()


def test_spans_carry_the_part_that_wrote_them() -> None:
    exporter = InMemorySpanExporter()
    meter = telemetry.OtelMeter("loader", InMemoryMetricReader(), SimpleSpanProcessor(exporter))
    with meter.span("reload weights"):
        pass
    (span,) = exporter.get_finished_spans()
    assert span.name == "reload weights"
    assert span.resource.attributes["service.name"] == "spanloop-loader"
    meter.close()


def test_a_missing_exporter_is_named_with_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "opentelemetry.exporter.otlp.proto.http.metric_exporter", None)
    with pytest.raises(ConfigError, match="pip install opentelemetry-exporter-otlp-proto-http"):
        telemetry.meter(Settings(otel_endpoint="http://127.0.0.1:4318"), "gateway")


def test_counters_are_told_by_what_came_since_once_a_second() -> None:
    clock, meter = ManualClock(), FakeMeter()
    counters = telemetry.Counters(meter, clock)
    assert [counters.due(), counters.due()] == [True, False]
    clock.advance(telemetry.TELL_EVERY_S)
    assert counters.due()
    for total in (3, 3, 5):
        counters.tell("spanloop.records", total, topic="spans")
    counters.tell("spanloop.records", 1, topic="rewards")
    assert meter.added == [
        ("spanloop.records", 3, {"topic": "spans"}),
        ("spanloop.records", 2, {"topic": "spans"}),
        ("spanloop.records", 1, {"topic": "rewards"}),
    ]
    assert not telemetry.Counters(telemetry.OFF, clock).due()
