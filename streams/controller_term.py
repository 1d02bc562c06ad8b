"""A controller's term: from when it is given the inputs until it loses them. One state, one transactional producer."""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import cast

from confluent_kafka import Consumer, KafkaError, KafkaException, TopicPartition
from confluent_kafka import Producer as KafkaProducer

from ..infra.bounded import Bounded
from ..infra.clock import Clock
from ..infra.kafka import Names, Position
from ..infra.kafka_config import FENCED, REFUSED, refused
from ..infra.logs import bound
from ..infra.producer import Ack, OnDelivery, Producer, producer_config
from ..infra.settings import Settings
from ..infra.taking import Taking
from ..schemas.errors import DeliveryFailed, Fenced, NotAllowed, SpanloopError, Unavailable
from ..schemas.records import Assignment, Rollout, SpanBatch
from ..schemas.serde import Encoder
from .controller import ControllerPolicy, ControllerState, Event, Out, Placed, Tick, step
from .controller_restore import restore

log = logging.getLogger(__name__)

# The first of a cluster waits until the broker has made the topic in which it keeps transactions.
INIT_TIMEOUT_S = 30.0
INIT_STUCK_S = 45.0  # over what it allows itself
CALL_TIMEOUT_S = 10.0
# For all calls of a transaction together, over what each allows itself: past it the producer is given up and a new one
# fences it. After the death of a lone broker every second transaction needs that, and nothing is given out meanwhile.
STUCK_S = 15.0
RETRY_PAUSE_S = 0.05
# The broker ends a transaction in the background and answers "again" to the next until it has: at the default pause of
# 100 ms that would be the latency of every second assignment. A transaction is flushed at once, so nothing lingers.
QUICK: dict[str, int] = {"retry.backoff.ms": 2, "linger.ms": 0}


def transactional_id(settings: Settings) -> str:
    """One per prefix: whoever takes it last is the controller."""
    return f"{settings.prefix}-controller"


