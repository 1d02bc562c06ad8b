"""How far a consumer group is behind: end offsets minus committed ones, without joining the group."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from confluent_kafka import Consumer, KafkaException, TopicPartition

from ..schemas.errors import ConfigError, Unavailable
from ..schemas.topics import Topic
from .group_offsets import refusal
from .kafka import consumer_config, partitions, watermarks
from .kafka_config import client_of, denied
from .settings import Settings

TIMEOUT_S = 5.0


@dataclass(frozen=True, slots=True)
class PartitionLag:
    """One partition as a group sees it. Offsets are the next ones to be read."""

    topic: str
    partition: int
    committed: int | None  # null = the group never committed here
    first: int  # first offset kept
    end: int

    @property
    def lag(self) -> int:
        """Records not yet committed; where nothing ever was, everything that is kept."""
        return max(0, self.end - (self.first if self.committed is None else self.committed))


class Lag:
    """Asks for one group's lag as often as wanted over one connection."""

    def __init__(self, settings: Settings, group: str, topics: Sequence[Topic]) -> None:
        self._settings, self._group = settings, group
        self._consumer = client_of(Consumer, consumer_config(settings, group, isolation="read_uncommitted"))
        self._short = {t.full(settings.prefix): t.name for t in topics}
        self._parts = [(t.full(settings.prefix), p) for t in topics for p in range(partitions(settings, t))]

    def records(self) -> int:
        """Records not yet committed, over all partitions; a group that never committed is behind by everything kept."""
        return sum(part.lag for part in self.parts())

    def parts(self) -> list[PartitionLag]:
        """The same, partition by partition. Raises Unavailable, and ConfigError where the broker refuses to tell."""
        out: list[PartitionLag] = []
        try:
            found = self._consumer.committed([TopicPartition(t, p) for t, p in self._parts], timeout=TIMEOUT_S)
            for tp in found:
                low, high = watermarks(self._consumer, tp, TIMEOUT_S)
                committed = tp.offset if tp.offset >= 0 else None
                out.append(PartitionLag(self._short[tp.topic], tp.partition, committed, low, high))
        except KafkaException as error:
            raise self._meaning(error) from error
        return out

    def _meaning(self, error: KafkaException) -> ConfigError | Unavailable:
        away = Unavailable(f"the lag of group {self._group} cannot be asked for: {error}")
        return denied(self._settings, refusal(self._consumer) or error, self._group) or away

    def close(self) -> None:
        """Frees its connection."""
        self._consumer.close()
