"""A controller for the worker's tests: gives out assignments, reads all that comes back."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Generator
from contextlib import contextmanager
from typing import Any, TypeVar

from in_thread import in_thread
from waiting import until

from spanloop.infra.kafka import Reader
from spanloop.infra.producer import Producer
from spanloop.infra.registry import Registry
from spanloop.infra.settings import Settings
from spanloop.producers import rollout
from spanloop.producers.worker import WorkerPolicy, WorkerService
from spanloop.schemas.records import Assignment, AttemptEnd, Limits, SpanBatch, Task, Worker
from spanloop.schemas.serde import Decoder
from spanloop.schemas.topics import DEAD_LETTERS, REWARDS, SPANS, TOPICS, WORKERS

T = TypeVar("T")


class Controller:
    """Stands in for the controller: gives out assignments, reads all that comes back."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.producer = Producer(settings, "controller")
        self._registry = Registry(settings.registry_url)
        self._decoder = Decoder(self._registry)
        self._reader = Reader(settings, "controller")
        self._reader.assign_topics([SPANS, REWARDS, WORKERS, DEAD_LETTERS])
        self.records: list[tuple[int, object]] = []  # (timestamp in ms, record)

    def give(self, worker: WorkerService | str, n: int, task_input: object = None, **changes: Any) -> None:
        worker_id = worker if isinstance(worker, str) else worker.worker_id
        task = Task(f"ro-{n}", "run-1", input=json.dumps(task_input), limits=changes.pop("limits", Limits()))
        given: dict[str, Any] = {"epoch": 1, "task": task, "at_ns": time.time_ns(), **changes}
        self.producer.send_wait(Assignment(worker_id, f"at-{n}", **given))

    def read(self) -> None:
        for m in self._reader.poll(500, 0.02):
            assert m.value is not None
            self.records.append((m.timestamp_ms, self._decoder.decode_topic(TOPICS[m.topic], m.value)))

    def all(self, kind: type[T]) -> list[T]:
        self.read()
        return [record for _, record in self.records if isinstance(record, kind)]

    def wait(self, found: Callable[[], T | None]) -> T:
        until(lambda: found() is not None)
        out = found()
        assert out is not None
        return out

    def end(self, n: int) -> AttemptEnd:
        return self.wait(
            lambda: next((b.end for b in self.all(SpanBatch) if b.attempt_id == f"at-{n}" and b.end), None)
        )

    def beat(self, good: Callable[[Worker], bool]) -> Worker:
        return self.wait(lambda: next((w for w in self.all(Worker) if good(w)), None))

    def ready(self) -> None:
        until(lambda: self.all(Worker))

    def close(self) -> None:
        self._reader.close()
        self._registry.close()
        self.producer.close()


@contextmanager
def running(settings: Settings, agent: Any, **options: Any) -> Generator[WorkerService]:
    """A worker in a thread; what it raises is raised here."""
    clock = options.pop("clock", None)
    policy = WorkerPolicy(trace=False, **options)
    worker = WorkerService(settings, agent if isinstance(agent, str) else rollout(agent), policy, clock=clock)
    with in_thread(worker, within_s=60):
        yield worker
