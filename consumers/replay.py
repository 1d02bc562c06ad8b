"""Puts dead letters back on the topics they came from, once each unless told otherwise."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import Future
from concurrent.futures import TimeoutError as NotInTime  # not the builtin one before Python 3.11
from contextlib import closing
from dataclasses import dataclass

from confluent_kafka import KafkaError
from confluent_kafka import Message as Delivered

from ..infra.clock import Clock, SystemClock
from ..infra.kafka_config import REFUSED, not_allowed, partitions
from ..infra.producer import Producer
from ..infra.registry import connect
from ..infra.settings import Settings
from ..schemas.errors import DeliveryFailed
from ..schemas.serde import Decoder
from ..schemas.topics import TOPICS
from .letters import Kept, Letter, Put, Selection, note, plan, read, replayed

ACK_TIMEOUT_S = 30.0
# On a record that was put back: which letter it was. Readers ignore it; people see why a record is there twice.
HEADER = "spanloop-replay"


@dataclass(frozen=True, slots=True)
class Done:
    """What became of one letter: put back at an offset (null = a rehearsal), or kept and why."""

    letter: Letter
    put: Put | Kept
    offset: int | None = None


def replay(
    settings: Settings, wanted: Selection, *, again: bool = False, dry_run: bool = False, clock: Clock | None = None
) -> Iterator[Done]:
    """Puts back the letters that are meant, in their order; each is noted once the broker has it.

    A crash between the two puts one back twice, which readers know by its identities. Raises DeliveryFailed,
    Unavailable.
    """
    now = (clock or SystemClock()).now_ns
    done = replayed(read(settings, bodies=False))
    with (
        closing(connect(settings)) as registry,
        closing(Producer(settings, "dlq-replay", linger_ms=0)) as producer,
    ):
        decoder = Decoder(registry)
        for letter in read(settings, first=wanted.first):
            if not wanted.takes(letter):
                continue
            topic = TOPICS.get(letter.dead.topic)
            count = 0 if topic is None else partitions(settings, topic)
            put = plan(letter, done, count, decoder=decoder, again=again)
            if isinstance(put, Kept) or dry_run:
                yield Done(letter, put)
                continue
            offset = _put(settings, producer, put)
            producer.send_wait(note(put, now()), ACK_TIMEOUT_S)
            yield Done(letter, put, offset)


def _put(settings: Settings, producer: Producer, put: Put) -> int:
    """The offset at which the broker has it. Raises DeliveryFailed."""
    settled: Future[int] = Future()

    def on_delivery(error: KafkaError | None, message: Delivered) -> None:
        who = f"dead letter {put.letter}"
        if error is not None and error.code() in REFUSED:
            settled.set_exception(not_allowed(settings, error, who, f"topic {TOPICS[put.topic].full(settings.prefix)}"))
        elif error is not None:
            settled.set_exception(DeliveryFailed(f"{who} for {put.topic}: {error.str()}"))
        else:
            settled.set_result(message.offset() or 0)

    producer.client.produce(
        TOPICS[put.topic].full(settings.prefix),
        put.value,
        put.key,
        put.partition,
        on_delivery=on_delivery,
        headers=[(HEADER, f"dead-letters@{put.letter}".encode())],
    )
    try:
        return settled.result(ACK_TIMEOUT_S)
    except NotInTime as error:
        raise DeliveryFailed(
            f"dead letter {put.letter} for {put.topic}: no acknowledgement within {ACK_TIMEOUT_S:g} s"
        ) from error
