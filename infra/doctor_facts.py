"""Asks broker, registry, ClickHouse and this machine what the doctor wants to know, side by side, all waits bounded."""

from __future__ import annotations

import shutil
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from concurrent.futures import TimeoutError as NotInTime  # not the builtin one before Python 3.11
from contextlib import closing
from dataclasses import replace
from email.utils import parsedate_to_datetime
from functools import partial
from importlib import metadata
from typing import TypeVar, cast

from confluent_kafka import KafkaException, libversion
from confluent_kafka.admin import (
    AdminClient,
    ConfigEntry,  # pyright: ignore[reportPrivateImportUsage]  # it is public, by its documentation
    ConfigResource,  # pyright: ignore[reportPrivateImportUsage]  # as above
)

from ..schemas.errors import SpanloopError, Unavailable
from ..schemas.records import Task
from ..schemas.serde import Decoder, schema_json
from ..schemas.topics import ASSIGNMENTS, ATTEMPTS, ROLLOUTS, TASKS, TOPICS, Topic
from .bounded import side_by_side
from .facts import (
    BrokerFacts,
    ClickHouseFacts,
    DiskFacts,
    Facts,
    GroupFacts,
    RegistryFacts,
    SubjectFacts,
    TopicFacts,
    Trouble,
)
from .groups import GROUPS
from .kafka import Position, Reader, partitions
from .kafka_config import admin, no_broker
from .lag import Lag
from .real_kafka import missing as java_missing
from .registry import Registry, connect
from .settings import Settings

# Two rounds of questions, one after the other, each this long at most: the whole stays under twenty seconds.
ROUND_S = 8.0
ASK_S = 5.0
REGISTRY_THREADS = 4  # three questions for each of many subjects
# A live controller's transaction takes milliseconds.
TRANSACTION_S = 1.0
# Written in transactions, by the controller.
TRANSACTIONAL: tuple[Topic, ...] = (ASSIGNMENTS, ATTEMPTS, ROLLOUTS)
RECENT_TASKS = 500
COORDINATOR_PAUSE_S = 1.0
T = TypeVar("T")


def gather(settings: Settings, *, longest_attempt_s: float, round_s: float = ROUND_S) -> Facts:
    """Everything that can be found out. `longest_attempt_s`: what the assembler bears. Raises nothing.

    round_s: how long each of two rounds of questions may take; what has not answered by then is a finding.
    """
    first = _Round(round_s)
    broker = first.ask("the broker", lambda: _broker(settings)) if settings.bootstrap else None
    registry = first.ask("the registry", lambda: _registry(settings)) if settings.registry_url else None
    tables = first.ask("ClickHouse", lambda: _clickhouse(settings)) if settings.clickhouse_url else None
    disk = first.ask("the disk", lambda: _disk(settings))
    java = first.ask("java", java_missing)
    said_of_java = first.answer(java)
    facts = Facts(
        settings,
        longest_attempt_s,
        broker=broker and first.answer(broker),
        registry=registry and first.answer(registry),
        clickhouse=tables and first.answer(tables),
        disk=first.answer(disk),
        packages=_packages(),
        requirements=tuple(metadata.requires("spanloop") or ()),
        java=said_of_java.message if isinstance(said_of_java, Trouble) else said_of_java,
        java_asked=True,
    )
    return _second(settings, facts, round_s)


def _second(settings: Settings, facts: Facts, round_s: float) -> Facts:
    """What can be asked only of a broker that is there and has our topics."""
    if not isinstance(facts.broker, BrokerFacts) or len(facts.broker.topics) < len(TOPICS):
        return facts
    if any(topic.partitions != partitions(settings, TOPICS[name]) for name, topic in facts.broker.topics.items()):
        return facts
    second = _Round(round_s)
    groups = second.ask("the groups' offsets", lambda: _groups(settings))
    held = second.ask("open transactions", lambda: _open_transactions(settings))
    tasks = second.ask("recent tasks", lambda: _longest_task_s(settings)) if settings.registry_url else None
    longest = tasks and second.answer(tasks)
    return replace(
        facts,
        groups=second.answer(groups),
        open_transactions=second.answer(held) if settings.profile != "embedded" else None,
        longest_task_s=None if isinstance(longest, Trouble) else longest,
    )


