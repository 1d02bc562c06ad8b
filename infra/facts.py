"""What the doctor finds out, and what it says of it: the nouns of `doctor*.py`.

gather (doctor_facts) ─▶ Facts ─▶ examine (doctor; pure) ─▶ findings
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from .settings import Settings

Status = Literal["ok", "warn", "fail"]

# Every check, and what it holds. Findings name one of these.
CHECKS: dict[str, str] = {
    "broker": "a broker answers at bootstrap",
    "topics": "every topic is there",
    "partitions": "counts are the settings', and equal for spans, rewards and assemblies",
    "replicas": "each partition has a leader, its replicas, and as many in sync as an acknowledgement needs",
    "topic settings": "cleanup.policy, retention, limits and time stamps are as this version wants",
    "retention": "spans and rewards are kept for longer than an attempt may take",
    "transactions": "no transaction stays open, which would hold readers back",
    "lag": "how far each consumer group is behind",
    "registry": "the schema registry answers",
    "subjects": "every subject is FULL_TRANSITIVE and knows this version's schema",
    "clickhouse": "ClickHouse answers and is recent enough",
    "tables": "this version's migrations are applied, unchanged, and its views",
    "clock": "this machine's clock agrees with those of registry and ClickHouse",
    "disk": "there is room where runs are kept",
    "packages": "installed packages are of versions that this one works with",
    "java": "whether a real Kafka can be started on this machine",
}


@dataclass(frozen=True, slots=True)
class Finding:
    """What one check says of one thing."""

    check: str  # of CHECKS
    status: Status
    found: str
    about: str = ""  # topic, group, service; empty = the check says it
    expected: str = ""  # empty where all is well
    todo: str = ""  # empty where there is nothing to do


@dataclass(frozen=True, slots=True)
class Trouble:
    """Why something could not be found out."""

    message: str


@dataclass(frozen=True, slots=True)
class TopicFacts:
    """A topic as the broker has it."""

    partitions: int
    replicas: int = 1  # the fewest of any partition
    in_sync: int = 1  # the fewest of any partition
    leaderless: int = 0  # partitions without a leader
    config: Mapping[str, str] | None = None  # null = cannot be asked for


@dataclass(frozen=True, slots=True)
class BrokerFacts:
    """The cluster, and those of our topics that are there, by name without prefix."""

    cluster: str
    brokers: int
    topics: Mapping[str, TopicFacts]


@dataclass(frozen=True, slots=True)
class SubjectFacts:
    """A subject as the registry has it."""

    level: str | None  # its own compatibility level; null = it has none
    versions: int = 0  # schemas registered
    ours: int = 0  # which of them is this version's; 0 = none


@dataclass(frozen=True, slots=True)
class RegistryFacts:
    """The registry's subjects by topic name, and its clock."""

    subjects: Mapping[str, SubjectFacts]
    ahead_s: float | None = None  # its clock minus ours; null = it does not tell


@dataclass(frozen=True, slots=True)
class ClickHouseFacts:
    """ClickHouse and its tables."""

    version: str
    applied: Mapping[str, str] | None  # migration or file of views -> checksum; null = there is no database
    wanted: Mapping[str, str]  # the same of this version's
    ahead_s: float = 0.0  # its clock minus ours
    views: Mapping[str, str] = field(default_factory=dict[str, str])  # file of views -> this version's checksum

    @property
    def missing(self) -> list[str]:
        """Migrations of this version that were not applied, and views that are not its own: they can be made again."""
        applied = self.applied or {}
        old = [name for name, checksum in self.views.items() if applied.get(name) != checksum]
        return [*sorted(self.wanted.keys() - applied.keys()), *old]

    @property
    def changed(self) -> list[str]:
        """Migrations that were applied with other content."""
        applied = self.applied or {}
        return sorted(name for name in self.wanted.keys() & applied.keys() if self.wanted[name] != applied[name])


@dataclass(frozen=True, slots=True)
class GroupFacts:
    """How far a group is behind."""

    lag: int  # records
    begun: bool  # it has committed offsets


@dataclass(frozen=True, slots=True)
class DiskFacts:
    """The file system that holds `home`. Bytes."""

    path: str
    free: int
    total: int


@dataclass(frozen=True, slots=True)
class Facts:
    """All there is to know. What is null was not asked for: it has no address, or what it rests on is away."""

    settings: Settings
    longest_attempt_s: float  # what the assembler bears
    longest_task_s: float | None = None  # the longest that recent tasks ask for, their reward deadline included
    broker: BrokerFacts | Trouble | None = None
    registry: RegistryFacts | Trouble | None = None
    clickhouse: ClickHouseFacts | Trouble | None = None
    groups: Mapping[str, GroupFacts] | Trouble | None = None
    open_transactions: Mapping[str, int] | Trouble | None = None  # topic[partition] -> records held back
    disk: DiskFacts | Trouble | None = None
    packages: Mapping[str, str] = field(default_factory=dict[str, str])  # installed: name -> version
    requirements: tuple[str, ...] = ()  # of this version, as pip writes them
    java: str | None = None  # why no real Kafka can be started here; null = it can
    java_asked: bool = False
