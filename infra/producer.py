"""The typed producer: a record goes to its topic under its key; nothing is lost silently.

Sizes are checked before a record is enqueued, a full queue blocks for a bounded time and then raises, and every
delivery is checked: a failure is raised by `send_wait`, given to `on_delivery`, or else raised by the next `flush`.
"""

from __future__ import annotations

import asyncio
import logging
import os
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from concurrent.futures import TimeoutError as NotInTime  # not the builtin one before Python 3.11
from copy import copy
from dataclasses import dataclass
from typing import cast

from confluent_kafka import KafkaError, KafkaException
from confluent_kafka import Message as Delivered
from confluent_kafka import Producer as KafkaProducer

from ..schemas.errors import BackPressure, ConfigError, DeliveryFailed, MissingKey, RecordTooLarge
from ..schemas.serde import Encoder
from ..schemas.topics import BY_RECORD, DEAD_LETTER_MAX_BYTES, Record, Topic, key_of
from .kafka_config import REFUSED, ClientConfig, Names, client_of, common_config, not_allowed
from .registry import encoder
from .settings import Settings

log = logging.getLogger(__name__)

# Kafka adds headers, key and batch overhead to a value; what a broker counts may be a little more than we see.
OVERHEAD_BYTES = 512
POLL_S = 0.05
DEATH_S = 1.0  # a client that is dead refuses records before it says why
FULL_PAUSE_S = 0.005  # a full queue is tried again after this
LINGER_MS = 5
# What the records get that a client's death leaves.
CONSEQUENCES = frozenset({KafkaError._FATAL, KafkaError._PURGE_QUEUE, KafkaError._PURGE_INFLIGHT})
DEAD = "this producer is dead: start its process anew"


@dataclass(frozen=True, slots=True)
class Ack:
    """Where the broker put a record."""

    partition: int
    offset: int


OnDelivery = Callable[[DeliveryFailed | None, Ack | None], None]


def producer_config(settings: Settings, name: str, transactional_id: str | None = None) -> ClientConfig:
    """Idempotent, acks=all, Java-compatible partitioner."""
    timeout_ms = 30_000 if transactional_id is not None else 60_000
    config = {
        **common_config(settings, name),
        "linger.ms": LINGER_MS,
        "compression.type": "lz4",
        "queue.buffering.max.messages": settings.queue_records,
        "queue.buffering.max.kbytes": 262_144,
        "delivery.timeout.ms": timeout_ms,
        **settings.kafka,
        # what the rest relies on is nobody's to change
        "enable.idempotence": True,
        "acks": "all",
        "partitioner": "murmur2_random",
        "message.max.bytes": DEAD_LETTER_MAX_BYTES + OVERHEAD_BYTES,
    }
    if transactional_id is not None:
        config |= {"transactional.id": transactional_id, "transaction.timeout.ms": 30_000}
    return config


