"""The assembler's group offsets outside of Faust: the first ones, and what is committed."""

from __future__ import annotations

from collections.abc import Sequence

from confluent_kafka import Consumer, TopicPartition

from ..infra.group_offsets import ask_group, committed, first_offsets
from ..infra.kafka import Names, Position, partitions
from ..infra.settings import Settings
from ..schemas.errors import Unavailable
from ..schemas.topics import REWARDS, SPANS

INPUTS = (SPANS, REWARDS)
PATIENCE_S = 30.0  # a broker that has just started may take a while to become a group's coordinator


def commit_first_offsets(settings: Settings, group: str) -> None:
    """Commits the first offsets of a group that has none, so that no reset ever skips records later.

    A group that is running has its offsets and is left alone. Raises Unavailable, ConfigError.
    """

    def commit(consumer: Consumer) -> None:
        if first := first_offsets(consumer, committed(consumer, _parts(settings, _every(settings))), "earliest"):
            consumer.commit(offsets=first, asynchronous=False)

    ask_group(settings, group, commit, PATIENCE_S)


def committed_offsets(settings: Settings, group: str, positions: Sequence[Position]) -> dict[Position, int]:
    """Committed next offsets. Raises Unavailable, also where there are none, and ConfigError."""
    found = _committed(settings, group, positions)
    if missing := [at for at, offset in found.items() if offset < 0]:
        raise Unavailable(f"group {group} has no offset for {missing}; they are committed at its first start")
    return found


def has_lost_offsets(settings: Settings, group: str) -> bool:
    """Whether the broker has forgotten an offset of the group, rather than not told it in time.

    Raises Unavailable, ConfigError.
    """
    return any(offset < 0 for offset in _committed(settings, group, _every(settings)).values())


def _every(settings: Settings) -> list[Position]:
    return [(t.name, p) for t in INPUTS for p in range(partitions(settings, t))]


def _parts(settings: Settings, positions: Sequence[Position]) -> list[TopicPartition]:
    names = Names(settings.prefix)
    return [TopicPartition(names.full(t), p) for t, p in positions]


def _committed(settings: Settings, group: str, positions: Sequence[Position]) -> dict[Position, int]:
    names, parts = Names(settings.prefix), _parts(settings, positions)
    found = ask_group(settings, group, lambda consumer: committed(consumer, parts), PATIENCE_S)
    return {(names.short(tp.topic), tp.partition): tp.offset for tp in found}