class _Round:
    """Questions asked side by side in threads that nobody waits for beyond the round's end."""

    def __init__(self, patience_s: float) -> None:
        self._patience_s = patience_s
        self._deadline = time.monotonic() + patience_s

    def ask(self, what: str, work: Callable[[], T]) -> tuple[str, Future[T]]:
        future: Future[T] = Future()

        def run() -> None:
            try:
                future.set_result(work())
            except Exception as error:  # noqa: BLE001 - the entry point of a thread: `answer` tells what it was
                future.set_exception(error)

        threading.Thread(target=run, name=f"ask {what}", daemon=True).start()
        return what, future

    def answer(self, asked: tuple[str, Future[T]]) -> T | Trouble:
        what, future = asked
        try:
            return future.result(max(0.0, self._deadline - time.monotonic()))
        except NotInTime:
            return Trouble(f"{what}: no answer within {self._patience_s:g} s")
        except SpanloopError as error:
            return Trouble(str(error))
        except ImportError as error:
            return Trouble(f"{what}: {error.name} is not installed here (pip install 'spanloop[all]')")
        except Exception as error:  # noqa: BLE001 - whatever a service or its client comes up with is a finding
            return Trouble(f"{what}: {type(error).__name__}: {error}"[:500])


def _broker(settings: Settings) -> BrokerFacts:
    client = admin(settings)
    try:
        found = client.list_topics(timeout=ASK_S)
    except KafkaException as error:
        raise no_broker(settings, ASK_S) from error
    names = {t.full(settings.prefix): t.name for t in TOPICS.values()}
    here = {names[full]: topic for full, topic in found.topics.items() if full in names}
    configs = _configs(settings, client, list(here))
    topics: dict[str, TopicFacts] = {}
    for name, topic in here.items():
        parts = list(topic.partitions.values())
        topics[name] = TopicFacts(
            partitions=len(parts),
            replicas=min((len(p.replicas) for p in parts), default=0),
            in_sync=min((len(p.isrs) for p in parts), default=0),
            leaderless=sum(p.leader < 0 for p in parts),
            config=configs.get(name),
        )
    ordered = {name: topics[name] for name in TOPICS if name in topics}
    return BrokerFacts(found.cluster_id or "", len(found.brokers), ordered)


def _configs(settings: Settings, client: AdminClient, names: Sequence[str]) -> dict[str, Mapping[str, str]]:
    """Topic name -> its settings; those that cannot be read are left out. The embedded broker has none to tell."""
    if settings.profile == "embedded" or not names:
        return {}
    wanted = [ConfigResource(ConfigResource.Type.TOPIC, TOPICS[name].full(settings.prefix)) for name in names]
    ask = cast(
        "Callable[..., dict[ConfigResource, Future[dict[str, ConfigEntry]]]]",
        client.describe_configs,  # pyright: ignore[reportUnknownMemberType]  # its stub leaves the future's type open
    )
    asked = ask(wanted, request_timeout=ASK_S)
    out: dict[str, Mapping[str, str]] = {}
    for name, resource in zip(names, wanted, strict=True):
        try:
            found = asked[resource].result(ASK_S)
        except (KafkaException, NotInTime):  # not allowed, or not known: the finding says that it cannot be read
            continue
        out[name] = {key: str(entry.value) for key, entry in found.items() if entry.value is not None}
    return out


def _registry(settings: Settings) -> RegistryFacts:
    ours = {topic.subject(settings.prefix): topic for topic in TOPICS.values()}
    with closing(connect(settings)) as registry:
        here = [ours[subject] for subject in registry.subjects() if subject in ours]
        subjects: dict[str, SubjectFacts] = {}

        def ask(topic: Topic) -> None:
            subjects[topic.name] = _subject(registry, topic, topic.subject(settings.prefix))

        side_by_side([partial(ask, topic) for topic in here], REGISTRY_THREADS)
        return RegistryFacts({topic.name: subjects[topic.name] for topic in here}, _ahead_s(registry))


def _subject(registry: Registry, topic: Topic, subject: str) -> SubjectFacts:
    return SubjectFacts(
        level=registry.compatibility(subject),
        versions=len(registry.versions(subject)),
        ours=registry.version_of(subject, schema_json(topic.record)),
    )


