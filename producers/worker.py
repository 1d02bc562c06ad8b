"""The worker: reads its assignments, runs an agent on them, says in heartbeats what it holds.

    assignments ─▶ Claims (whether) ─▶ Attempts (run) ─▶ Spool ─▶ spans, rewards
    workers     ◀─ heartbeats, from a thread of their own

python -m spanloop.producers.worker package.module:agent --slots 8
"""

from __future__ import annotations

import argparse
import logging
import socket
import sys
import threading
from collections.abc import Sequence
from importlib.metadata import version

from confluent_kafka import OFFSET_BEGINNING, OFFSET_END

from ..infra import process
from ..infra.clock import Clock, SystemClock
from ..infra.kafka import Message, Reader
from ..infra.producer import Producer
from ..infra.quarantine import Quarantine
from ..infra.registry import Registry
from ..infra.settings import Settings
from ..schemas import ids
from ..schemas.errors import BackPressure, DeliveryFailed
from ..schemas.records import Assignment, Resource, Worker
from ..schemas.serde import Decoder
from ..schemas.topics import ASSIGNMENTS, RESOURCES, partition_of
from . import keys
from .agent import Agent, resolve
from .attempts import Attempts, Links
from .claims import Claims
from .resources import Resources
from .spool import Spool
from .taking import Taking

log = logging.getLogger(__name__)

BEAT_S = 1.0
MIN_BEAT_S = 0.1  # changes closer together than this share a heartbeat
POLL_S = 0.02
FINISH_S = 1.5  # what agents get to finish in when the worker is told to stop
FLUSH_S = 2.0
PLACEHOLDER_KEY = "spanloop"  # without a secret only the URL binds a call to its attempt


