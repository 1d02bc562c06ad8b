"""Spans a second that one core assembles: the pure core with decoding, and through a broker; and how fast one ends.

A real Kafka is used where Java and its jars are there; else the embedded broker, which keeps 5 MiB a partition.
"""

from __future__ import annotations

import gc
import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import ExitStack, closing
from dataclasses import replace
from operator import attrgetter, methodcaller
from pathlib import Path
from tempfile import TemporaryDirectory
from uuid import uuid4

from confluent_kafka import ConsumerGroupState
from processor_time import cpu_s

from spanloop.infra import admin
from spanloop.infra.embedded_broker import EmbeddedBroker
from spanloop.infra.embedded_registry import EmbeddedRegistry
from spanloop.infra.kafka import Reader, partitions
from spanloop.infra.kafka import admin as admin_client
from spanloop.infra.producer import Producer
from spanloop.infra.real_kafka import RealKafka, missing
from spanloop.infra.settings import Settings
from spanloop.schemas import ids, packed
from spanloop.schemas.records import AttemptEnd, ModelCall, Span, SpanBatch, VersionRun
from spanloop.schemas.serde import Decoder, Encoder, LocalSchemas, local_ids
from spanloop.schemas.topics import TOPICS, TRAJECTORIES
from spanloop.streams.assembler import Assembler
from spanloop.streams.assembler_service import AssemblerService
from spanloop.streams.messages import Message

ATTRIBUTES = json.dumps({"gen_ai.system": "openai", **{f"attribute.{i}": f"value {i}" for i in range(11)}})
PER_ATTEMPT = 10
CORE_SPANS = 20_000
BROKER_SPANS = {1: 10_000, 10: 60_000, 100: 60_000}
EMBEDDED_SPANS = {1: 5_000, 10: 10_000, 100: 10_000}
LATENCIES = 200


def attempt(spans: int, per_record: int) -> Iterator[SpanBatch]:
    """An attempt's records; every fifth span is a model call that goes on from the one before."""
    rollout, name = ids.rollout_id(), ids.attempt_id()
    root = ids.span_id()
    history: list[int] = list(range(100))
    made: list[Span] = []
    for i in range(spans):
        call = None
        if i % 5 == 4:
            response = [i] * 20
            call = ModelCall(
                request='{"messages": []}',
                response="{}",
                prompt_ids=packed.pack_ids(history),
                response_ids=packed.pack_ids(response),
                logprobs=packed.pack_logprobs([-0.5] * 20),
                policy="policy",
                policy_versions=[VersionRun(1, 0, 20)],
            )
            history = [*history, *response, 9]
        span_id, parent = (root, None) if i == 0 else (ids.span_id(), root)
        made.append(
            Span(ids.trace_id(), span_id, "step", i, parent, "", i, end_ns=i + 1, attributes=ATTRIBUTES, call=call)
        )
    for at in range(0, spans, per_record):
        last = at + per_record >= spans
        end = AttemptEnd("succeeded", spans, span_count=spans) if last else None
        yield SpanBatch(rollout, name, "p", at, at == 0, made[at : at + per_record], end)


