"""The closed list of topics: what each carries, how it is keyed, how long it is kept.

tasks ─▶ assignments ─▶ spans, rewards ─▶ trajectories ─▶ batches, decisions ─▶ resources
         attempts, rollouts, workers, assemblies, dead-letters beside them
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from . import records as r

HOUR_MS = 3_600_000
DAY_MS = 24 * HOUR_MS
KEEP = -1
MIB = 1 << 20
DEFAULT_MAX_BYTES = 1 * MIB
# Spans carry whole prompts and trajectories whole conversations; a dead letter holds either, framed once more.
BIG_MAX_BYTES = 16 * MIB
DEAD_LETTER_MAX_BYTES = 20 * MIB

Cleanup = Literal["delete", "compact", "compact,delete"]
Record = (
    r.Task | r.Assignment | r.Worker | r.SpanBatch | r.Reward | r.Attempt | r.Rollout | r.Assembly
    | r.Trajectory | r.Batch | r.Decision | r.Resource | r.DeadLetter
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Topic:
    """One topic. `spread` topics have the configured number of partitions, the others one (a total order)."""

    name: str
    record: type[Record]
    spread: bool
    retention_ms: int
    cleanup: Cleanup = "delete"
    max_bytes: int = DEFAULT_MAX_BYTES
    broker_time: bool = False  # time stamps are the broker's: whoever reads counts from them

    def full(self, prefix: str) -> str:
        """Its name on the broker."""
        return f"{prefix}-{self.name}" if prefix else self.name

    def subject(self, prefix: str) -> str:
        """Its subject in the schema registry."""
        return f"{self.full(prefix)}-value"


TASKS = Topic("tasks", r.Task, False, KEEP)
ASSIGNMENTS = Topic("assignments", r.Assignment, True, 6 * HOUR_MS)
WORKERS = Topic("workers", r.Worker, False, 6 * HOUR_MS, "compact,delete")
SPANS = Topic("spans", r.SpanBatch, True, 7 * DAY_MS, max_bytes=BIG_MAX_BYTES)
REWARDS = Topic("rewards", r.Reward, True, 7 * DAY_MS)
ATTEMPTS = Topic("attempts", r.Attempt, False, KEEP)
ROLLOUTS = Topic("rollouts", r.Rollout, True, KEEP, "compact")
ASSEMBLIES = Topic("assemblies", r.Assembly, True, 7 * DAY_MS, "compact,delete")
TRAJECTORIES = Topic("trajectories", r.Trajectory, True, 7 * DAY_MS, max_bytes=BIG_MAX_BYTES, broker_time=True)
BATCHES = Topic("batches", r.Batch, False, KEEP)
DECISIONS = Topic("decisions", r.Decision, False, 7 * DAY_MS)
RESOURCES = Topic("resources", r.Resource, False, KEEP)
DEAD_LETTERS = Topic("dead-letters", r.DeadLetter, False, 90 * DAY_MS, max_bytes=DEAD_LETTER_MAX_BYTES)

TOPICS: dict[str, Topic] = {
    t.name: t
    for t in (
        TASKS, ASSIGNMENTS, WORKERS, SPANS, REWARDS, ATTEMPTS, ROLLOUTS, ASSEMBLIES, TRAJECTORIES, BATCHES,
        DECISIONS, RESOURCES, DEAD_LETTERS,
    )
}  # fmt: skip
BY_RECORD: dict[type[Record], Topic] = {t.record: t for t in TOPICS.values()}


def key_of(record: Record) -> str:
    """The key a record travels under.

    A trajectory's is its group's, so that a group's members lie in one partition; a decision's names trainer and group.
    """
    match record:
        case r.Assignment() | r.Worker():
            return record.worker_id
        case r.Assembly():
            return record.attempt_id
        case r.Trajectory():
            return record.context.group_id or record.rollout_id
        case r.Batch():
            return record.trainer_id
        case r.Decision():
            return f"{record.trainer_id}/{record.group_id}"
        case r.Resource():
            return record.name
        case r.DeadLetter():
            return record.topic
        case _:
            return record.rollout_id


def partition_of(key: str | bytes, partitions: int) -> int:
    """The partition Kafka's murmur2 partitioner gives a key; the same for Java, librdkafka and us."""
    data = key.encode() if isinstance(key, str) else key
    return (_murmur2(data) & 0x7FFFFFFF) % partitions


def _murmur2(data: bytes) -> int:
    """Kafka's variant of MurmurHash2 (seed 0x9747b28c), as an unsigned 32-bit integer."""
    m, mask, length = 0x5BD1E995, 0xFFFFFFFF, len(data)
    h = (0x9747B28C ^ length) & mask
    for i in range(0, length - 3, 4):
        k = int.from_bytes(data[i : i + 4], "little") * m & mask
        h = (h * m & mask) ^ ((k ^ k >> 24) * m & mask)
    tail = data[length & ~3 :]
    if tail:
        h = (h ^ int.from_bytes(tail, "little")) * m & mask
    h = (h ^ h >> 13) * m & mask
    return h ^ h >> 15
