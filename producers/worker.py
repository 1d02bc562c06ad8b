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
from dataclasses import dataclass
from typing import Literal, get_args

from confluent_kafka import OFFSET_BEGINNING, OFFSET_END

from ..infra import process, telemetry
from ..infra.clock import Clock, SystemClock
from ..infra.kafka import Message, Reader
from ..infra.producer import Producer
from ..infra.quarantine import Quarantine
from ..infra.registry import connect, wait_for_registry
from ..infra.settings import Settings
from ..infra.taking import Taking
from ..infra.telemetry import Counters
from ..schemas import ids
from ..schemas.errors import ConfigError, DeliveryFailed
from ..schemas.records import Assignment, Resource, Worker
from ..schemas.serde import Decoder
from ..schemas.topics import ASSIGNMENTS, RESOURCES, partition_of
from . import keys
from .agent import Agent, resolve, spec_of
from .attempts import Attempts
from .caught_up import CaughtUp
from .claims import Claims
from .heartbeats import Heartbeats
from .held import Links
from .resources import Resources
from .slots import Slots, local_slots
from .spool import Spool

log = logging.getLogger(__name__)

POLL_S = 0.02
# After the drain: to flush, to end agents and to say goodbye. With the drain's default all is over within five seconds.
FLUSH_S = 1.8
END_S = 0.3
GOODBYE_S = 0.3
PLACEHOLDER_KEY = "spanloop"  # without a secret only the URL binds a call to its attempt
STOPPING = "the worker is stopping"
Isolation = Literal["thread", "process"]


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerPolicy:
    """How a worker works."""

    slots: int = 1  # attempts at once
    prefetch: int | None = None  # assignments held ready; null = as many as get done while the controller answers
    name: str = ""  # a stable label; empty = host and agent
    labels: Sequence[str] = ()  # what tasks may require
    trace: bool = True  # take in OpenTelemetry's spans of the agents' processes as well
    isolation: Isolation = "thread"  # process: a crash, a leak or a hang costs one attempt and can be ended
    recycle: int = 0  # attempts after which a slot's process is replaced; 0 = never
    drain_s: float = 1.5  # what agents get to finish in when the worker is told to stop

    def __post_init__(self) -> None:
        """Raises ConfigError."""
        if self.slots < 1:
            raise ConfigError(f"slots is {self.slots}: a worker needs at least one")
        if self.isolation not in get_args(Isolation):
            raise ConfigError(f"isolation is {self.isolation!r}: expected thread or process")
        if self.recycle < 0 or (self.recycle and self.isolation == "thread"):
            raise ConfigError(f"recycle is {self.recycle}: expected 0, or a number of attempts with isolation process")
        if self.isolation == "process" and sys.platform == "win32":
            raise ConfigError("isolation process needs a POSIX system; on Windows run several workers instead")


