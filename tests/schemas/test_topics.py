"""Topics: a closed list, names with a prefix, Kafka's partitioner."""

from __future__ import annotations

import pytest

from spanloop.schemas.topics import BY_RECORD, SPANS, TOPICS, partition_of


def test_every_topic_of_the_design_is_there() -> None:
    assert set(TOPICS) == {
        "tasks", "assignments", "workers", "spans", "rewards", "attempts", "rollouts", "assemblies", "trajectories",
        "batches", "decisions", "resources", "dead-letters",
    }  # fmt: skip


def test_one_record_belongs_to_one_topic() -> None:
    assert len(BY_RECORD) == len(TOPICS)


def test_names_are_joined_with_a_dash() -> None:
    assert SPANS.full("pool-a") == "pool-a-spans"
    assert SPANS.subject("pool-a") == "pool-a-spans-value"
    assert SPANS.full("") == "spans"


@pytest.mark.parametrize(
    ("key", "hashed"),
    # the vectors of Apache Kafka's own UtilsTest.testMurmur2
    [
        (b"21", -973932308),
        (b"foobar", -790332482),
        (b"a-little-bit-long-string", -985981536),
        (b"a-little-bit-longer-string", -1486304829),
        (b"lkjh234lh9fiuh90y23oiuhsafujhadof229phr9h19h89h8", -58897971),
        (b"abc", 479470107),
    ],
)
def test_partitions_are_those_of_the_java_client(key: bytes, hashed: int) -> None:
    for partitions in (1, 4, 1_000_003):
        assert partition_of(key, partitions) == (hashed & 0x7FFFFFFF) % partitions
