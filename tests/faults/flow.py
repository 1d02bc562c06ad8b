"""A steady stream of rollouts into the loop, and what has become of them."""

from __future__ import annotations

import json
import threading
import time

from spanloop.infra.kafka import Reader
from spanloop.infra.producer import Producer
from spanloop.infra.registry import Registry
from spanloop.infra.settings import Settings
from spanloop.infra.taking import Taking
from spanloop.schemas import ids
from spanloop.schemas.errors import SpanloopError, Unavailable
from spanloop.schemas.records import Batch, Decision, Limits, Rollout, SpanBatch, Task
from spanloop.schemas.serde import Decoder
from spanloop.schemas.topics import BATCHES, DECISIONS, ROLLOUTS, SPANS, Record

from .seen import Fed

RUN = "faults"
GROUP_SIZE = 4
# Tasks not yet done that the feeder keeps in front of the controller.
AHEAD = 120
REWARDS = 7
LIMITS = Limits(max_attempts=6, timeout_s=100.0, unresponsive_s=9.0, claim_s=6.0)
RETRY_S = 0.5
POLL_S = 0.2


class Flow:
    """Sends groups of tasks at a bounded rate, as many as were asked for; each is sent until it is acknowledged."""

    def __init__(self, settings: Settings, fed: Fed, *, rate: float) -> None:
        """`rate`: rollouts a second at most."""
        self._fed = fed
        self._settings = settings
        self._pause_s = GROUP_SIZE / rate
        self._lock = threading.Condition()
        self._wanted = 0  # groups
        self._sent = 0
        self._number = 0
        self._stop = threading.Event()
        self._producers = [Producer(settings, f"feeder-{i}") for i in range(2)]
        self.twice = False  # two producers send every task
        self.sent_twice: list[str] = []  # rollouts of these tasks
        self.watch = Watch(settings)
        self._thread = threading.Thread(target=self._run, name="feeder", daemon=True)
        self._thread.start()

    def ask(self, groups: int) -> None:
        """So many groups more."""
        with self._lock:
            self._wanted += groups

    @property
    def left(self) -> int:
        """Groups that were asked for and not sent."""
        return self._wanted - self._sent

    def done(self) -> int:
        """Rollouts of this flow that ended. Raises what stopped its watch."""
        self.watch.check()
        return len(self._fed.tasks.keys() & self.watch.finished)

    def missing(self) -> list[str]:
        """What was fed and has not ended, or was not trained and decided, or was not yet fed. Raises as `done` does."""
        watch = self.watch
        watch.check()
        # lists: the feeder goes on meanwhile
        rollouts = [r for r in list(self._fed.tasks) if r not in watch.finished]
        groups = [g for g in list(self._fed.groups) if g not in watch.trained or g not in watch.decided]
        return [*([f"{self.left} groups yet to be sent"] if self.left else []), *rollouts, *groups]

    def close(self) -> None:
        """Stops sending."""
        self._stop.set()
        self._thread.join(30.0)
        for producer in self._producers:
            producer.close(5.0)
        self.watch.close()

    def _run(self) -> None:
        while not self._stop.wait(self._pause_s):
            if self.left and len(self._fed.tasks) - self.done() < AHEAD:
                self._send_group()

    def _send_group(self) -> None:
        group_id = f"gr-{ids.rollout_id()}"
        tasks = [self._task(group_id, sample) for sample in range(GROUP_SIZE)]
        for task in tasks:
            twice = self.twice
            for producer in self._producers[: 2 if twice else 1]:
                self._send(producer, task)
            if twice:
                self.sent_twice.append(task.rollout_id)
        with self._lock:
            self._fed.tasks |= {t.rollout_id: float(json.loads(t.input)["reward"]) for t in tasks}
            self._fed.groups[group_id] = [t.rollout_id for t in tasks]
            self._sent += 1

    def _send(self, producer: Producer, task: Task) -> None:
        while not self._stop.is_set():
            try:
                producer.send_wait(task)
            except SpanloopError:  # the broker is away: the same task again, which changes nothing if it is there
                self._stop.wait(RETRY_S)
            else:
                return

    def _task(self, group_id: str, sample: int) -> Task:
        self._number += 1
        given = {"n": self._number, "reward": self._number % REWARDS / REWARDS}
        return Task(
            ids.rollout_id(), RUN, group_id=group_id, sample=sample, group_size=GROUP_SIZE, input=json.dumps(given),
            limits=LIMITS, created_ns=time.time_ns(),
        )  # fmt: skip


class Watch:
    """Which rollouts and attempts have ended, which groups are in a batch and which are decided on, by the log."""

    def __init__(self, settings: Settings) -> None:
        self.finished: set[str] = set()
        self.ends: dict[str, str] = {}  # attempt -> status of its first end marker
        self.trained: set[str] = set()
        self.decided: set[str] = set()
        self.failure: SpanloopError | None = None  # why it watches no more
        self._registry = Registry(settings.registry_url)
        self._reader = Reader(settings, "faults-watch")
        self._reader.assign_topics([ROLLOUTS, BATCHES, DECISIONS, SPANS])
        self._stop = threading.Event()
        self._taking = Taking(Decoder(self._registry), None, self._stop)  # poison is passed over
        self._thread = threading.Thread(target=self._run, name="watch", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Stops watching."""
        self._stop.set()
        self._thread.join(30.0)
        self._reader.close()
        self._registry.close()

    def check(self) -> None:
        """Raises what stopped it."""
        if self.failure is not None:
            raise self.failure

    def _run(self) -> None:
        while not self._stop.is_set():
            try:
                messages = self._reader.poll(1000, POLL_S)
            except Unavailable:  # the broker is away, on purpose
                self._stop.wait(POLL_S)
                continue
            except SpanloopError as error:
                self.failure = error
                return
            for m in messages:
                self._note(self._taking.record(m))

    def _note(self, record: Record | None) -> None:
        if isinstance(record, Rollout) and record.final:
            self.finished.add(record.rollout_id)
        elif isinstance(record, SpanBatch) and record.end is not None:
            self.ends.setdefault(record.attempt_id, record.end.status)
        elif isinstance(record, Batch):
            self.trained.update(record.groups)
        elif isinstance(record, Decision):
            self.decided.add(record.group_id)