class WorkerService:
    """Runs an agent for a pool."""

    def __init__(
        self,
        settings: Settings,
        agent: Agent | str,
        policy: WorkerPolicy | None = None,
        *,
        clock: Clock | None = None,
    ) -> None:
        """`agent`, or what names it ("package.module:name"); raises ConfigError where it cannot be run so."""
        policy = policy or WorkerPolicy()
        self.worker_id = ids.worker_id()
        self._settings = settings
        self._agent = resolve(agent) if isinstance(agent, str) and policy.isolation == "thread" else agent
        self._spec = (agent if isinstance(agent, str) else spec_of(agent)) if policy.isolation == "process" else ""
        self._policy = policy
        title = agent.rpartition(":")[2] if isinstance(agent, str) else agent.name
        self._name = policy.name or f"{socket.gethostname()}-{title}"
        self._clock = clock or SystemClock()
        self._claims = Claims(self.worker_id)
        self._resources = Resources()
        self._position = (ASSIGNMENTS.name, partition_of(self.worker_id, settings.partitions))
        self._last_offset = -1
        self._leaving = False
        self.refused = 0

    def run(self, stop: threading.Event) -> None:
        """Works until `stop` is set, lets agents finish for `drain_s`, hands back the rest and leaves.

        Raises DeliveryFailed once nothing can be sent any more.
        """
        if not wait_for_registry(self._settings, stop):
            return
        slots = self._slots()
        producer = Producer(self._settings, f"worker-{self._name}")
        spool = Spool(
            producer,
            producer_id=self.worker_id,
            max_block_s=self._settings.max_block_s,
            max_pending=self._settings.queue_records,
        )
        attempts = Attempts(
            slots,
            spool,
            self._resources,
            Links(self._settings.gateway_url, self._key),
            count=self._policy.slots,
            clock=self._clock,
            changed=lambda: beats.changed(),
        )
        beats = Heartbeats(producer, self._clock, lambda: self._beat(attempts), attempts.heard)
        figures = Counters(telemetry.meter(self._settings, "worker"), self._clock)
        registry = connect(self._settings)
        reader = Reader(self._settings, f"worker-{self.worker_id}")
        quarantine = Quarantine(producer, "worker", self._settings.dlq_limit)
        try:
            taking = Taking(Decoder(registry), quarantine, stop)
            self._catch_up(reader, taking, attempts, stop)
            slots.wait_ready(stop)
            caught_up = CaughtUp(reader, self._position, self._clock)
            if not stop.is_set():
                beats.start()
            while not stop.is_set():
                self._claims.caught_up_s = caught_up.as_of_s()
                self._turn(reader, taking, attempts)
                for part in (producer, spool, beats):
                    part.check()
                if figures.due():
                    figures.tell("spanloop.records", producer.delivered)
                    figures.tell("spanloop.dropped", spool.dropped)
                    figures.tell("spanloop.dead_letters", quarantine.count)
            self._leaving = True
            beats.changed()
            self._drain(reader, Decoder(registry), quarantine, attempts)
        finally:
            self._leave(producer, spool, attempts, beats)
            reader.close()
            registry.close()
            figures.meter.close()

    def _slots(self) -> Slots:
        if self._policy.isolation == "process":
            from .process_slots import ProcessSlots

            return ProcessSlots(self._spec, self._policy.slots, recycle=self._policy.recycle, trace=self._policy.trace)
        if self._policy.trace:
            from .tracer import install

            install()
        assert not isinstance(self._agent, str)
        return local_slots(self._agent)

    def _catch_up(self, reader: Reader, taking: Taking, attempts: Attempts, stop: threading.Event) -> None:
        # The end is taken before the first heartbeat: nothing can be assigned to this worker before it.
        reader.assign({self._position: OFFSET_END, (RESOURCES.name, 0): OFFSET_BEGINNING})
        ends = reader.ends()
        while not stop.is_set() and not reader.reached(ends):
            for message in reader.poll(1000, POLL_S):
                self._take(message, taking, attempts)

    def _turn(self, reader: Reader, taking: Taking, attempts: Attempts) -> None:
        for message in reader.poll(500, POLL_S):
            self._take(message, taking, attempts)
        attempts.tick()

    def _drain(self, reader: Reader, decoder: Decoder, quarantine: Quarantine, attempts: Attempts) -> None:
        """Lets agents finish, for so long; orders are obeyed and new assignments handed back meanwhile."""
        over = threading.Event()
        timer = threading.Timer(self._policy.drain_s, over.set)
        timer.daemon = True
        timer.start()
        attempts.drop_waiting(STOPPING)
        taking = Taking(decoder, quarantine, over)
        while not (over.is_set() or attempts.idle()):
            self._turn(reader, taking, attempts)
        timer.cancel()

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
        if decision == "run" and assignment.task is not None and self._leaving:
            attempts.refuse(assignment, assignment.task, STOPPING)
        elif decision == "run" and assignment.task is not None:
            attempts.accept(assignment, assignment.task, self._claims.age_s(assignment, now_ns, steady_s))
        elif decision == "cancel":
            attempts.cancel(assignment.attempt_id, "cancelled by the controller")
        elif decision != "ignore":
            self.refused += 1
            log.info("attempt %s refused: %s", assignment.attempt_id, decision)

    def _key(self, rollout_id: str, attempt_id: str) -> str:
        secret = self._settings.secret
        return keys.mint(secret, rollout_id, attempt_id) if secret else PLACEHOLDER_KEY

    def _beat(self, attempts: Attempts) -> Worker:
        offset = self._last_offset  # before `named`: what was read up to it is in there, or has ended
        policy = self._policy
        ahead = attempts.ahead() if policy.prefetch is None else policy.prefetch
        return Worker(
            worker_id=self.worker_id,
            name=self._name,
            role="worker",
            slots=0 if self._leaving else policy.slots + ahead,
            running=attempts.named(),
            last_assignment_offset=offset,
            labels=list(policy.labels),
            draining=self._leaving,
        )

    def _leave(self, producer: Producer, spool: Spool, attempts: Attempts, beats: Heartbeats) -> None:
        self._leaving = True
        attempts.hand_back(STOPPING)
        if not spool.close(FLUSH_S):
            log.warning("not all spans were acknowledged within %g s: those of the last moments may be lost", FLUSH_S)
        attempts.close(END_S)
        beats.close(GOODBYE_S)
        try:
            producer.close(GOODBYE_S)
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
    parser.add_argument("--isolation", choices=get_args(Isolation), default="thread", help="what a slot is")
    parser.add_argument("--recycle", type=int, default=0, help="replace a slot's process after so many attempts")
    parser.add_argument("--drain-s", type=float, default=1.5, help="what agents get to finish in on SIGTERM")
    o = parser.parse_args(argv)
    process.main(
        lambda settings: WorkerService(
            settings,
            o.agent,
            WorkerPolicy(
                slots=o.slots,
                prefetch=o.prefetch,
                name=o.name,
                labels=o.label,
                isolation=o.isolation,
                recycle=o.recycle,
                drain_s=o.drain_s,
            ),
        ),
        leave_s=process.STOPPED_S + o.drain_s,
    )


if __name__ == "__main__":
    main()
