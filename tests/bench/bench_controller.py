"""How many events the controller takes and how many rollouts it gives out: its core alone, then the whole service.

The service runs on the embedded broker, so that the figure is the controller's and not a disk's.
"""

from __future__ import annotations

import json
import sys
import tempfile
import threading
import time
from pathlib import Path

from spanloop.infra import admin
from spanloop.infra.embedded_broker import EmbeddedBroker
from spanloop.infra.embedded_registry import EmbeddedRegistry
from spanloop.infra.kafka import Reader, partitions
from spanloop.infra.producer import Producer
from spanloop.infra.registry import Registry
from spanloop.infra.settings import Settings
from spanloop.schemas.records import Assignment, Attempt, Task, Worker
from spanloop.schemas.serde import Decoder
from spanloop.schemas.topics import ASSIGNMENTS, TOPICS
from spanloop.streams.controller import ControllerState, Event, Tick, step
from spanloop.streams.controller_shell import ControllerService

QUEUED = 10_000
SLOTS = 200
BATCH = 1000
SERVED = 4000
SINGLE = 50


def core() -> dict[str, float]:
    """QUEUED rollouts in four runs, from task to final, SLOTS at once."""
    state, now = ControllerState(), 1_760_000_000_000_000_000
    events: list[Event] = [Worker("wo-1", slots=SLOTS)]
    events += [
        Task(f"ro-{i}", f"run-{i % 4}", mode="val", group_id=f"gr-{i // 8}", sample=i % 8, group_size=8)
        for i in range(QUEUED)
    ]
    taken = given = 0
    start = time.process_time()
    while events:
        batch, events = events[:BATCH], events[BATCH:]
        for event in (*batch, Tick()):
            for record in step(state, event, now):
                if isinstance(record, Assignment) and record.task is not None:
                    given += 1
                    name, attempt = record.task.rollout_id, record.attempt_id
                    events.append(Attempt(name, attempt, "running"))
                    events.append(Attempt(name, attempt, "ended", outcome="succeeded", final=True))
        taken += len(batch)
    took = time.process_time() - start
    assert given == QUEUED == len(state.finished)
    return {"core_events_per_cpu_s": taken / took, "core_rollouts_per_cpu_s": given / took}


def service(settings: Settings) -> dict[str, float]:
    """SERVED tasks at once, then SINGLE ones one after another."""
    stop = threading.Event()
    thread = threading.Thread(target=ControllerService(settings).run, args=(stop,))
    thread.start()
    producer, reader = Producer(settings, "bench"), Reader(settings, "bench")
    decoder = Decoder(Registry(settings.registry_url))
    reader.assign_topics([ASSIGNMENTS])
    producer.send_wait(Worker("wo-1", slots=1_000_000, beat_ns=time.time_ns()))

    def give(first: int, count: int) -> float:
        start, left = time.perf_counter(), count
        for i in range(first, first + count):
            producer.send(Task(f"ro-{i}", "run", mode="val"))
        while left:
            for message in reader.poll(1 if count == 1 else 1000, 0.05):
                assert message.value is not None
                decoder.decode_topic(TOPICS["assignments"], message.value)
                left -= 1
        return time.perf_counter() - start

    give(0, 1)
    bulk = give(1, SERVED)
    single = sorted(give(1 + SERVED + i, 1) for i in range(SINGLE))
    stop.set()
    thread.join()
    producer.close()
    reader.close()
    return {"service_dispatches_per_s": SERVED / bulk, "task_to_assignment_p50_ms": single[SINGLE // 2] * 1e3}


def main() -> None:
    with EmbeddedBroker() as broker, EmbeddedRegistry() as registry, tempfile.TemporaryDirectory() as home:
        settings = Settings(
            profile="embedded", bootstrap=broker.bootstrap, registry_url=registry.url, prefix="bench", home=Path(home)
        )
        for topic in TOPICS.values():
            broker.create(topic.full(settings.prefix), partitions(settings, topic))
        admin.init(settings)
        figures = core() | service(settings)
    sys.stdout.write("\n" + json.dumps({"figures": figures}) + "\n")


if __name__ == "__main__":
    main()
