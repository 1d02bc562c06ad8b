"""How far a group member is behind in what it reads, by what it knows already: nobody is asked."""

from __future__ import annotations

from collections import Counter

from confluent_kafka import TopicPartition

from .kafka import Member


def read_lag(member: Member) -> dict[str, int]:
    """Topic -> records between the next one to be read and the partition's end as the last fetch told it."""
    lags: Counter[str] = Counter()
    consumer = member.raw()
    for (topic, partition), position in list(member.positions.items()):
        _, high = consumer.get_watermark_offsets(TopicPartition(member.names.full(topic), partition), cached=True)
        lags[topic] += max(0, high - position)  # negative until something was fetched
    return dict(lags)