def log(spans: int, per_record: int) -> list[SpanBatch]:
    """Records of attempts of ten spans, or of one record where records are larger."""
    size = max(PER_ATTEMPT, per_record)
    return [b for _ in range(spans // size) for b in attempt(size, per_record)]


def core_rate(per_record: int) -> float:
    """Spans a second of decoding and assembling, by CPU time."""
    encoder, decoder = Encoder(local_ids()), Decoder(LocalSchemas())
    values = [encoder.encode(b) for b in log(CORE_SPANS, per_record)]
    assembler = Assembler()
    assembler.assign(0, spans=0, rewards=0)
    gc.collect()
    gc.freeze()  # the log is the bench's, not the assembler's, for the garbage collector to look through
    start = time.process_time()
    for offset, value in enumerate(values):
        assembler.add(Message("spans", 0, offset, decoder.decode(SpanBatch, value)), offset)
    return CORE_SPANS / (time.process_time() - start)


def wait_until(condition: Callable[[], bool], limit_s: float = 120.0) -> None:
    end = time.monotonic() + limit_s
    while not condition():
        if time.monotonic() > end:
            raise TimeoutError("the assembler did not get there")
        time.sleep(0.005)


class Live:
    """An assembler on a fresh prefix, in a thread of this process."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.producer = Producer(settings, "bench")
        self.service = AssemblerService(settings)
        self.stop = threading.Event()
        self.thread = threading.Thread(target=self.service.run, args=(self.stop,))
        self.expected = 0

    def __enter__(self) -> Live:
        self.thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop.set()
        self.thread.join()
        self.producer.close()

    def ready(self) -> bool:
        app = self.service.app
        return app is not None and len(app.held) == self.settings.partitions and app.is_ready

    def emitted(self) -> int:
        app = self.service.app
        return 0 if app is None or app.shell is None else app.shell.core.counts["emitted"]

    def send(self, batches: list[SpanBatch]) -> None:
        for b in batches:
            self.expected += b.end is not None
            self.producer.send(b)

    def done(self) -> bool:
        return self.emitted() >= self.expected


def live_rate(settings: Settings, spans: int, per_record: int) -> float:
    """Spans a second through Faust, from the first record written to the last trajectory."""
    batches = log(spans, per_record)
    with Live(settings) as live:
        wait_until(live.ready)
        start = time.perf_counter()
        live.send(batches)
        wait_until(live.done)
        return spans / (time.perf_counter() - start)


def members(settings: Settings) -> int:
    """Members of the assemblers' group once it is stable, else 0."""
    group = f"{settings.prefix}-assembler"
    client = admin_client(settings)  # kept until it has answered: else the future never ends
    asked: dict[str, Future[object]] = methodcaller("describe_consumer_groups", [group])(client)
    state, who = attrgetter("state", "members")(asked[group].result(30))
    return len(who) if state == ConsumerGroupState.STABLE else 0


def scaled(settings: Settings, workers: int, spans: int, per_record: int) -> tuple[float, float]:
    """Spans a second, and spans a second of the assemblers' CPU, with some assemblers in processes of their own."""
    command = [sys.executable, "-m", "faust", "-A", "spanloop.streams.app", "worker", "--without-web", "-l", "error"]
    quiet = subprocess.DEVNULL  # Faust greets
    started = [
        subprocess.Popen(command, env={**os.environ, **settings.environment()}, stdout=quiet) for _ in range(workers)
    ]
    producer, reader = Producer(settings, "bench"), Reader(settings, "bench")
    reader.assign_topics([TRAJECTORIES])
    try:
        wait_until(lambda: members(settings) == workers)
        warm, batches = log(200 * per_record, per_record), log(spans, per_record)
        out: list[float] = []
        for some in (warm, batches):
            ended = sum(b.end is not None for b in some)
            before, cpu, start = sum(reader.ends().values()), cpu_s(*(p.pid for p in started)), time.perf_counter()
            for b in some:
                producer.send(b)
            wait_until(lambda n=before + ended: sum(reader.ends().values()) >= n)
            out = [spans / (time.perf_counter() - start), spans / max(cpu_s(*(p.pid for p in started)) - cpu, 0.01)]
        return out[0], out[1]
    finally:
        for process in started:
            process.terminate()
        for process in started:
            process.wait()
        reader.close()
        producer.close()


def catch_up_rate(settings: Settings, spans: int, per_record: int) -> float:
    """Spans a second of a start behind a log, from the assignment on."""
    live = Live(settings)
    live.send(log(spans, per_record))
    live.producer.flush()
    with live:
        wait_until(lambda: live.emitted() > 0)
        before, start = live.emitted(), time.perf_counter()
        wait_until(live.done)
        return (live.expected - before) * (spans / live.expected) / (time.perf_counter() - start)


def faust_noop_rate(settings: Settings, records: int) -> float:
    """Records a second of CPU that Faust's own streams hand to an app which does nothing with them."""
    with closing(Producer(settings, "bench")) as producer:
        for b in log(records, 1):
            producer.send(b)
    command = [sys.executable, str(Path(__file__).with_name("faust_noop.py")), str(records)]
    done = subprocess.run(
        command, env={**os.environ, **settings.environment()}, capture_output=True, text=True, check=True
    )
    return json.loads(done.stdout.splitlines()[-1])["records_per_cpu_s"]


def latencies_ms(settings: Settings) -> list[float]:
    """Milliseconds from an acknowledged end marker to its trajectory at a reader, one attempt at a time."""
    out: list[float] = []
    with Live(settings) as live:
        wait_until(live.ready)
        reader = Reader(settings, "bench")
        reader.assign_topics([TRAJECTORIES])
        for _ in range(LATENCIES):
            (whole,) = attempt(PER_ATTEMPT, PER_ATTEMPT)
            live.producer.send_wait(replace(whole, end=None))
            live.producer.send_wait(replace(whole, begin=False, spans=[]))
            start = time.perf_counter()
            while not reader.poll(1, 1.0):
                pass
            out.append((time.perf_counter() - start) * 1000)
        reader.close()
    return sorted(out)


def fresh(
    bootstrap: str, registry: str, profile: str, home: Path, create: Callable[[str, int], object] | None
) -> Settings:
    settings = Settings(
        profile="embedded" if profile == "embedded" else "remote",
        bootstrap=bootstrap,
        registry_url=registry,
        prefix=f"b{uuid4().hex[:8]}",
        home=home,
    )
    if create is not None:
        for topic in TOPICS.values():
            create(topic.full(settings.prefix), partitions(settings, topic))
    admin.init(settings)
    return settings


def main() -> dict[str, float]:
    figures = {f"core_spans_per_s_{n}_a_record": core_rate(n) for n in (1, 10, 100)}
    with ExitStack() as stack:
        home = Path(stack.enter_context(TemporaryDirectory()))
        if missing() or "--embedded" in sys.argv:
            broker, registry = stack.enter_context(EmbeddedBroker()), stack.enter_context(EmbeddedRegistry())
            make = lambda: fresh(broker.bootstrap, registry.url, "embedded", home, broker.create)  # noqa: E731
            sizes = EMBEDDED_SPANS
        else:
            kafka = stack.enter_context(RealKafka(home))
            make = lambda: fresh(kafka.bootstrap, kafka.registry_url, "remote", home, None)  # noqa: E731
            sizes = BROKER_SPANS
        for n, spans in sizes.items():
            figures[f"live_spans_per_s_{n}_a_record"] = live_rate(make(), spans, n)
        if sizes is BROKER_SPANS:
            for workers in (1, 2, 4):
                wall, cpu = scaled(make(), workers, sizes[10], 10)
                figures[f"live_spans_per_s_{workers}_assemblers"] = wall
                figures[f"live_spans_per_cpu_s_{workers}_assemblers"] = cpu
            figures["faust_noop_records_per_cpu_s"] = faust_noop_rate(make(), sizes[1])
        figures["catch_up_spans_per_s_10_a_record"] = catch_up_rate(make(), sizes[10], 10)
        found = latencies_ms(make())
        figures["end_to_trajectory_p50_ms"] = found[len(found) // 2]
        figures["end_to_trajectory_p99_ms"] = found[int(len(found) * 0.99)]
    return figures


if __name__ == "__main__":
    sys.stdout.write(json.dumps({"figures": main()}) + "\n")