class Producer:
    """Sends records; thread-safe. Callbacks run in a thread of its own, or in that of whoever flushes.

    It belongs to the process that made it: a forked child gets ConfigError and makes its own.
    """

    def __init__(
        self,
        settings: Settings,
        name: str,
        *,
        transactional_id: str | None = None,
        encode: Encoder | None = None,
        client: KafkaProducer | None = None,
        linger_ms: float = LINGER_MS,
    ) -> None:
        """`encode` is for tests, `client` for sharing one with transactions; by default both come from the settings.

        `linger_ms`: how long a record may wait for others; 0 where somebody waits for each acknowledgement.
        """
        self._encode = encode or encoder(settings)
        self._transactional = transactional_id is not None or client is not None
        self._settings = settings
        self._name = name
        self._names = Names(settings.prefix)
        config = {**producer_config(settings, name, transactional_id), "linger.ms": linger_ms}
        self.client = client or client_of(KafkaProducer, config)
        self.delivered = 0
        self.failed = 0
        self.failure: DeliveryFailed | None = None
        """Why it sends nothing any more: librdkafka has given up for good, and only a new process sends again; or why
        it may not send something."""
        self._first_failure: DeliveryFailed | None = None
        self._lock = threading.Lock()
        self._process = os.getpid()
        self._closed, self._dead = threading.Event(), threading.Event()
        self._poller = threading.Thread(target=self._poll, name=f"{name}-deliveries", daemon=True)
        self._poller.start()

    def send(self, record: Record, *, partition: int | None = None, on_delivery: OnDelivery | None = None) -> None:
        """Enqueues a record under its key; `partition` overrides the key's.

        Raises MissingKey, RecordTooLarge, BackPressure, DeliveryFailed once closed or where the client refuses it;
        with transactions confluent's KafkaException instead. `on_delivery` is called once, unless this raises; it
        should not wait.
        """
        topic = BY_RECORD[type(record)]
        key = key_of(record)
        if not key:
            raise MissingKey(f"a record for topic {topic.name!r} needs a key, got {key!r}")
        value = self._encode.encode(record)
        self._produce(topic, key, value, partition, on_delivery)

    def tombstone(self, topic: Topic, key: str, *, partition: int | None = None) -> None:
        """Writes a null value, which removes a key from a compacted topic."""
        if not key:
            raise MissingKey(f"a tombstone on topic {topic.name!r} needs a key")
        self._produce(topic, key, None, partition, None)

    def send_wait(self, record: Record, timeout_s: float = 30.0, *, partition: int | None = None) -> Ack:
        """Sends and waits for the broker. Raises DeliveryFailed besides what `send` raises."""
        done = self._send_future(record, partition)
        try:
            return done.result(timeout_s)
        except NotInTime as error:
            raise DeliveryFailed(f"no acknowledgement of a {type(record).__name__} within {timeout_s:g} s") from error

    async def send_async(self, record: Record, *, partition: int | None = None) -> Ack:
        """Like `send_wait` on an event loop; the caller bounds the wait."""
        return await asyncio.wrap_future(self._send_future(record, partition))

    def flush(self, timeout_s: float = 30.0) -> None:
        """Waits until nothing is queued. Raises DeliveryFailed for the first failure that nobody was told of."""
        left = self._serve(self.client.flush, timeout_s)
        with self._lock:
            failure, self._first_failure = self._first_failure, None
        if failure is not None:
            raise failure
        if left:
            raise DeliveryFailed(
                f"{left} records were not acknowledged by {self._settings.bootstrap} in {timeout_s:g} s"
            )

    def check(self) -> None:
        """Raises its `failure`."""
        if self.failure is not None:
            raise copy(self.failure)

    def queued(self) -> int:
        """Records that are not acknowledged yet."""
        return len(self.client)

    def close(self, timeout_s: float = 30.0) -> None:
        """Flushes and stops its thread; what is not acknowledged in time fails. May be called again."""
        if self._closed.is_set() or os.getpid() != self._process:
            return
        try:
            self.flush(timeout_s)
        finally:
            self._closed.set()
            self.client.purge()
            self._serve(self.client.poll, 0)
            if threading.current_thread() is not self._poller:
                self._poller.join(1.0)

    def _send_future(self, record: Record, partition: int | None) -> Future[Ack]:
        done: Future[Ack] = Future()
        done.set_running_or_notify_cancel()  # a caller that gave up must not make `settle` raise in the poller

        def settle(failure: DeliveryFailed | None, ack: Ack | None) -> None:
            if failure is None:
                done.set_result(cast("Ack", ack))
            else:
                done.set_exception(failure)

        self.send(record, partition=partition, on_delivery=settle)
        return done

    def _produce(
        self, topic: Topic, key: str, value: bytes | None, partition: int | None, on_delivery: OnDelivery | None
    ) -> None:
        size = len(key) + len(value or b"") + OVERHEAD_BYTES
        if size > topic.max_bytes:
            raise RecordTooLarge(
                f"a record of {size} bytes for topic {topic.name!r}, which takes {topic.max_bytes}; split or off-load"
            )
        self._check_usable()
        settled = self._settled(topic, on_delivery)
        deadline = time.monotonic() + self._settings.max_block_s
        while True:
            try:
                name = self._names.full(topic.name)
                self.client.produce(
                    name, value, key.encode(), -1 if partition is None else partition, on_delivery=settled
                )
            except BufferError as error:
                # The poller makes room, so waiting for it in its own thread is of no use.
                if time.monotonic() >= deadline or threading.current_thread() is self._poller:
                    raise BackPressure(
                        f"the queue of {self._settings.queue_records} records stayed full for "
                        f"{self._settings.max_block_s:g} s; is {self._settings.bootstrap} reachable?"
                    ) from error
                self._closed.wait(FULL_PAUSE_S)
                self._check_usable()
            except KafkaException as error:
                if self._transactional:
                    raise
                raise self._refused(topic, cast("KafkaError", error.args[0])) from error
            else:
                return

    def _check_usable(self) -> None:
        if self._closed.is_set():
            raise DeliveryFailed("this producer is closed")
        if os.getpid() != self._process:
            raise ConfigError(
                f"a producer of process {self._process} was used in its child {os.getpid()}, which has none of its "
                "threads; make a Producer after the fork, or start processes by spawn"
            )

    def _refused(self, topic: Topic, error: KafkaError) -> DeliveryFailed:
        fatal = error.fatal() or error.code() == KafkaError._FATAL
        if fatal and threading.current_thread() is not self._poller:
            self._dead.wait(DEATH_S)  # the poller hears why
        failure = self._failed(topic, error)
        if fatal and self.failure is None:
            self.failure = DeliveryFailed(f"{failure}; {DEAD}")
            return copy(self.failure)
        return failure

    def _failed(self, topic: Topic, error: KafkaError) -> DeliveryFailed:
        if error.code() in REFUSED:
            name = self._names.full(topic.name)
            self.failure = not_allowed(self._settings, error, f"producer {self._name}", f"topic {name}")
        elif error.code() not in CONSEQUENCES or self.failure is None:
            return DeliveryFailed(f"topic {topic.name!r} on {self._settings.bootstrap}: {error.str()}")
        return copy(self.failure)  # an error that is raised keeps the frames it passed, and their records

    def _settled(self, topic: Topic, on_delivery: OnDelivery | None) -> Callable[[KafkaError | None, Delivered], None]:
        def settled(error: KafkaError | None, message: Delivered) -> None:
            failure = None
            with self._lock:
                if error is None:
                    self.delivered += 1
                else:
                    self.failed += 1
                    failure = self._failed(topic, error)
                    if on_delivery is None:
                        self._first_failure = self._first_failure or failure
            if on_delivery is None:
                return
            ack = None if error is not None else Ack(cast("int", message.partition()), cast("int", message.offset()))
            try:
                on_delivery(failure, ack)
            except Exception:
                # Raised into librdkafka it would end the thread that all other deliveries wait for.
                log.exception("a delivery callback for topic %s failed", topic.name)

        return settled

    def _poll(self) -> None:
        while not self._closed.is_set():
            self._serve(self.client.poll, POLL_S)

    def _serve(self, call: Callable[[float], int], timeout_s: float) -> int:
        """Has deliveries told. A fatal error, which the client raises by itself, is noted."""
        try:
            return call(timeout_s)
        except KafkaException as raised:  # the delivery reports it belongs to come all the same
            error = cast("KafkaError", raised.args[0])
            log.debug("deliveries: %s", error)
            if error.fatal() and self.failure is None:
                if error.code() in REFUSED:
                    self.failure = not_allowed(self._settings, error, f"producer {self._name}", "every topic")
                else:
                    self.failure = DeliveryFailed(f"{self._settings.bootstrap}: {error.str()}; {DEAD}")
            self._dead.set()
            self._closed.wait(POLL_S)
            return len(self.client)
