"""The doctor's checks of registry, ClickHouse, clocks and this machine: pure."""

from __future__ import annotations

import re
from collections.abc import Mapping

from ..schemas.topics import TOPICS
from .doctor_topics import FIX
from .facts import ClickHouseFacts, DiskFacts, Facts, Finding, RegistryFacts, SubjectFacts, Trouble
from .masking import without_password
from .registry import COMPATIBILITY

# The sink's statements are tested on 26; from this one on the Avro format and block tokens are as they rely on.
CLICKHOUSE_MIN = (25, 3)
# HTTP dates have whole seconds. Deadlines are compared between machines: a claim has 30 s.
SKEW_WARN_S, SKEW_FAIL_S = 3.0, 15.0
DISK_WARN, DISK_FAIL = 10 << 30, 1 << 30
REQUIREMENT = re.compile(r"([\w.-]+)\s*((?:[<>=!~]=?[\w.]+,?)*)")
BOUND = re.compile(r"(>=|==|<)([\d.]+)")
SYNC_CLOCK = "let both keep time by NTP (chrony, systemd-timesyncd)"


def registry(facts: Facts) -> list[Finding]:
    """Registry, subjects, levels, schemas."""
    url = without_password(facts.settings.registry_url)
    match facts.registry:
        case None:
            todo = "give --registry-url, SPANLOOP_REGISTRY_URL or registry_url in spanloop.toml"
            return [Finding("registry", "fail", "registry_url is not set", expected="its address", todo=todo)]
        case Trouble(message):
            todo = "is it running, and is this its root with Confluent's routes (Apicurio: …/apis/ccompat/v7)?"
            return [Finding("registry", "fail", message, url, "an answer", todo)]
        case RegistryFacts(subjects):
            wrong = [f for topic in TOPICS.values() if (f := _subject(facts, topic.name, subjects)) is not None]
            fine = Finding("subjects", "ok", f"all {len(TOPICS)} are {COMPATIBILITY} with this version's schema")
            return [Finding("registry", "ok", "answers", url), *(wrong or [fine])]


def _subject(facts: Facts, name: str, subjects: Mapping[str, SubjectFacts]) -> Finding | None:
    about, found = TOPICS[name].subject(facts.settings.prefix), subjects.get(name)
    if found is None or not found.versions:
        return Finding("subjects", "fail", "is not registered", about, "this version's schema", FIX)
    if not found.ours:
        said = f"does not hold this version's schema among its {found.versions}"
        return Finding("subjects", "fail", said, about, "it registered", f"{FIX}, which registers it where it fits")
    if found.level != COMPATIBILITY:
        said = f"has compatibility {found.level or 'of the registry at large'}"
        return Finding("subjects", "warn", said, about, COMPATIBILITY, FIX)
    if found.ours < found.versions:
        said = f"holds schema {found.versions}, this version writes {found.ours}"
        todo = "a newer spanloop works here too; both read each other, upgrade this one when convenient"
        return Finding("subjects", "ok", said, about, todo=todo)
    return None


def clickhouse(facts: Facts) -> list[Finding]:
    """ClickHouse, its version, its tables."""
    settings, found = facts.settings, facts.clickhouse
    match found:
        case None:
            todo = "set clickhouse_url (SPANLOOP_CLICKHOUSE_URL) for sink, SQL and dashboard; training goes without"
            return [Finding("clickhouse", "warn", "clickhouse_url is not set", expected="its address", todo=todo)]
        case Trouble(message):
            todo = "start it, or correct clickhouse_url; training goes on without, the sink waits"
            return [Finding("clickhouse", "fail", message, expected="an answer", todo=todo)]
        case ClickHouseFacts(version):
            if _numbers(version)[:2] < CLICKHOUSE_MIN:
                expected = f"{'.'.join(map(str, CLICKHOUSE_MIN))} or later"
                return [Finding("clickhouse", "fail", f"version {version}", expected=expected, todo="upgrade it")]
            return [Finding("clickhouse", "ok", f"version {version}"), *_tables(found, settings.clickhouse_database)]


