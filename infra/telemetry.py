"""spanloop's own metrics and traces by OpenTelemetry: off, and costing nothing, unless `otel_endpoint` is set.

meter = telemetry.meter(settings, "gateway")
meter.add("spanloop.gateway.calls", 1, policy="policy")
with meter.span("reload weights"): ...

Names and units come from `schemas.semconv.METRICS`; another name is a ValueError, whether on or off.
"""

from __future__ import annotations

import threading
from collections.abc import Generator
from contextlib import AbstractContextManager, contextmanager
from typing import TYPE_CHECKING, Any, Literal, Protocol

from ..schemas.errors import ConfigError
from ..schemas.semconv import METRICS
from .clock import Clock, SystemClock
from .settings import Settings

if TYPE_CHECKING:
    from opentelemetry.sdk.metrics.export import MetricReader
    from opentelemetry.sdk.trace import SpanProcessor

Kind = Literal["counter", "gauge", "histogram"]
EXPORTER = "opentelemetry-exporter-otlp-proto-http"
CLOSE_TIMEOUT_MS = 1000
TELL_EVERY_S = 1.0

# Everything else in METRICS is a counter.
GAUGES = frozenset(
    {
        "spanloop.read_lag",
        "spanloop.commit_lag",
        "spanloop.open_attempts",
        "spanloop.oldest_attempt",
        "spanloop.trainer.reward",
    }
)
HISTOGRAMS = frozenset(
    {
        "spanloop.lateness",
        "spanloop.sink.insert",
        "spanloop.gateway.duration",
        "spanloop.trainer.step",
        "spanloop.trainer.staleness",
    }
)


def kind_of(name: str) -> Kind:
    """How a metric is recorded. Raises ValueError for a name that is not in METRICS."""
    if name not in METRICS:
        raise ValueError(f"metric {name!r} is not in schemas.semconv.METRICS; add it there with its unit")
    return "gauge" if name in GAUGES else "histogram" if name in HISTOGRAMS else "counter"


class Meter(Protocol):
    """Where a part tells what it does. Labels are few and bounded: topic, policy, reason; never ids."""

    def add(self, name: str, amount: float = 1, **labels: str) -> None:
        """Counts, sets or observes: as its kind is, so that call sites need not know it."""
        ...

    def span(self, name: str) -> AbstractContextManager[None]:
        """Around one piece of work."""
        ...

    def close(self) -> None:
        """Sends what is left, in seconds at most."""
        ...


class _Off:
    def add(self, name: str, amount: float = 1, **labels: str) -> None:
        del amount, labels
        kind_of(name)

    @contextmanager
    def span(self, name: str) -> Generator[None]:
        del name
        yield

    def close(self) -> None:
        """Nothing is held."""


OFF: Meter = _Off()


class Counters:
    """Tells counters by what came since the last time, for parts that count for themselves. For one thread."""

    def __init__(self, meter: Meter, clock: Clock | None = None) -> None:
        self.meter = meter
        self._clock = clock or SystemClock()
        self._told: dict[tuple[str, tuple[tuple[str, str], ...]], float] = {}
        self._next_s = 0.0

    def due(self) -> bool:
        """True once a second, and never while telemetry is off."""
        if self.meter is OFF or (now_s := self._clock.steady_s()) < self._next_s:
            return False
        self._next_s = now_s + TELL_EVERY_S
        return True

    def tell(self, name: str, total: float, **labels: str) -> None:
        """`total` is what was counted from the start."""
        key = (name, tuple(sorted(labels.items())))
        if more := total - self._told.get(key, 0.0):
            self.meter.add(name, more, **labels)
            self._told[key] = total


class OtelMeter:
    """A Meter on an OpenTelemetry SDK of its own: the application's global providers are left alone."""

    def __init__(self, service: str, reader: MetricReader, processor: SpanProcessor | None = None) -> None:
        from opentelemetry.sdk.metrics import MeterProvider
        from opentelemetry.sdk.resources import Resource
        from opentelemetry.sdk.trace import TracerProvider

        resource = Resource.create({"service.name": f"spanloop-{service}"})
        self._metrics = MeterProvider([reader], resource=resource, shutdown_on_exit=False)
        self._traces = TracerProvider(resource=resource, shutdown_on_exit=False)
        if processor is not None:
            self._traces.add_span_processor(processor)
        self._meter = self._metrics.get_meter("spanloop")
        self._tracer = self._traces.get_tracer("spanloop")
        self._lock = threading.Lock()
        self._instruments: dict[str, Any] = {}

    def add(self, name: str, amount: float = 1, **labels: str) -> None:
        """See Meter."""
        instrument = self._instruments.get(name) or self._make(name)
        match kind_of(name):
            case "counter":
                instrument.add(amount, labels)
            case "gauge":
                instrument.set(amount, labels)
            case "histogram":
                instrument.record(amount, labels)

    def _make(self, name: str) -> Any:
        kind = kind_of(name)
        with self._lock:
            if name not in self._instruments:
                make = getattr(self._meter, f"create_{kind}")
                self._instruments[name] = make(name, unit=METRICS[name])
            return self._instruments[name]

    @contextmanager
    def span(self, name: str) -> Generator[None]:
        """See Meter."""
        with self._tracer.start_as_current_span(name):
            yield

    def close(self) -> None:
        """See Meter."""
        self._metrics.shutdown(CLOSE_TIMEOUT_MS)
        self._traces.shutdown()


def meter(settings: Settings, service: str) -> Meter:
    """Where `service` (gateway, assembler, …) reports; one per process and part. Raises ConfigError."""
    if not settings.otel_endpoint:
        return OFF
    try:
        from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
    except ImportError as error:
        raise ConfigError(
            f"otel_endpoint is {settings.otel_endpoint!r}, but {EXPORTER} is not installed: pip install {EXPORTER}, "
            "or leave SPANLOOP_OTEL_ENDPOINT empty"
        ) from error
    from opentelemetry.sdk.metrics.export import PeriodicExportingMetricReader
    from opentelemetry.sdk.trace.export import BatchSpanProcessor

    base = settings.otel_endpoint.rstrip("/")
    reader = PeriodicExportingMetricReader(OTLPMetricExporter(f"{base}/v1/metrics"))
    return OtelMeter(service, reader, BatchSpanProcessor(OTLPSpanExporter(f"{base}/v1/traces")))