def _ahead_s(registry: Registry) -> float | None:
    """Its clock minus ours, by the date of an answer, which is cut to whole seconds."""
    before = time.time()
    date = registry.date()
    if date is None:
        return None
    return parsedate_to_datetime(date).timestamp() + 0.5 - (before + time.time()) / 2


def _clickhouse(settings: Settings) -> ClickHouseFacts:
    from .clickhouse import checksum, connect, migrations, views

    wanted = {name: checksum(text) for name, text in migrations()}
    name, text = views()
    with closing(connect(settings, readonly=True)) as client:
        database = {"d": settings.clickhouse_database}
        before = time.time()
        ask = "SELECT version() AS version, toUnixTimestamp64Milli(now64(3)) AS ms"
        client.driver.database = None
        (row,) = client.rows(ask)
        ahead_s = row["ms"] / 1000 - (before + time.time()) / 2
        tables = "SELECT name FROM system.tables WHERE database = {d:String} AND name = 'migrations'"
        applied = None
        if client.rows("SELECT name FROM system.databases WHERE name = {d:String}", database):
            applied = {}
            if client.rows(tables, database):
                rows = client.rows(f"SELECT name, checksum FROM `{settings.clickhouse_database}`.migrations FINAL")
                applied = {row["name"]: row["checksum"] for row in rows}
    return ClickHouseFacts(str(row["version"]), applied, wanted, ahead_s, {name: checksum(text)})


def _disk(settings: Settings) -> DiskFacts:
    folder = settings.home.resolve()
    while not folder.exists():
        folder = folder.parent
    usage = shutil.disk_usage(folder)
    return DiskFacts(str(folder), usage.free, usage.total)


def _packages() -> dict[str, str]:
    found = {d.name.replace("_", "-").lower(): d.version for d in metadata.distributions()}
    return {**found, "python": sys.version.split()[0], "librdkafka": libversion()[0]}


def _groups(settings: Settings) -> dict[str, GroupFacts]:
    out: dict[str, GroupFacts] = {}
    for name, topics in GROUPS.items():
        with closing(Lag(settings, name, topics)) as lag:
            try:
                parts = lag.parts()
            except Unavailable:  # a broker that has just started is still loading who coordinates the group
                time.sleep(COORDINATOR_PAUSE_S)
                parts = lag.parts()
        out[name] = GroupFacts(sum(p.lag for p in parts), any(p.committed is not None for p in parts))
    return out


def _open_transactions(settings: Settings) -> dict[str, int]:
    """Partitions whose readable end has not passed, a second later, what had been written by then."""
    at: list[Position] = [(t.name, p) for t in TRANSACTIONAL for p in range(partitions(settings, t))]
    with closing(Reader(settings, "doctor", isolation="read_uncommitted")) as written:
        ends = written.ends(at)
    time.sleep(TRANSACTION_S)
    with closing(Reader(settings, "doctor")) as readable:
        stable = readable.ends(at)
    return {f"{t}[{p}]": ends[t, p] - stable[t, p] for t, p in at if stable[t, p] < ends[t, p]}


def _longest_task_s(settings: Settings) -> float | None:
    """The longest that the last tasks may take, their reward deadline included; None = there are none."""
    position: Position = (TASKS.name, 0)
    longest: float | None = None
    with closing(connect(settings)) as registry, closing(Reader(settings, "doctor")) as reader:
        decoder = Decoder(registry)
        low, high = reader.watermarks(position)
        reader.assign({position: max(low, high - RECENT_TASKS)})
        deadline = time.monotonic() + ASK_S
        while not reader.reached({position: high}):
            if time.monotonic() > deadline:
                raise Unavailable(f"the last {RECENT_TASKS} tasks were not read within {ASK_S:g} s")
            for m in reader.poll(RECENT_TASKS, 0.1):
                seconds = _seconds(decoder, m.value)
                longest = seconds if longest is None else max(longest, seconds or 0.0)
    return longest


def _seconds(decoder: Decoder, value: bytes | None) -> float | None:
    try:
        task = None if value is None else decoder.decode(Task, value)
    except SpanloopError:  # a bad record is its readers' affair
        return None
    return None if task is None else task.limits.timeout_s + task.reward_deadline_s
