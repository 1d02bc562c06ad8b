"""Makes a prefix ready to run on: topics, subjects, compatibility; and says what is wrong with one that exists."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from concurrent.futures import Future
from contextlib import closing
from dataclasses import dataclass
from typing import cast

from confluent_kafka import KafkaError, KafkaException
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from ..schemas.errors import ConfigError
from ..schemas.topics import ASSEMBLIES, REWARDS, SPANS, TOPICS, Topic
from .kafka_config import METADATA_TIMEOUT_S, admin, no_broker, partitions
from .registry import connect, register_all
from .settings import Settings

CREATE_TIMEOUT_S = 30.0
# The assembler is given the same partition of all three at once.
TOGETHER = (SPANS, REWARDS, ASSEMBLIES)
STAMPS, BROKER_TIME = "message.timestamp.type", "LogAppendTime"


@dataclass(frozen=True, slots=True)
class Problem:
    """What is wrong with something that exists, and what to do."""

    found: str
    expected: str
    todo: str

    def __str__(self) -> str:
        return f"{self.found}, expected {self.expected}; {self.todo}"


def init(settings: Settings) -> dict[str, int]:
    """Creates what is missing, checks what is there; may be run again. Returns topic name -> schema id.

    Raises ConfigError naming what contradicts the settings, Unavailable, SchemaMismatch.
    """
    client = admin(settings)
    there = check(settings, client)
    missing = [t for t in TOPICS.values() if t.name not in there]
    if missing:
        create(settings, missing, client)
    return register(settings)


def register(settings: Settings) -> dict[str, int]:
    """Sets every subject to FULL_TRANSITIVE and registers this version's schemas; topic name -> schema id."""
    with closing(connect(settings)) as registry:
        for topic in TOPICS.values():
            registry.set_compatibility(topic.subject(settings.prefix))
        return register_all(registry, settings)


def check(settings: Settings, client: AdminClient | None = None) -> dict[str, int]:
    """Partitions of the topics there are. Raises ConfigError naming each with another number than the settings say.

    A part that went on would read partitions that are not there, or miss those that it does not know of.
    """
    there = counts(settings, client)
    if wrong := problems(settings, there):
        raise ConfigError("; ".join(map(str, wrong)))
    return there


def counts(settings: Settings, client: AdminClient | None = None) -> dict[str, int]:
    """Topic name -> partitions, for the topics of this prefix that exist. Raises Unavailable."""
    try:
        found = (client or admin(settings)).list_topics(timeout=METADATA_TIMEOUT_S).topics
    except KafkaException as error:
        raise no_broker(settings, METADATA_TIMEOUT_S) from error
    full = {t.full(settings.prefix): t.name for t in TOPICS.values()}
    return {full[name]: len(topic.partitions) for name, topic in found.items() if name in full}


def problems(settings: Settings, there: Mapping[str, int]) -> list[Problem]:
    """What existing partition counts have against the settings; empty = nothing."""
    together = {t.name: there[t.name] for t in TOGETHER if t.name in there}
    if len(set(together.values())) > 1:
        (name, count), *others = together.items()
        rest = ", ".join(f"{other!r} {n}" for other, n in others)
        return [Problem(f"topic {name!r} has {count} partitions, {rest}", "equal counts", _remedy(settings))]
    return [
        Problem(f"topic {name!r} has {have} partitions", str(want), _remedy(settings))
        for name, have in there.items()
        if have != (want := partitions(settings, TOPICS[name]))
    ]


def _remedy(settings: Settings) -> str:
    return (
        f"partition counts are fixed for a prefix's life: set SPANLOOP_PARTITIONS to what prefix {settings.prefix!r} "
        "was made with, or choose a new SPANLOOP_PREFIX"
    )


def create(settings: Settings, topics: list[Topic], client: AdminClient | None = None) -> None:
    """Creates topics that are missing. Raises ConfigError where the broker refuses."""
    if settings.profile == "embedded":
        names = ", ".join(t.full(settings.prefix) for t in topics)
        raise ConfigError(
            f"the embedded broker lacks {names}, and only the process that holds it can create them; "
            "start `spanloop up` with this prefix"
        )
    client = client or admin(settings)
    wanted = [new_topic(settings, t) for t in topics]
    start = cast("Callable[..., dict[str, Future[None]]]", client.create_topics)  # pyright: ignore[reportUnknownMemberType]  # its stub leaves the future's type open
    made = start(wanted, request_timeout=CREATE_TIMEOUT_S)
    for name, future in made.items():
        try:
            future.result()
        except KafkaException as error:
            reason = cast("KafkaError", error.args[0])
            if reason.code() != KafkaError.TOPIC_ALREADY_EXISTS:  # another init was faster
                raise ConfigError(f"topic {name!r} on {settings.bootstrap}: {reason.str()}") from error


def min_isr(settings: Settings) -> int:
    """Replicas that must have a record before it is acknowledged. Raises ConfigError where there are not as many."""
    if settings.min_isr > settings.replication:
        raise ConfigError(
            f"setting min_isr: {settings.min_isr} replicas must have each record, but setting replication makes "
            f"{settings.replication}: nothing could be written; lower min_isr or raise replication"
        )
    return settings.min_isr or max(1, settings.replication - 1)


def new_topic(settings: Settings, topic: Topic) -> NewTopic:
    """A topic as it is to be created."""
    config = {
        "cleanup.policy": topic.cleanup,
        "retention.ms": str(topic.retention_ms),
        "max.message.bytes": str(topic.max_bytes),
        "min.insync.replicas": str(min_isr(settings)),
    }
    if topic.broker_time:
        config[STAMPS] = BROKER_TIME
    return NewTopic(
        topic.full(settings.prefix),
        num_partitions=partitions(settings, topic),
        replication_factor=settings.replication,
        config=config,
    )
