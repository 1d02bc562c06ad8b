"""Offsets of a consumer group: its first ones, and asking a coordinator that is not there yet."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from typing import Literal, TypeVar, cast

from confluent_kafka import Consumer, KafkaError, KafkaException, TopicPartition

from ..schemas.errors import Unavailable
from .kafka_config import METADATA_TIMEOUT_S, REBALANCED, REFUSED, Names, client_of, consumer_config, denied, watermarks
from .message import Position
from .settings import Settings

log = logging.getLogger(__name__)

T = TypeVar("T")
Start = Literal["earliest", "latest"]
PAUSE_S = 0.2  # before a coordinator is asked again
TOLD_MAX = 10  # more than a client has to tell at once
# A coordinator is being chosen, or reads what it must know.
PASSING = frozenset(
    {
        KafkaError.NOT_COORDINATOR,
        KafkaError.COORDINATOR_NOT_AVAILABLE,
        KafkaError.COORDINATOR_LOAD_IN_PROGRESS,
        KafkaError.REBALANCE_IN_PROGRESS,
        KafkaError._TIMED_OUT,
    }
)


def patiently(ask: Callable[[], T], timeout_s: float = METADATA_TIMEOUT_S, *, alone: Consumer | None = None) -> T:
    """Asks a group's coordinator, which a broker that has just started may take a while to become.

    `alone`: who asks, where it reads nothing. Raises KafkaException for what does not pass in time, or by itself.
    """
    deadline = time.monotonic() + timeout_s
    while True:
        try:
            return ask()
        except KafkaException as error:
            reason = cast("KafkaError", error.args[0])
            if alone is not None and (why := refusal(alone)) is not None:
                raise KafkaException(why) from error
            if time.monotonic() > deadline or not (reason.retriable() or reason.code() in PASSING):
                raise
            time.sleep(PAUSE_S)


def refusal(consumer: Consumer) -> KafkaError | None:
    """Why the group of a consumer that reads nothing gives it no answer, if it may not ask.

    What it asks only times out; why, it is told where records would come.
    """
    told = (message.error() for message in consumer.consume(TOLD_MAX, 0))
    return next((error for error in told if error is not None and error.code() in REFUSED), None)


def committed(consumer: Consumer, parts: list[TopicPartition]) -> list[TopicPartition]:
    """Committed next offsets of the consumer's group, below 0 where there is none. Raises KafkaException."""
    return consumer.committed(parts, timeout=METADATA_TIMEOUT_S)


def first_offsets(consumer: Consumer, parts: list[TopicPartition], start: Start) -> list[TopicPartition]:
    """Of partitions as `committed` gives them, where to begin those without an offset. Raises KafkaException.

    A group that was away for long has lost its offsets, too, and perhaps records: those before the first one kept.
    """
    fresh = [tp for tp in parts if tp.offset < 0]
    for tp in fresh:
        low, high = watermarks(consumer, tp)
        tp.offset = low if start == "earliest" else high
        if start == "earliest" and low > 0:
            log.warning(
                "%s[%d]: the group has no offset here and begins at %d, the first one kept: if it read this partition "
                "before, what it had not read by then is gone (the broker forgets offsets after "
                "offsets.retention.minutes without a member)",
                *(tp.topic, tp.partition, low),
            )
    return fresh


def ask_group(settings: Settings, group: str, ask: Callable[[Consumer], T], timeout_s: float = METADATA_TIMEOUT_S) -> T:
    """Asks a group's coordinator without being a member, of pending transactions too.

    Raises Unavailable, and ConfigError where the broker refuses to tell.
    """
    consumer = client_of(Consumer, consumer_config(settings, group, isolation="read_uncommitted"))
    try:
        return patiently(lambda: ask(consumer), timeout_s, alone=consumer)
    except KafkaException as error:
        reason = cast("KafkaError", error.args[0])
        away = Unavailable(f"offsets of group {group} on {settings.bootstrap}: {reason.str()}")
        raise denied(settings, error, group) or away from error
    finally:
        consumer.close()


def settled_offsets(settings: Settings, group: str, positions: Sequence[Position]) -> dict[Position, int]:
    """Where a group whose transactional producer was fenced reads on; the first offset kept where it has none.

    A reader of committed records is told no offset at all while a transaction may still change it, and a broker that
    was restarted in the middle of one may take that to be for ever. After the fence nothing can change it: what was
    begun before has been committed or aborted. Raises Unavailable, ConfigError.
    """
    names = Names(settings.prefix)

    def ask(consumer: Consumer) -> list[TopicPartition]:
        parts = committed(consumer, [TopicPartition(names.full(t), p) for t, p in positions])
        first_offsets(consumer, parts, "earliest")
        return parts

    return {(names.short(tp.topic), tp.partition): tp.offset for tp in ask_group(settings, group, ask)}


def commit_first(consumer: Consumer, fresh: list[TopicPartition]) -> bool:
    """False where another rebalance has begun: whoever is assigned then commits them. Raises KafkaException."""
    try:
        consumer.commit(offsets=fresh, asynchronous=False)
    except KafkaException as error:
        if cast("KafkaError", error.args[0]).code() in REBALANCED:
            return False
        raise
    return True