class WorkerService:
    """Runs an agent for a pool, `slots` attempts at once."""

    def __init__(
        self,
        settings: Settings,
        agent: Agent,
        *,
        slots: int = 1,
        prefetch: int | None = None,
        name: str = "",
        labels: Sequence[str] = (),
        trace: bool = True,
        clock: Clock | None = None,
    ) -> None:
        """`prefetch`: assignments held ready for a free slot (null = as many as the slots get done while the controller
        answers); `labels`: what tasks may require; `trace`: take in the process's OpenTelemetry spans as well.
        """
        self.worker_id = ids.worker_id()
        self._settings = settings
        self._agent = agent
        self._slots = slots
        self._prefetch = prefetch
        self._name = name or f"{socket.gethostname()}-{agent.name}"
        self._labels = list(labels)
        self._trace = trace
        self._clock = clock or SystemClock()
        self._claims = Claims(self.worker_id)
        self._resources = Resources()
        self._position = (ASSIGNMENTS.name, partition_of(self.worker_id, settings.partitions))
        self._last_offset = -1
        self._changed = threading.Event()
        self._leaving = False
        self.refused = 0

    def run(self, stop: threading.Event) -> None:
        """Works until `stop` is set, then ends or hands back what it holds and leaves, within five seconds."""
        if self._trace:
            from .tracer import install

            install()
        producer = Producer(self._settings, f"worker-{self._name}")
        spool = Spool(
            producer,
            producer_id=self.worker_id,
            max_block_s=self._settings.max_block_s,
            max_pending=self._settings.queue_records,
        )
        attempts = Attempts(
            self._agent,
            spool,
            self._resources,
            Links(self._settings.gateway_url, self._key),
            slots=self._slots,
            clock=self._clock,
            changed=self._changed.set,
        )
        registry = Registry(self._settings.registry_url)
        reader = Reader(self._settings, f"worker-{self.worker_id}")
        gone = threading.Event()
        beats = threading.Thread(target=self._beat, args=(producer, attempts, gone), name="heartbeats", daemon=True)
        try:
            taking = Taking(Decoder(registry), Quarantine(producer, "worker", self._settings.dlq_limit), stop)
            self._work(reader, taking, attempts, beats, stop)
        finally:
            self._leave(producer, spool, attempts, beats, gone)
            reader.close()
            registry.close()

    def _work(
        self, reader: Reader, taking: Taking, attempts: Attempts, beats: threading.Thread, stop: threading.Event
    ) -> None:
        # The end is taken before the first heartbeat: nothing can be assigned to this worker before it.
        reader.assign({self._position: OFFSET_END, (RESOURCES.name, 0): OFFSET_BEGINNING})
        ends = reader.ends()
        while not stop.is_set() and not reader.reached(ends):
            for message in reader.poll(1000, POLL_S):
                self._take(message, taking, attempts)
        self._claims.caught_up_s = self._clock.steady_s()
        beats.start()
        while not stop.is_set():
            asked_s = self._clock.steady_s()
            messages = reader.poll(500, POLL_S)
            for message in messages:
                self._take(message, taking, attempts)
            if not messages:
                self._claims.caught_up_s = asked_s
            attempts.tick()

    def _take(self, message: Message, taking: Taking, attempts: Attempts) -> None:
        record = taking.record(message)
        if isinstance(record, Resource):
            self._resources.put(record)
        elif isinstance(record, Assignment):
            self._assign(record, attempts)
            self._last_offset = message.offset  # after: a heartbeat with this offset names what was accepted at it

    def _assign(self, assignment: Assignment, attempts: Attempts) -> None:
        now_ns, steady_s = self._clock.now_ns(), self._clock.steady_s()
        decision = self._claims.decide(assignment, now_ns=now_ns, steady_s=steady_s)
        if decision == "run" and assignment.task is not None:
            attempts.accept(assignment, assignment.task, self._claims.age_s(assignment, now_ns, steady_s))
        elif decision == "cancel":
            attempts.cancel(assignment.attempt_id, "cancelled by the controller")
        elif decision != "ignore":
            self.refused += 1
            log.info("attempt %s refused: %s", assignment.attempt_id, decision)
            self._changed.set()

    def _key(self, rollout_id: str, attempt_id: str) -> str:
        secret = self._settings.secret
        return keys.mint(secret, rollout_id, attempt_id) if secret else PLACEHOLDER_KEY

    # --- heartbeats

    def _beat(self, producer: Producer, attempts: Attempts, gone: threading.Event) -> None:
        while not gone.is_set():
            self._changed.clear()
            self._say(producer, attempts)
            gone.wait(MIN_BEAT_S)
            self._changed.wait(BEAT_S - MIN_BEAT_S)

    def _say(self, producer: Producer, attempts: Attempts, *, alive: bool = True) -> None:
        offset = self._last_offset  # before `named`: what was read up to it is in there, or has ended
        ahead = attempts.ahead() if self._prefetch is None else self._prefetch
        beat = Worker(
            worker_id=self.worker_id,
            name=self._name,
            role="worker",
            slots=0 if self._leaving else self._slots + ahead,
            running=attempts.named(),
            last_assignment_offset=offset,
            labels=self._labels,
            versions={"spanloop": version("spanloop"), "python": sys.version.split()[0]},
            host=socket.gethostname(),
            beat_ns=self._clock.now_ns(),
            alive=alive,
        )
        try:
            producer.send(beat)
        except BackPressure as error:
            log.warning("a heartbeat is skipped: %s", error)

    def _leave(
        self, producer: Producer, spool: Spool, attempts: Attempts, beats: threading.Thread, gone: threading.Event
    ) -> None:
        self._leaving = True
        self._changed.set()
        attempts.drop_waiting("the worker is stopping")
        deadline = self._clock.steady_s() + FINISH_S
        while not attempts.idle() and self._clock.steady_s() < deadline:
            gone.wait(0.02)
        attempts.hand_back("the worker is stopping")
        spool.close(FLUSH_S)
        attempts.close(0.2)
        gone.set()
        self._changed.set()
        if beats.is_alive():
            beats.join(1.0)
        self._say(producer, attempts, alive=False)
        try:
            producer.close(1.0)
        except DeliveryFailed as error:
            log.warning("the goodbye may be lost: %s", error)


def main(argv: Sequence[str] | None = None) -> None:
    """Runs a worker as a process of its own until SIGTERM or SIGINT."""
    parser = argparse.ArgumentParser(prog="python -m spanloop.producers.worker", description=main.__doc__)
    parser.add_argument("agent", help="package.module:name or path/to/file.py:name")
    parser.add_argument("--slots", type=int, default=1, help="attempts at once")
    parser.add_argument("--prefetch", type=int, help="assignments held ready; default: by how long they take")
    parser.add_argument("--name", default="", help="stable label")
    parser.add_argument("--label", action="append", default=[], help="what tasks may require; repeatable")
    options = parser.parse_args(argv)
    process.main(
        lambda: WorkerService(
            Settings(),
            resolve(options.agent),
            slots=options.slots,
            prefetch=options.prefetch,
            name=options.name,
            labels=options.label,
        )
    )


if __name__ == "__main__":
    main()
