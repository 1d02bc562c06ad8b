"""What each part may do on the broker, for who writes access rules; docs/security.md holds the same as a table.

Whoever writes a topic needs Write and Describe on it, whoever reads one Read and Describe.
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

ALL = tuple(TOPICS.values())


@dataclass(frozen=True, slots=True)
class Access:
    """Names of groups and transactional ids stand after `<prefix>-`; one ending in * is a rule by prefix."""

    reads: tuple[Topic, ...] = ()
    writes: tuple[Topic, ...] = ()
    groups: tuple[str, ...] = ()
    transactional: tuple[str, ...] = ()
    cluster: tuple[str, ...] = ()  # operations on the cluster

    def row(self, part: str) -> str:
        """One line of the table in docs/security.md."""
        cells = [_names(self.reads), _names(self.writes), _listed(self.groups), _listed(self.transactional)]
        return f"| {part} | {' | '.join(cells)} | {', '.join(self.cluster) or '-'} |"


PARTS: dict[str, Access] = {
    "controller": Access(
        reads=(TASKS, ATTEMPTS, WORKERS, DECISIONS, RESOURCES, ROLLOUTS),
        writes=(ROLLOUTS, ATTEMPTS, ASSIGNMENTS, SPANS, DEAD_LETTERS),
        groups=("controller*",),
        transactional=("controller",),
    ),
    "assembler": Access(
        reads=(SPANS, REWARDS, ASSEMBLIES),
        writes=(TRAJECTORIES, ATTEMPTS, ASSEMBLIES, DEAD_LETTERS),
        groups=("assembler*",),
    ),
    "worker": Access(
        reads=(ASSIGNMENTS, RESOURCES), writes=(WORKERS, SPANS, REWARDS, DEAD_LETTERS), groups=("worker-*",)
    ),
    "gateway": Access(reads=(ATTEMPTS, WORKERS), writes=(SPANS, DEAD_LETTERS), groups=("gateway*",)),
    "sink": Access(reads=ALL, writes=(DEAD_LETTERS,), groups=("sink*",)),
    "trainer": Access(
        reads=(TRAJECTORIES, BATCHES, RESOURCES, WORKERS),
        writes=(BATCHES, DECISIONS, RESOURCES, WORKERS, DEAD_LETTERS),
        groups=("trainer-*",),
    ),
    "loader": Access(reads=(WORKERS, RESOURCES), writes=(WORKERS, DEAD_LETTERS), groups=("loader-*",)),
    "init": Access(reads=ALL, cluster=("Create",)),
    "doctor": Access(reads=ALL, groups=("*",), cluster=("DescribeConfigs on topics",)),
    "lag": Access(reads=ALL, groups=("*",)),
    "orders, tasks": Access(reads=(ROLLOUTS,), writes=(TASKS, RESOURCES), groups=("orders*",)),
    "tail, export, rebuild": Access(reads=ALL, groups=("tail*", "export*", "rebuild*")),
    "dead letters, with replay": Access(reads=ALL, writes=ALL, groups=("letters*",)),
}


def rows() -> Iterator[str]:
    """The table in docs/security.md, a line a part."""
    return (access.row(part) for part, access in PARTS.items())


def _names(topics: tuple[Topic, ...]) -> str:
    return "all" if topics == ALL else _listed(tuple(t.name for t in topics))


def _listed(names: tuple[str, ...]) -> str:
    return ", ".join(f"`{name}`" for name in names) or "-"
