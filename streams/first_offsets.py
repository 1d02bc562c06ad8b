"""The assembler's group offsets outside of Faust: the first ones, and what is committed."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar, cast

from confluent_kafka import Consumer, KafkaError, KafkaException, TopicPartition

from ..infra.group_offsets import committed, first_offsets, patiently
from ..infra.kafka import Names, Position, consumer_config, partitions
from ..infra.kafka_config import denied
from ..infra.settings import Settings
from ..schemas.errors import Unavailable
from ..schemas.topics import REWARDS, SPANS

T = TypeVar("T")
INPUTS = (SPANS, REWARDS)
PATIENCE_S = 30.0


def commit_first_offsets(settings: Settings, group: str) -> None:
    """Commits the first offsets of a group that has none, so that no reset ever skips records later.

    A group that is running has its offsets and is left alone. Raises Unavailable.
    """

    def commit(consumer: Consumer, _: Names) -> None:
        every = [TopicPartition(t.full(settings.prefix), p) for t in INPUTS for p in range(partitions(settings, t))]
        if first := first_offsets(consumer, every, "earliest"):
            consumer.commit(offsets=first, asynchronous=False)

    _patiently(settings, group, commit)


def committed_offsets(settings: Settings, group: str, positions: Sequence[Position]) -> dict[Position, int]:
    """Committed next offsets. Raises Unavailable, also where there are none."""
    found = _patiently(settings, group, lambda consumer, names: _committed(consumer, names, positions))
    if missing := [at for at, offset in found.items() if offset < 0]:
        raise Unavailable(f"group {group} has no offset for {missing}; they are committed at its first start")
    return found


def has_lost_offsets(settings: Settings, group: str) -> bool:
    """Whether the broker has forgotten an offset of the group, rather than not told it in time. Raises Unavailable."""
    positions = [(t.name, p) for t in INPUTS for p in range(partitions(settings, t))]
    found = _patiently(settings, group, lambda consumer, names: _committed(consumer, names, positions))
    return any(offset < 0 for offset in found.values())


def _patiently(settings: Settings, group: str, ask: Callable[[Consumer, Names], T]) -> T:
    """Asks the group's coordinator, which a broker that has just started may take a while to become.

    Raises Unavailable, and ConfigError where the broker refuses to tell.
    """
    consumer = Consumer(consumer_config(settings, group, isolation="read_uncommitted"))
    try:
        return patiently(lambda: ask(consumer, Names(settings.prefix)), PATIENCE_S, alone=consumer)
    except KafkaException as error:
        reason = cast("KafkaError", error.args[0])
        away = Unavailable(f"offsets of group {group} on {settings.bootstrap}: {reason.str()}")
        raise denied(settings, error, group) or away from error
    finally:
        consumer.close()


def _committed(consumer: Consumer, names: Names, positions: Sequence[Position]) -> dict[Position, int]:
    found = committed(consumer, [TopicPartition(names.full(t), p) for t, p in positions])
    return {(names.short(tp.topic), tp.partition): tp.offset for tp in found}
