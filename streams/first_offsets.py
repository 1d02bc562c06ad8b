"""The assembler's group offsets outside of Faust: the first ones, and what is committed."""

from __future__ import annotations

from collections.abc import Sequence

from confluent_kafka import Consumer, KafkaException, TopicPartition

from ..infra.kafka import METADATA_TIMEOUT_S, Names, Position, consumer_config, partitions
from ..infra.settings import Settings
from ..schemas.errors import Unavailable
from ..schemas.topics import REWARDS, SPANS


def commit_first_offsets(settings: Settings, group: str) -> None:
    """Commits the first offsets of a group that has none, so that no reset ever skips records later.

    A group that is running has its offsets and is left alone. Raises Unavailable.
    """
    topics = (SPANS, REWARDS)
    positions = [(t.name, p) for t in topics for p in range(partitions(settings, t))]
    names = Names(settings.prefix)
    consumer = Consumer(consumer_config(settings, group, isolation="read_uncommitted"))
    try:
        fresh = [at for at, offset in _committed(consumer, names, positions).items() if offset < 0]
        first = [TopicPartition(names.full(t), p, _low(consumer, names, (t, p))) for t, p in fresh]
        if first:
            consumer.commit(offsets=first, asynchronous=False)
    except KafkaException as error:
        raise Unavailable(f"first offsets of group {group} on {settings.bootstrap}: {error}") from error
    finally:
        consumer.close()


def committed_offsets(settings: Settings, group: str, positions: Sequence[Position]) -> dict[Position, int]:
    """Committed next offsets. Raises Unavailable, also where there are none."""
    consumer = Consumer(consumer_config(settings, group, isolation="read_uncommitted"))
    try:
        found = _committed(consumer, Names(settings.prefix), positions)
    except KafkaException as error:
        raise Unavailable(f"offsets of group {group} on {settings.bootstrap}: {error}") from error
    finally:
        consumer.close()
    if missing := [at for at, offset in found.items() if offset < 0]:
        raise Unavailable(f"group {group} has no offset for {missing}; they are committed at its first start")
    return found


def _committed(consumer: Consumer, names: Names, positions: Sequence[Position]) -> dict[Position, int]:
    asked = [TopicPartition(names.full(t), p) for t, p in positions]
    found = consumer.committed(asked, timeout=METADATA_TIMEOUT_S)
    return {(names.short(tp.topic), tp.partition): tp.offset for tp in found}


def _low(consumer: Consumer, names: Names, position: Position) -> int:
    topic = TopicPartition(names.full(position[0]), position[1])
    return consumer.get_watermark_offsets(topic, timeout=METADATA_TIMEOUT_S)[0]
