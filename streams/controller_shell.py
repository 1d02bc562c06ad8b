"""The controller as a process: reads its inputs in a group, one term at a time, and stands by where another has them.

python -m spanloop.streams.controller_shell      settings from SPANLOOP_…

    poll ─▶ decode ─▶ step … step, Tick ─▶ one transaction (offsets, rollouts, attempts, assignments) ─▶ end markers
"""

from __future__ import annotations

import logging
import threading

from confluent_kafka import KafkaException

from ..infra import process, telemetry
from ..infra.clock import Clock, SystemClock
from ..infra.group_offsets import settled_offsets
from ..infra.kafka import Member, Message, Position, wait_for_broker
from ..infra.producer import Producer
from ..infra.quarantine import Quarantine
from ..infra.read_lag import read_lag
from ..infra.registry import connect, encoder, wait_for_registry
from ..infra.settings import Settings
from ..infra.taking import Taking
from ..infra.telemetry import Counters
from ..schemas.errors import InvalidRecord, SpanloopError, Unavailable
from ..schemas.records import Attempt, Decision, Resource, Task, Worker
from ..schemas.serde import Decoder
from ..schemas.topics import ATTEMPTS, DECISIONS, RESOURCES, TASKS, WORKERS
from .controller import ORDERS, ControllerPolicy, ControllerState, Event, Refused
from .controller_limits import why_too_large, without_long
from .controller_orders import why_refused
from .controller_term import Term
from .texts import why_no_key

log = logging.getLogger(__name__)

GROUP = "controller"
INPUTS = (TASKS, ATTEMPTS, WORKERS, DECISIONS, RESOURCES)
TICK_S = 0.02
TICK_EVENTS = 1000
DRAIN_S = 0.002  # after the first message, what came with it is waited for so long
START_OVER_PAUSE_S = 0.5
# Terms in a row that ended without one committed batch, after which trouble is not passing.
MAX_LOST_TERMS = 5


class ControllerService:
    """Runs the controller, or stands by. A second one takes over within `session_timeout_s` when this one dies."""

    def __init__(
        self, settings: Settings, *, clock: Clock | None = None, policy: ControllerPolicy | None = None
    ) -> None:
        self._settings = settings
        self._clock = clock or SystemClock()
        self._policy = policy or ControllerPolicy()
        self._term: Term | None = None
        self._begin: dict[Position, int] = {}  # where a term began to read, until it has committed that
        self._lost_terms = 0
        self.events = 0
        self.written = 0

    @property
    def state(self) -> ControllerState | None:
        """What it knows; None while it stands by. To be read, from its own thread or for figures only."""
        return None if self._term is None else self._term.state

    def run(self, stop: threading.Event) -> None:
        """Blocks until `stop`. Raises Fenced, Unavailable, DataLost, TooManyDeadLetters."""
        wait_for_broker(self._settings)
        if not wait_for_registry(self._settings, stop):
            return
        self._encode = encoder(self._settings)
        registry = connect(self._settings)
        decoder = Decoder(registry)
        self._ends = Producer(self._settings, "controller-ends", encode=self._encode)
        quarantine = Quarantine(self._ends, GROUP, self._settings.dlq_limit, self._clock)
        self._taking = Taking(decoder, quarantine, stop)
        self._figures = Counters(telemetry.meter(self._settings, GROUP))
        self._again = Taking(decoder, None, stop)
        self._stop = stop
        try:
            while not stop.is_set():
                self._serve(stop)
        finally:
            registry.close()
            _close(self._ends)
            self._figures.meter.close()

    def _serve(self, stop: threading.Event) -> None:
        """One membership in the group; ends at `stop`, or with a transaction that was aborted."""
        self._member = Member(self._settings, GROUP, INPUTS, on_assign=self._take_office, on_revoke=self._leave_office)
        try:
            while not stop.is_set():
                self._turn(stop)
        except (Unavailable, KafkaException) as error:  # the latter from the group's own calls in a rebalance
            self._lost_terms += 1
            if self._lost_terms >= MAX_LOST_TERMS:
                raise
            log.warning("controller starts over (%d of %d): %s", self._lost_terms, MAX_LOST_TERMS, error)
            stop.wait(START_OVER_PAUSE_S)
        finally:
            self._leave_office([])
            self._member.close()

    def _turn(self, stop: threading.Event) -> None:
        messages = self._member.poll(1, TICK_S)
        if messages:
            messages += self._member.poll(TICK_EVENTS - 1, DRAIN_S)
        if self._term is None:
            return
        self._ends.check()
        events = [e for m in messages if (e := self._decode(m)) is not None]
        if stop.is_set() and len(events) < len(messages):
            return
        offsets = self._begin | {(m.topic, m.partition): m.offset + 1 for m in messages}
        self.written += self._term.take(events, offsets, self._member.raw())
        self._begin = {}
        self.events += len(events)
        if messages:
            self._lost_terms = 0
        if self._figures.due():
            self._tell(self._figures)

    def _tell(self, figures: Counters) -> None:
        figures.tell("spanloop.records", self.events)
        if self._taking.quarantine is not None:
            figures.tell("spanloop.dead_letters", self._taking.quarantine.count)
        for topic, lag in read_lag(self._member).items():
            figures.meter.add("spanloop.read_lag", lag, topic=topic)

    def _take_office(self, positions: list[Position]) -> dict[Position, int] | None:
        """Runs inside the rebalance, before the first message: fence, then read what is known.

        Where the inputs are read on is asked after the fence: nobody can move it any more.
        """
        missing = {(t.name, 0) for t in INPUTS} - set(positions)
        if missing:
            if positions:
                log.warning("standing by: %s is with another member", sorted(missing))
            return None
        term = Term(self._settings, self._encode, self._ends, self._clock, self._policy, stop=self._stop)
        try:
            self._begin = settled_offsets(self._settings, GROUP, positions)
            term.restore(self._again, self._begin)
        except BaseException:
            term.close()
            raise
        self._term = term
        return self._begin

    def _leave_office(self, positions: list[Position]) -> None:
        del positions
        term, self._term = self._term, None
        if term is not None:
            term.close()

    def _decode(self, message: Message) -> Event | None:
        """Its event; None for a tombstone and for a record put to quarantine. Waits for a registry that is away."""
        record = self._taking.record(message, _check)
        return None if record is None else _event(record, len(message.value or b""))


def _check(record: object) -> None:
    wrong = why_refused(record) if isinstance(record, Task) else None
    if isinstance(record, Worker):
        wrong = why_no_key("worker_id", record.worker_id)
    if wrong is not None:
        raise InvalidRecord("unsupported", wrong)


def _event(record: object, size: int) -> Event | None:
    if isinstance(record, Task) and (wrong := why_too_large(record, size)) is not None:
        bare = without_long(record)
        return bare if bare.action in ORDERS else Refused(bare, wrong)
    return record if isinstance(record, (Task, Attempt, Worker, Decision, Resource)) else None


def _close(producer: Producer) -> None:
    try:
        producer.close(5.0)
    except SpanloopError as error:
        log.warning("closing the producer of end markers: %s", error)


def main() -> None:
    """Runs until SIGTERM or SIGINT."""
    process.main(ControllerService)


if __name__ == "__main__":
    main()
