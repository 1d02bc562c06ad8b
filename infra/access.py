"""What each part may do on the broker, for who writes access rules; docs/security.md holds the same as a table.

Whoever writes a topic needs Write on it, whoever reads one Read; either includes Describe.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from ..schemas.topics import (
    ASSEMBLIES,
    ASSIGNMENTS,
    ATTEMPTS,
    BATCHES,
    DEAD_LETTERS,
    DECISIONS,
    RESOURCES,
    REWARDS,
    ROLLOUTS,
    SPANS,
    TASKS,
    TOPICS,
    TRAJECTORIES,
    WORKERS,
    Topic,
)
from .groups import GROUPS

ALL = tuple(TOPICS.values())
# What `dlq replay` may put back; of the others a later record counts, or the order given last.
REPLAYED = (TASKS, SPANS, REWARDS, TRAJECTORIES, DECISIONS, RESOURCES)


@dataclass(frozen=True, slots=True)
class Access:
    """Names of groups and transactional ids stand after `<prefix>-`; one ending in * is a rule by prefix."""

    reads: tuple[Topic, ...] = ()
    writes: tuple[Topic, ...] = ()
    joins: tuple[str, ...] = ()  # groups it is a member of: Read
    asks: tuple[str, ...] = ()  # groups it asks about, or a consumer outside any group is named after: Describe
    transactional: tuple[str, ...] = ()
    others: tuple[str, ...] = ()  # further operations, on all topics

    def row(self, part: str) -> str:
        """One line of the table in docs/security.md."""
        cells = [_names(self.reads), _names(self.writes), *map(_listed, (self.joins, self.asks, self.transactional))]
        return f"| {part} | {' | '.join(cells)} | {', '.join(self.others) or '-'} |"


PARTS: dict[str, Access] = {
    "controller": Access(
        reads=(TASKS, ATTEMPTS, WORKERS, DECISIONS, RESOURCES, ROLLOUTS),
        writes=(ROLLOUTS, ATTEMPTS, ASSIGNMENTS, SPANS, DEAD_LETTERS),
        joins=("controller",),
        asks=("controller-reader",),
        transactional=("controller",),
    ),
    "assembler": Access(
        reads=(SPANS, REWARDS, ASSEMBLIES),
        writes=(TRAJECTORIES, ATTEMPTS, ASSEMBLIES, DEAD_LETTERS),
        joins=("assembler",),
        asks=("assembler-reader",),
    ),
    "worker": Access(
        reads=(ASSIGNMENTS, RESOURCES), writes=(WORKERS, SPANS, REWARDS, DEAD_LETTERS), asks=("worker-*",)
    ),
    "gateway": Access(reads=(ATTEMPTS, WORKERS), writes=(SPANS, DEAD_LETTERS), asks=("gateway-reader",)),
    "sink": Access(reads=ALL, writes=(DEAD_LETTERS,), joins=("sink",)),
    "trainer": Access(
        reads=(TRAJECTORIES, BATCHES, RESOURCES, WORKERS),
        writes=(BATCHES, DECISIONS, RESOURCES, WORKERS, DEAD_LETTERS),
        asks=("trainer-*",),
    ),
    "loader": Access(reads=(WORKERS, RESOURCES), writes=(WORKERS, DEAD_LETTERS), asks=("loader-*",)),
    "init": Access(others=("Create", "Describe")),
    "doctor": Access(reads=(TASKS,), asks=(*GROUPS, "doctor-reader"), others=("Describe", "DescribeConfigs")),
    "doctor --fix": Access(
        reads=(TASKS,),
        asks=(*GROUPS, "doctor-reader"),
        others=("Create", "Describe", "DescribeConfigs", "AlterConfigs"),
    ),
    "lag": Access(asks=tuple(GROUPS), others=("Describe",)),
    "orders, tasks": Access(reads=(ROLLOUTS,), writes=(TASKS, RESOURCES), asks=("orders-reader",)),
    "tail, export, assemble": Access(reads=ALL, asks=("tail-reader", "export-reader", "rebuild-reader")),
    "dead letters": Access(reads=(DEAD_LETTERS,), asks=("letters-reader",)),
    "dead letters, replay": Access(reads=(DEAD_LETTERS,), writes=(*REPLAYED, DEAD_LETTERS), asks=("letters-reader",)),
}


def rows() -> Iterator[str]:
    """The table in docs/security.md, a line a part."""
    return (access.row(part) for part, access in PARTS.items())


def _names(topics: tuple[Topic, ...]) -> str:
    return "all" if topics == ALL else _listed(tuple(t.name for t in topics))


def _listed(names: tuple[str, ...]) -> str:
    return ", ".join(f"`{name}`" for name in names) or "-"
