"""What was read for an audit: the log, the tables, and what those who fed the loop know. Plain data."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property
from typing import TypeVar

from spanloop.infra.kafka import Position
from spanloop.schemas.records import AttemptEnd, Rollout, SpanBatch, Trajectory
from spanloop.schemas.topics import TOPICS, Record

R = TypeVar("R", bound=Record)
At = tuple[int, int]  # partition, offset
# Who wrote the records that only fill topics up; nobody acts on them.
FILLER = "filler"


@dataclass(frozen=True, slots=True)
class Line:
    """One visible record of the log; record None = a tombstone, or what nobody can read."""

    topic: str
    partition: int
    offset: int
    record: Record | None
    key: bytes | None = None
    tombstone: bool = False


@dataclass(slots=True)
class Tables:
    """What ClickHouse shows; everything as its views give it, except `rows` and `ingest`."""

    rows: dict[str, list[At]] = field(default_factory=dict[str, "list[At]"])  # by topic, where a row is a record
    spans: list[tuple[str, str]] = field(default_factory=list[tuple[str, str]])  # attempt, span
    rewards: list[tuple[str, float | None]] = field(default_factory=list[tuple[str, "float | None"]])  # id, value
    ends: list[tuple[str, str]] = field(default_factory=list[tuple[str, str]])  # attempt, status
    trajectories: list[tuple[str, int, str]] = field(
        default_factory=list[tuple[str, int, str]]
    )  # attempt, rev., digest
    rollouts: list[tuple[str, str, bool, str]] = field(  # rollout, status, final, attempt of its trajectory
        default_factory=list[tuple[str, str, bool, str]]
    )
    decisions: list[tuple[str, str]] = field(default_factory=list[tuple[str, str]])  # run, group
    letters: list[tuple[str, str, int, int]] = field(  # consumer, topic, partition, offset
        default_factory=list[tuple[str, str, int, int]]
    )
    ingest: list[tuple[str, int, int, int, int]] = field(  # topic, partition, first, last, records
        default_factory=list[tuple[str, int, int, int, int]]
    )
    tombstones: dict[str, list[At]] = field(default_factory=dict[str, "list[At]"])


@dataclass(frozen=True, slots=True)
class Strike:
    """What a fault has done if it struck at all, as the log shows it."""

    told: str
    holds: Callable[[Seen], bool]


@dataclass(slots=True)
class Fed:
    """What the loop was given, by those who gave it."""

    tasks: dict[str, float] = field(default_factory=dict[str, float])  # acknowledged rollouts -> reward asked for
    groups: dict[str, list[str]] = field(default_factory=dict[str, "list[str]"])  # to be trained -> their rollouts
    answers: list[tuple[str, str]] = field(default_factory=list[tuple[str, str]])  # attempt, call the agent saw whole
    spans: list[tuple[str, str]] = field(default_factory=list[tuple[str, str]])  # attempt, span the agent emitted
    rewards: list[tuple[str, str]] = field(default_factory=list[tuple[str, str]])  # attempt, reward the agent emitted
    may_fail: set[str] = field(default_factory=set[str])  # rollouts that cannot succeed
    poison: dict[tuple[str, int, int], frozenset[str]] = field(  # where -> consumers that must set it aside
        default_factory=dict[tuple[str, int, int], frozenset[str]]
    )
    strikes: list[Strike] = field(default_factory=list["Strike"])  # what faults must have done
    crashes: list[str] = field(default_factory=list[str])  # processes that ended for a reason nobody foresaw


@dataclass
class Seen:
    """All of it, up to `ends`; later records are nobody's business yet."""

    lines: list[Line]  # by topic, partition, offset
    ends: dict[Position, int]
    tables: Tables
    fed: Fed
    committed: dict[str, dict[Position, int]] = field(default_factory=dict[str, "dict[Position, int]"])  # by group
    replayed: dict[str, tuple[int, str]] = field(default_factory=dict[str, "tuple[int, str]"])  # undisturbed assembler

    def of(self, kind: type[R]) -> list[R]:
        """Records of one kind in log order, which is only an order within a partition."""
        return [line.record for line in self.lines if isinstance(line.record, kind)]

    def by_position(self) -> dict[Position, list[Line]]:
        """Lines of each partition, in offset order."""
        out: dict[Position, list[Line]] = {at: [] for at in self.ends}
        for line in self.lines:
            out[line.topic, line.partition].append(line)
        return out

    def within(self, topic: str, at: At) -> bool:
        """Whether a place in the log is before the end of the audit."""
        return at[1] < self.ends.get((topic, at[0]), 0)

    @cached_property
    def last_revisions(self) -> dict[str, Trajectory]:
        """attempt -> its trajectory of the highest revision; of equal ones that with an end marker."""
        out: dict[str, Trajectory] = {}
        for t in self.of(Trajectory):
            held = out.get(t.attempt_id)
            if held is None or (t.revision, "no_end" not in t.flags) >= (held.revision, "no_end" not in held.flags):
                out[t.attempt_id] = t
        return out

    @cached_property
    def first_ends(self) -> dict[str, AttemptEnd]:
        """attempt -> the end marker that decides it."""
        out: dict[str, AttemptEnd] = {}
        for batch in self.of(SpanBatch):
            if batch.end is not None:
                out.setdefault(batch.attempt_id, batch.end)
        return out

    @cached_property
    def last_states(self) -> dict[str, Rollout]:
        """rollout -> its newest state."""
        return {r.rollout_id: r for r in self.of(Rollout)}


def every_position(partitions: int) -> list[Position]:
    """All partitions of all topics."""
    return [(t.name, p) for t in TOPICS.values() for p in range(partitions if t.spread else 1)]
