"""How far a consumer group is behind: end offsets minus committed ones, without joining the group."""

from __future__ import annotations

from collections.abc import Sequence

from confluent_kafka import Consumer, KafkaException, TopicPartition

from ..schemas.errors import Unavailable
from ..schemas.topics import Topic
from .kafka import consumer_config, partitions
from .settings import Settings

TIMEOUT_S = 5.0


class Lag:
    """Asks for one group's lag as often as wanted over one connection."""

    def __init__(self, settings: Settings, group: str, topics: Sequence[Topic]) -> None:
        self._consumer = Consumer(consumer_config(settings, group, isolation="read_uncommitted"))
        self._parts = [(t.full(settings.prefix), p) for t in topics for p in range(partitions(settings, t))]

    def records(self) -> int:
        """Records not yet committed, over all partitions; a group that never committed is behind by everything kept."""
        try:
            found = self._consumer.committed([TopicPartition(t, p) for t, p in self._parts], timeout=TIMEOUT_S)
            behind = 0
            for tp in found:
                low, high = self._consumer.get_watermark_offsets(tp, timeout=TIMEOUT_S)
                behind += high - (tp.offset if tp.offset >= 0 else low)
        except KafkaException as error:
            raise Unavailable(f"the lag of a group cannot be asked for: {error}") from error
        return behind

    def close(self) -> None:
        """Frees its connection."""
        self._consumer.close()
