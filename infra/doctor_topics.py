"""The doctor's checks of topics: pure."""

from __future__ import annotations

from collections.abc import Mapping

from ..schemas.errors import ConfigError
from ..schemas.topics import KEEP, REWARDS, SPANS, TOPICS, Topic
from .admin import BROKER_TIME, STAMPS, Problem, min_isr, problems
from .facts import BrokerFacts, Facts, Finding, Status, TopicFacts
from .settings import Settings

FIX = "run `spanloop doctor --fix`"
MS_PER_S = 1000
HOUR_S, DAY_S = 3600, 86_400
EMBEDDED_NOTE = "the embedded broker has none: it keeps 5 MiB a partition until `spanloop up` ends"


def there(settings: Settings, broker: BrokerFacts) -> list[Finding]:
    """Whether every topic exists."""
    missing = [t.full(settings.prefix) for t in TOPICS.values() if t.name not in broker.topics]
    if not missing:
        return [Finding("topics", "ok", f"all {len(TOPICS)} are there under prefix {settings.prefix!r}")]
    if settings.profile == "embedded":
        todo = "start `spanloop up` with this prefix: only the process that holds an embedded broker can create them"
    elif wrong_counts(settings, broker):
        todo = "see to the partitions first: none is created while counts contradict the settings, for they would stay"
    else:
        todo = f"run `spanloop init`, or {FIX.removeprefix('run ')}"
    if settings.kafka:
        todo += "; a user sees only those that it may Describe (docs/security.md)"
    found = "none is there" if len(missing) == len(TOPICS) else f"missing: {', '.join(missing)}"
    return [Finding("topics", "fail", found, expected=f"{len(TOPICS)} topics of prefix {settings.prefix!r}", todo=todo)]


def partition_counts(settings: Settings, broker: BrokerFacts) -> list[Finding]:
    """Counts against the settings and each other. Nothing can be fixed here: keys would move between partitions."""
    if not broker.topics:
        return []
    wrong = wrong_counts(settings, broker)
    if not wrong:
        return [Finding("partitions", "ok", f"{settings.partitions} for topics that are spread, else 1")]
    return [Finding("partitions", "fail", p.found, expected=p.expected, todo=p.todo) for p in wrong]


def wrong_counts(settings: Settings, broker: BrokerFacts) -> list[Problem]:
    """What the partition counts found have against the settings; empty = nothing."""
    return problems(settings, {name: topic.partitions for name, topic in broker.topics.items()})


def replicas(settings: Settings, broker: BrokerFacts) -> list[Finding]:
    """Leaders, replicas, and those in sync."""
    out: list[Finding] = []
    for name, topic in broker.topics.items():
        if topic.leaderless:
            found = f"{topic.leaderless} of {topic.partitions} partitions have no leader"
            out.append(_replica(name, "fail", found, "a leader each", "start the brokers that hold them"))
        elif (need := _needed(topic)) > topic.in_sync:
            found = f"{topic.in_sync} replicas in sync, min.insync.replicas {need}: nothing can be written"
            todo = (
                "start the brokers that are down"
                if need <= topic.replicas
                else f"{FIX}, which sets min.insync.replicas, or add replicas"
            )
            out.append(_replica(name, "fail", found, f"at least {need} in sync", todo))
        elif topic.replicas < settings.replication:
            found = f"{topic.replicas} replicas"
            todo = "add replicas with kafka-reassign-partitions.sh (rpk topic alter-replicas), or lower replication"
            out.append(_replica(name, "warn", found, f"{settings.replication}, as replication says", todo))
        elif topic.in_sync < topic.replicas:
            found = f"{topic.in_sync} of {topic.replicas} replicas are in sync"
            out.append(_replica(name, "warn", found, "all", "is a broker down or catching up?"))
    if out or not broker.topics:
        return out
    return [Finding("replicas", "ok", f"{settings.replication} for each partition, all in sync")]


def _replica(about: str, status: Status, found: str, expected: str, todo: str) -> Finding:
    return Finding("replicas", status, found, about, expected, todo)


def _needed(topic: TopicFacts) -> int:
    return int((topic.config or {}).get("min.insync.replicas", "1"))