class Term:
    """Takes batches of messages and writes what follows from them."""

    def __init__(
        self,
        settings: Settings,
        encode: Encoder,
        ends: Producer,
        clock: Clock,
        policy: ControllerPolicy,
        *,
        stop: threading.Event,
    ) -> None:
        """Fences every earlier term. `ends` writes end markers, outside transactions. Raises Unavailable."""
        self._settings = settings
        self._names = Names(settings.prefix)
        self._clock = clock
        self._ends = ends
        config = producer_config(settings, "controller", transactional_id(settings))
        self._client = KafkaProducer(config | QUICK)
        self._producer = Producer(settings, "controller", encode=encode, client=self._client)
        self._placed: deque[Placed] = deque()
        self.state = ControllerState(policy=policy)
        self._bounded = Bounded(stop)
        try:
            self._bounded("init_transactions", self._init, INIT_STUCK_S)
        except SpanloopError:
            self.close()
            raise

    def _init(self) -> None:
        self._call(lambda: self._client.init_transactions(INIT_TIMEOUT_S), "init_transactions", INIT_TIMEOUT_S)

    def restore(self, taking: Taking, committed: Mapping[Position, int]) -> None:
        """Reads what is known. The epoch is the wall clock in ns, or one above the last where that is higher:

        confluent-kafka does not tell the producer's epoch. Raises Unavailable where told to stop meanwhile.
        """
        now_ns = self._clock.now_ns()
        restore(self._settings, self.state, taking, committed, epoch=now_ns, now_ns=now_ns)
        if taking.gave_up:
            raise Unavailable("told to stop while the controller's state was read")
        log.info(
            "controller epoch %d: %d open rollouts, %d finished, %d workers",
            self.state.epoch, len(self.state.live), len(self.state.finished), len(self.state.workers),
        )  # fmt: skip

    def take(self, events: Iterable[Event], offsets: Mapping[Position, int], consumer: Consumer) -> int:
        """Steps through a batch and commits what follows; returns how many records were written.

        Raises Fenced, and Unavailable where the transaction was aborted: then the state is ahead of the log and the
        term is over.
        """
        now_ns = self._clock.now_ns()
        out: list[Out] = []
        while self._placed:
            out += step(self.state, self._placed.popleft(), now_ns)
        for event in events:
            out += step(self.state, event, now_ns)
        out += step(self.state, Tick(), now_ns)
        ends = [r for r in out if isinstance(r, SpanBatch)]
        inside = [r for r in out if not isinstance(r, SpanBatch)]
        if inside or offsets:
            self._bounded(
                "a transaction", lambda: self._transact(inside, offsets, consumer.consumer_group_metadata()), STUCK_S
            )
            if offsets and self._settings.profile == "embedded":
                # the embedded broker takes offsets in a transaction but does not keep them
                consumer.commit(offsets=self._on_broker(offsets), asynchronous=False)
        for marker in ends:
            self._ends.send(marker, on_delivery=_note_failure)
        if log.isEnabledFor(logging.INFO):
            for record in inside:
                _tell(record)
        return len(out)

    def close(self) -> None:
        """Lets its producer go. Between batches no transaction is open; one that is stuck is left to the next term."""
        self._bounded.close()
        if self._bounded.stuck:
            return
        try:
            self._producer.close(5.0)
        except SpanloopError as error:
            log.warning("closing the controller's producer: %s", error)

    def _on_broker(self, offsets: Mapping[Position, int]) -> list[TopicPartition]:
        return [TopicPartition(self._names.full(t), p, o) for (t, p), o in offsets.items()]

    def _transact(self, records: Sequence[Out], offsets: Mapping[Position, int], group: object) -> None:
        client, where = self._client, self._on_broker(offsets)
        self._call(client.begin_transaction, "begin_transaction")
        try:
            for record in records:
                self._producer.send(record, on_delivery=self._note(record))
            if where:
                self._call(
                    lambda: client.send_offsets_to_transaction(where, group, CALL_TIMEOUT_S),
                    "send_offsets_to_transaction",
                )
            self._call(lambda: client.commit_transaction(CALL_TIMEOUT_S), "commit_transaction")
        except KafkaException as error:
            self._abort()
            raise self._refusal(error, "produce") from error
        except SpanloopError:
            self._abort()
            raise

    def _note(self, record: Out) -> OnDelivery | None:
        if not isinstance(record, Assignment) or record.action != "run":
            return None

        def placed(failure: DeliveryFailed | None, ack: Ack | None) -> None:
            if failure is None and ack is not None:
                self._placed.append(Placed(record.worker_id, record.attempt_id, ack.offset))

        return placed

    def _abort(self) -> None:
        try:
            self._client.abort_transaction(CALL_TIMEOUT_S)
        except KafkaException as error:  # the next term's init_transactions aborts it
            log.warning("abort_transaction: %s", error)

    def _call(self, call: Callable[[], None], name: str, limit_s: float = CALL_TIMEOUT_S) -> None:
        deadline = time.monotonic() + limit_s
        while True:
            try:
                return call()
            except KafkaException as error:
                again = kafka_error(error).retriable() and not kafka_error(error).txn_requires_abort()
                if not again or time.monotonic() > deadline:
                    raise self._refusal(error, name) from error
                time.sleep(RETRY_PAUSE_S)

    def _refusal(self, error: KafkaException, name: str) -> SpanloopError:
        """Fenced where another controller has taken over, ConfigError where it may not do this, else Unavailable."""
        reason = kafka_error(error)
        if reason.code() in FENCED:
            return Fenced(f"{name}: another controller has taken over ({error}); this one must stop")
        if reason.code() == KafkaError.TRANSACTIONAL_ID_AUTHORIZATION_FAILED:
            where = f"transactional id {transactional_id(self._settings)}"
            return refused(self._settings, reason, "the controller", where)
        if isinstance(self._producer.failure, NotAllowed):  # it knows the topic
            return self._producer.failure
        if reason.code() in REFUSED:
            return refused(self._settings, reason, "the controller", "a topic of its transactions")
        return Unavailable(f"{name}: {error}")


def kafka_error(error: KafkaException) -> KafkaError:
    """What librdkafka said."""
    return cast("KafkaError", error.args[0])


def _tell(record: Out) -> None:
    """A line about a rollout that took another way than through one attempt; its whole way is in `attempts`."""
    if not isinstance(record, Rollout) or record.status == "order":
        return
    if record.final and record.status != "succeeded":
        what = f"ends {record.status}"
    elif record.attempt_status == "closing":
        what = f"is closed as {record.closing}"
    elif record.status == "queuing" and record.dispatches:
        what = "waits to be given out again"
    else:
        return
    with bound(rollout_id=record.rollout_id, attempt_id=record.attempt_id, run_id=record.task.run_id):
        log.info("%s; given out %d times: %s", what, record.dispatches, record.reason or "no reason given")


def _note_failure(failure: DeliveryFailed | None, ack: Ack | None) -> None:
    del ack
    if failure is not None:  # the marker is written again until it took effect
        log.warning("end marker: %s", failure)
