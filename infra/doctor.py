"""What is wrong with a deployment, and what to do: pure checks over gathered facts.

facts = gather(settings, …)            doctor_facts: the only part that asks anybody, every wait bounded
findings = examine(facts)              here and in doctor_topics, doctor_services
fixed = fix(settings, facts)           doctor_fix: makes what is missing, alters settings, never partition counts
"""

from __future__ import annotations

from collections.abc import Iterable

from .doctor_services import clickhouse, clock, disk, java, packages, registry
from .doctor_topics import partition_counts, replicas, retention, there, topic_settings
from .facts import Facts, Finding, Status, Trouble

WORST: tuple[Status, ...] = ("fail", "warn", "ok")
LAG_WARN = 100_000
NO_BROKER = (
    "start it, or correct bootstrap: `spanloop up` starts an embedded one, `--profile local` is infra/compose.yaml"
)


def examine(facts: Facts) -> list[Finding]:
    """Every finding, in the order in which trouble is best looked into."""
    return [
        *_broker(facts),
        *_transactions(facts),
        *_lag(facts),
        *registry(facts),
        *clickhouse(facts),
        *clock(facts),
        *disk(facts),
        *packages(facts),
        *java(facts),
    ]


def worst(findings: Iterable[Finding]) -> Status:
    """The gravest status among findings."""
    said = {f.status for f in findings}
    for status in WORST:
        if status in said:
            return status
    return "ok"


def _broker(facts: Facts) -> list[Finding]:
    settings, broker = facts.settings, facts.broker
    if broker is None:
        todo = "give --bootstrap, SPANLOOP_BOOTSTRAP or bootstrap in spanloop.toml; `spanloop up` prints one"
        return [Finding("broker", "fail", "bootstrap is not set", expected="host:port of Kafka brokers", todo=todo)]
    if isinstance(broker, Trouble):
        return [Finding("broker", "fail", broker.message, settings.bootstrap, "an answer", NO_BROKER)]
    kind = "Redpanda" if broker.cluster.startswith("redpanda.") else "embedded" if _embedded(facts) else "Kafka"
    found = f"{kind}, {broker.brokers} node{'s' * (broker.brokers != 1)}, cluster {broker.cluster or 'without id'}"
    return [
        Finding("broker", "ok", found, settings.bootstrap),
        *there(settings, broker),
        *partition_counts(settings, broker),
        *replicas(settings, broker),
        *topic_settings(settings, broker),
        *retention(facts, broker),
    ]


def _embedded(facts: Facts) -> bool:
    return facts.settings.profile == "embedded"


def _transactions(facts: Facts) -> list[Finding]:
    match facts.open_transactions:
        case None:
            return []
        case Trouble(message):
            return [Finding("transactions", "warn", message, expected="an answer", todo="run it again")]
        case held if held:
            todo = (
                "a controller that hangs or died in a transaction: the broker ends it after 30 s; if it stays, stop "
                "that controller, or find it with kafka-transactions.sh find-hanging and abort it"
            )
            return [
                Finding("transactions", "warn", f"{n} records wait behind an open transaction", at, "none", todo)
                for at, n in held.items()
            ]
        case _:
            return [Finding("transactions", "ok", "none stays open")]


def _lag(facts: Facts) -> list[Finding]:
    match facts.groups:
        case None:
            return []
        case Trouble(message):
            return [Finding("lag", "warn", message, expected="an answer", todo="run `spanloop lag`")]
        case groups:
            return [_lag_of(name, group.lag, begun=group.begun) for name, group in groups.items()]


def _lag_of(name: str, lag: int, *, begun: bool) -> Finding:
    if not begun:
        return Finding("lag", "ok", f"has not run yet under this prefix, {lag:,} records wait for it", name)
    if lag <= LAG_WARN:
        return Finding("lag", "ok", f"{lag:,} records behind", name)
    todo = f"`spanloop lag {name}` twice: does it shrink? docs/operations.md says what to look at when it grows"
    return Finding("lag", "warn", f"{lag:,} records behind", name, f"at most {LAG_WARN:,}", todo)