def topic_settings(settings: Settings, broker: BrokerFacts) -> list[Finding]:
    """Every topic's settings against what this version wants."""
    if not broker.topics:
        return []
    if settings.profile == "embedded":
        return [Finding("topic settings", "ok", EMBEDDED_NOTE)]
    try:
        min_isr(settings)
    except ConfigError as error:
        return [Finding("topic settings", "fail", str(error), "min_isr", "at most replication", "change the settings")]
    out: list[Finding] = []
    for name, topic in broker.topics.items():
        if topic.config is None:
            todo = "allow DescribeConfigs on the prefix to this user"
            out.append(Finding("topic settings", "warn", "cannot be read", name, "an answer", todo))
        elif wanted := alterations(settings, TOPICS[name], topic.config):
            found = ", ".join(f"{key}={topic.config.get(key, 'unset')}" for key in wanted)
            expected = ", ".join(f"{key}={value}" for key, value in wanted.items())
            out.append(Finding("topic settings", "fail", found, name, expected, FIX))
    return out or [Finding("topic settings", "ok", f"as this version wants them, on all {len(broker.topics)}")]


def alterations(settings: Settings, topic: Topic, config: Mapping[str, str]) -> dict[str, str]:
    """What has to change of a topic's settings: name -> value. What keeps more, or takes more, is let be."""
    out: dict[str, str] = {}
    if "cleanup.policy" in config and _policies(config["cleanup.policy"]) != _policies(topic.cleanup):
        out["cleanup.policy"] = topic.cleanup
    if "delete" in topic.cleanup and _shorter(config.get("retention.ms"), topic.retention_ms):
        out["retention.ms"] = str(topic.retention_ms)
    if "delete" in topic.cleanup and _shorter(config.get("retention.bytes"), KEEP):
        out["retention.bytes"] = str(KEEP)
    if int(config.get("max.message.bytes", topic.max_bytes)) < topic.max_bytes:
        out["max.message.bytes"] = str(topic.max_bytes)
    needed = min_isr(settings)
    if int(config.get("min.insync.replicas", needed)) != needed:
        out["min.insync.replicas"] = str(needed)
    if topic.broker_time and config.get(STAMPS, BROKER_TIME) != BROKER_TIME:
        out[STAMPS] = BROKER_TIME
    return out


def _policies(text: str) -> set[str]:
    return {word.strip() for word in text.split(",")}


def _shorter(have: str | None, want: int) -> bool:
    """Less is kept than wanted; -1 keeps for ever. Unset is not known to be less."""
    if have is None or int(have) == KEEP:
        return False
    return want == KEEP or int(have) < want


def retention(facts: Facts, broker: BrokerFacts) -> list[Finding]:
    """Whether what an attempt emits first is still there when it ends."""
    needed_s = max(facts.longest_attempt_s, facts.longest_task_s or 0.0)
    whose = (
        "as the assembler bears"
        if needed_s == facts.longest_attempt_s
        else "as a recent task asks for, its reward deadline included"
    )
    out: list[Finding] = []
    kept: list[str] = []
    for topic in (SPANS, REWARDS):
        config = broker.topics[topic.name].config if topic.name in broker.topics else None
        if config is None or "retention.ms" not in config:
            continue
        have_s = int(config["retention.ms"]) / MS_PER_S
        if 0 <= have_s < needed_s:
            expected = f"more than {span(needed_s)}, as long as an attempt may take ({whose})"
            todo = (
                f"{FIX}, which raises it to {span(topic.retention_ms / MS_PER_S)}"
                if needed_s <= topic.retention_ms / MS_PER_S
                else f"shorten the tasks' limits, or raise retention.ms of {topic.name!r} before they are sent"
            )
            found = f"kept for {span(have_s)}: an attempt's first events would be gone before its end"
            out.append(Finding("retention", "fail", found, topic.name, expected, todo))
        else:
            kept.append(f"{topic.name} {'for ever' if have_s < 0 else span(have_s)}")
    if out or not kept:
        return out
    return [Finding("retention", "ok", f"{', '.join(kept)}; attempts take at most {span(needed_s)}")]


def span(seconds: float) -> str:
    """A length of time as people say it."""
    if seconds >= 2 * DAY_S:
        return f"{seconds / DAY_S:g} days"
    return f"{seconds / HOUR_S:.3g} h" if seconds >= HOUR_S else f"{seconds:g} s"
