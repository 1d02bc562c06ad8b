"""Rollouts a second through one worker process whose agents do nothing but emit ten spans, on the embedded broker.

Here sits a stand-in for the controller that gives out the next assignment when an end marker comes back.
"""

from __future__ import annotations

import json
import os
import resource
import signal
import subprocess
import sys
import time
from pathlib import Path

from spanloop.infra import admin
from spanloop.infra.embedded_broker import EmbeddedBroker
from spanloop.infra.embedded_registry import EmbeddedRegistry
from spanloop.infra.kafka import Reader, partitions
from spanloop.infra.producer import Producer
from spanloop.infra.registry import Registry
from spanloop.infra.settings import Settings
from spanloop.schemas import ids
from spanloop.schemas.records import Assignment, SpanBatch, Task, Worker
from spanloop.schemas.serde import Decoder
from spanloop.schemas.topics import SPANS, TOPICS, WORKERS

ROLLOUTS = 4000
SLOTS = 8
PREFETCH = 24  # what a controller would give ahead, so that its answers cost the worker no time
AGENT = f"{Path(__file__).parent / 'noop_agent.py'}:noop"
PATIENCE_S = 120.0


def assignment(worker_id: str) -> Assignment:
    task = Task(rollout_id=ids.rollout_id(), run_id="bench", mode="val")
    return Assignment(worker_id, ids.attempt_id(), task=task, at_ns=time.time_ns())


def first_beat(reader: Reader, decoder: Decoder) -> Worker:
    deadline = time.monotonic() + PATIENCE_S
    while time.monotonic() < deadline:
        for m in reader.poll(10, 0.05):
            if m.topic == WORKERS.name and m.value is not None:
                return decoder.decode(Worker, m.value)
    raise TimeoutError("the worker did not say that it is there")


def drive(reader: Reader, decoder: Decoder, producer: Producer, worker_id: str) -> tuple[float, int]:
    """(seconds, spans) for ROLLOUTS attempts with SLOTS + PREFETCH of them out at a time."""
    started, given, ended, spans = time.monotonic(), 0, 0, 0
    while given < SLOTS + PREFETCH:
        producer.send(assignment(worker_id))
        given += 1
    while ended < ROLLOUTS:
        for m in reader.poll(500, 0.01):
            if m.topic != SPANS.name or m.value is None:
                continue
            batch = decoder.decode(SpanBatch, m.value)
            spans += len(batch.spans)
            if batch.end is not None:
                ended += 1
                if given < ROLLOUTS:
                    producer.send(assignment(worker_id))
                    given += 1
        if time.monotonic() - started > PATIENCE_S:
            raise TimeoutError(f"{ended} of {ROLLOUTS} attempts ended within {PATIENCE_S:g} s")
    return time.monotonic() - started, spans


def main() -> dict[str, float]:
    with EmbeddedBroker() as broker, EmbeddedRegistry() as twin:
        settings = Settings(profile="embedded", bootstrap=broker.bootstrap, registry_url=twin.url, prefix="bench")
        for topic in TOPICS.values():
            broker.create(topic.full(settings.prefix), partitions(settings, topic))
        admin.init(settings)
        registry, producer, reader = Registry(twin.url), Producer(settings, "bench"), Reader(settings, "bench")
        decoder = Decoder(registry)
        reader.assign_topics([SPANS, WORKERS])
        command = [sys.executable, "-m", "spanloop.producers.worker", AGENT, "--slots", str(SLOTS)]
        worker = subprocess.Popen(
            [*command, "--prefetch", str(PREFETCH)],
            env={**os.environ, **settings.environment()},
            stderr=subprocess.DEVNULL,
        )
        try:
            took, spans = drive(reader, decoder, producer, first_beat(reader, decoder).worker_id)
        finally:
            worker.send_signal(signal.SIGTERM)
            worker.wait(10)
            reader.close()
            producer.close()
            registry.close()
        used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return {
        "rollouts_per_s": ROLLOUTS / took,
        "spans_per_s": spans / took,
        "worker_cpu_ms_per_rollout": (used.ru_utime + used.ru_stime) * 1e3 / ROLLOUTS,
    }


if __name__ == "__main__":
    sys.stdout.write(json.dumps({"figures": main()}) + "\n")