def _tables(found: ClickHouseFacts, database: str) -> list[Finding]:
    if found.applied is None:
        return [Finding("tables", "fail", "the database does not exist", database, "it", FIX)]
    if found.changed:
        todo = "a migration is never changed: run the version it was applied by, or choose another clickhouse_database"
        said = f"applied with other content: {', '.join(found.changed)}"
        return [Finding("tables", "fail", said, database, "this version's", todo)]
    if found.missing:
        return [Finding("tables", "fail", f"not applied: {', '.join(found.missing)}", database, "all applied", FIX)]
    return [Finding("tables", "ok", f"{len(found.wanted)} migrations applied, and the views", database)]


def clock(facts: Facts) -> list[Finding]:
    """Clocks of other machines against this one's."""
    ahead = {
        name: found.ahead_s
        for name, found in (("registry", facts.registry), ("clickhouse", facts.clickhouse))
        if isinstance(found, RegistryFacts | ClickHouseFacts) and found.ahead_s is not None
    }
    out: list[Finding] = []
    for name, seconds in ahead.items():
        size = abs(seconds)
        said = f"{size:.1f} s {'ahead of' if seconds > 0 else 'behind'} this machine's"
        if size < SKEW_WARN_S:
            out.append(Finding("clock", "ok", f"agrees within {SKEW_WARN_S:g} s", name))
        else:
            why = f"within {SKEW_WARN_S:g} s: claims and time-outs compare clocks"
            out.append(Finding("clock", "fail" if size >= SKEW_FAIL_S else "warn", said, name, why, SYNC_CLOCK))
    return out


def disk(facts: Facts) -> list[Finding]:
    """Room where runs are kept."""
    match facts.disk:
        case None:
            return []
        case Trouble(message):
            return [Finding("disk", "warn", message, expected="a folder", todo="set home (SPANLOOP_HOME)")]
        case DiskFacts(path, free, total):
            found = f"{free / (1 << 30):.1f} of {total / (1 << 30):.0f} GiB free"
            if free >= DISK_WARN:
                return [Finding("disk", "ok", found, path)]
            expected = f"{DISK_WARN >> 30} GiB for tables, checkpoints and weights"
            todo = "make room, or set home (SPANLOOP_HOME) to another disk"
            return [Finding("disk", "fail" if free < DISK_FAIL else "warn", found, path, expected, todo)]


def packages(facts: Facts) -> list[Finding]:
    """Installed packages against what this version requires; what is not installed is another machine's affair."""
    wrong: list[Finding] = []
    for requirement in facts.requirements:
        found = REQUIREMENT.match(requirement)
        if found is None or (have := facts.packages.get(_canonical(found[1]))) is None:
            continue
        bad = [op + want for op, want in BOUND.findall(found[2]) if not _holds(have, op, want)]
        if bad:
            todo = f"pip install '{found[1]}{found[2]}'"
            wrong.append(Finding("packages", "fail", f"version {have}", found[1], found[2], todo))
    if wrong:
        return wrong
    told = [f"{name} {facts.packages[name]}" for name in TOLD if name in facts.packages]
    return [Finding("packages", "ok", ", ".join(told) or "none is known")]


# What people are asked for when they report trouble.
TOLD = (
    "spanloop", "python", "confluent-kafka", "librdkafka", "faust-streaming", "clickhouse-connect", "chdb", "torch",
    "verl",
)  # fmt: skip


def java(facts: Facts) -> list[Finding]:
    """Information only: nothing here needs Java unless a real Kafka is to be started."""
    if not facts.java_asked:
        return []
    if facts.java is None:
        return [Finding("java", "ok", "`spanloop up --kafka` can start a real Kafka here")]
    return [Finding("java", "ok", f"no real Kafka from here ({facts.java}); Redpanda by infra/compose.yaml needs none")]


def _canonical(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(int(n) for n in re.findall(r"\d+", version.split("+")[0])[:4])


def _holds(have: str, op: str, want: str) -> bool:
    a, b = _numbers(have), _numbers(want)
    width = max(len(a), len(b))
    a, b = a + (0,) * (width - len(a)), b + (0,) * (width - len(b))
    return a >= b if op == ">=" else a == b if op == "==" else a < b
