"""What the doctor says of a deployment: pure checks over facts made by hand."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import pytest

from spanloop.infra import admin, doctor_fix
from spanloop.infra.doctor import examine, worst
from spanloop.infra.facts import (
    CHECKS,
    BrokerFacts,
    ClickHouseFacts,
    DiskFacts,
    Facts,
    Finding,
    GroupFacts,
    RegistryFacts,
    SubjectFacts,
    TopicFacts,
    Trouble,
)
from spanloop.infra.kafka import partitions
from spanloop.infra.settings import Settings
from spanloop.schemas.topics import DAY_MS, TOPICS, Topic

HOUR_S = 3600.0
SETTINGS = Settings(
    prefix="pool", bootstrap="b:9092", registry_url="http://r:1", clickhouse_url="http://c:1", replication=3
)


def config_of(name: str) -> dict[str, str]:
    """A topic's settings as `spanloop init` makes them."""
    return {key: str(value) for key, value in (admin.new_topic(SETTINGS, TOPICS[name]).config or {}).items()}


def topic(name: str, **changes: str) -> TopicFacts:
    """A topic as it should be, but for `changes` of its settings (dots as __)."""
    config = config_of(name) | {key.replace("__", "."): value for key, value in changes.items()}
    return TopicFacts(partitions(SETTINGS, TOPICS[name]), 3, 3, 0, config)


def broker(changes: Mapping[str, TopicFacts | None] | None = None) -> BrokerFacts:
    """A cluster as it should be, but for some topics; None = it is not there."""
    topics = {name: topic(name) for name in TOPICS} | dict(changes or {})
    return BrokerFacts("abc", 3, {name: facts for name, facts in topics.items() if facts is not None})


SUBJECTS = {name: SubjectFacts("FULL_TRANSITIVE", 1, 1) for name in TOPICS}
WELL = Facts(
    SETTINGS,
    24 * HOUR_S,
    broker=broker(),
    registry=RegistryFacts(SUBJECTS, 0.4),
    clickhouse=ClickHouseFacts("26.6.1.5", {"0001_x.sql": "aa"}, {"0001_x.sql": "aa"}, 0.01),
    groups={"sink": GroupFacts(7, True)},
    open_transactions={},
    disk=DiskFacts("/runs", 100 << 30, 200 << 30),
    packages={"httpx": "0.28.1", "spanloop": "0.1.0"},
    requirements=("httpx>=0.28", 'torch<2.14,>=2.11; extra == "trainer"'),
    java_asked=True,
)


def of(check: str, facts: Facts) -> list[Finding]:
    """What is not well by one check, and by no other."""
    wrong = [f for f in examine(facts) if f.status != "ok"]
    assert {f.check for f in wrong} <= {check}, wrong
    return wrong


def with_topics(changes: Mapping[str, TopicFacts | None]) -> Facts:
    return replace(WELL, broker=broker(changes))


def test_a_deployment_as_it_should_be_is_well_by_every_check() -> None:
    findings = examine(WELL)
    assert worst(findings) == "ok"
    assert {f.check for f in findings} == CHECKS.keys()
    assert not [f for f in findings if f.todo]


def test_every_finding_that_is_not_well_says_what_was_expected_and_what_to_do() -> None:
    nothing = Facts(Settings(), HOUR_S)
    away = Trouble("no answer within 5 s")
    down = Facts(SETTINGS, HOUR_S, broker=away, registry=away, clickhouse=away, disk=away)
    half = replace(WELL, groups=away, open_transactions=away)
    for facts in (nothing, down, half):
        for f in examine(facts):
            assert f.status == "ok" or (f.expected and f.todo), f
            assert f.check in CHECKS
    assert [f.status for f in examine(nothing)] == ["fail", "fail", "warn", "ok"]
    assert worst(examine(down)) == "fail"


def test_a_missing_topic_is_named_with_what_makes_it() -> None:  # BR-12
    (told,) = of("topics", with_topics({"rewards": None}))
    assert (told.status, told.found) == ("fail", "missing: pool-rewards")
    assert told.todo == "run `spanloop init`, or `spanloop doctor --fix`"
    secured = SETTINGS.with_(kafka={"security.protocol": "SASL_SSL"})
    (told,) = of("topics", replace(with_topics({"rewards": None}), settings=secured))
    assert told.todo.endswith("; a user sees only those that it may Describe (docs/security.md)")
    (embedded,) = of("topics", replace(with_topics({"rewards": None}), settings=SETTINGS.with_(profile="embedded")))
    assert "start `spanloop up` with this prefix" in embedded.todo


def test_wrong_partition_counts_fail_and_nothing_offers_to_fix_them() -> None:  # BR-12
    (told,) = of("partitions", with_topics({"rewards": replace(topic("rewards"), partitions=8)}))
    assert told.found == "topic 'spans' has 4 partitions, 'rewards' 8, 'assemblies' 4"
    assert "fixed for a prefix's life" in told.todo
    assert "--fix" not in told.todo
    (told,) = of("partitions", with_topics({"tasks": replace(topic("tasks"), partitions=3)}))
    assert (told.found, told.expected) == ("topic 'tasks' has 3 partitions", "1")


def test_no_topic_is_created_while_partition_counts_contradict_the_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    spread = {name: replace(topic(name), partitions=8) for name, known in TOPICS.items() if known.spread}
    facts = with_topics({**spread, "assemblies": None})
    found = {f.check: f for f in examine(facts) if f.status != "ok"}
    assert found["topics"].found == "missing: pool-assemblies"
    assert found["topics"].todo.startswith("see to the partitions first: none is created while counts contradict")
    assert "set SPANLOOP_PARTITIONS to what prefix 'pool' was made with" in found["partitions"].todo

    def create(settings: Settings, topics: list[Topic]) -> None:
        pytest.fail(f"{topics} with {settings.partitions} partitions beside those of 8")

    monkeypatch.setattr(doctor_fix, "create", create)
    assert doctor_fix.fix(SETTINGS, replace(facts, registry=None, clickhouse=None)) == []


def test_spans_kept_for_less_than_an_attempt_may_take_fail() -> None:  # BR-12
    found = {f.check: f for f in examine(with_topics({"spans": topic("spans", retention__ms="3600000")}))}
    told = found["retention"]
    assert (told.status, told.about) == ("fail", "spans")
    assert told.found == "kept for 1 h: an attempt's first events would be gone before its end"
    assert told.expected.startswith("more than 24 h, as long as an attempt may take")
    assert told.todo == "run `spanloop doctor --fix`, which raises it to 7 days"
    assert found["topic settings"].found == "retention.ms=3600000"


def test_a_task_that_asks_for_longer_than_spans_are_kept_fails() -> None:  # BR-12
    spans, rewards = of("retention", replace(WELL, longest_task_s=8 * 24 * HOUR_S))
    assert (spans.about, rewards.about) == ("spans", "rewards")
    assert spans.expected == (
        "more than 8 days, as long as an attempt may take (as a recent task asks for, its reward deadline included)"
    )
    assert "--fix" not in spans.todo  # it would not help


@pytest.mark.parametrize(
    ("name", "changes", "expected"),
    [
        ("rollouts", {"cleanup__policy": "delete"}, "cleanup.policy=compact"),
        ("tasks", {"retention__ms": str(7 * DAY_MS)}, "retention.ms=-1"),
        ("spans", {"retention__bytes": "1000000"}, "retention.bytes=-1"),
        ("spans", {"max__message__bytes": "1048588"}, "max.message.bytes=16777216"),
        ("tasks", {"min__insync__replicas": "1"}, "min.insync.replicas=2"),
        ("trajectories", {"message__timestamp__type": "CreateTime"}, "message.timestamp.type=LogAppendTime"),
    ],
)
def test_a_setting_that_loses_or_refuses_records_fails(name: str, changes: dict[str, str], expected: str) -> None:
    (told,) = of("topic settings", with_topics({name: topic(name, **changes)}))
    assert (told.status, told.about, told.expected) == ("fail", name, expected)


@pytest.mark.parametrize(
    ("name", "changes"),
    [
        ("spans", {"retention__ms": "-1"}),
        ("spans", {"retention__ms": str(30 * DAY_MS)}),
        ("assemblies", {"cleanup__policy": "delete, compact"}),
        ("tasks", {"max__message__bytes": "33554432"}),
        ("rollouts", {"retention__ms": "1000"}),  # compacted only: nothing is deleted by age
        ("spans", {"message__timestamp__type": "LogAppendTime"}),
    ],
)
def test_what_keeps_more_is_well_and_is_not_altered(name: str, changes: dict[str, str]) -> None:
    facts = with_topics({name: topic(name, **changes)})
    assert of("topic settings", facts) == []
    assert isinstance(facts.broker, BrokerFacts)
    assert doctor_fix.wanted(SETTINGS, facts.broker) == {}


def test_the_fix_alters_what_is_wrong_and_no_more() -> None:
    wrong = broker({"spans": topic("spans", retention__ms="1000"), "tasks": replace(topic("tasks"), partitions=9)})
    assert doctor_fix.wanted(SETTINGS, wrong) == {"spans": {"retention.ms": str(7 * DAY_MS)}}


@pytest.mark.parametrize(
    ("facts", "status", "found"),
    [
        (replace(topic("spans"), leaderless=2), "fail", "2 of 4 partitions have no leader"),
        (replace(topic("spans"), in_sync=1), "fail", "1 replicas in sync, min.insync.replicas 2: nothing can be"),
        (replace(topic("spans"), in_sync=2), "warn", "2 of 3 replicas are in sync"),
        (replace(topic("spans"), replicas=2, in_sync=2), "warn", "2 replicas"),
    ],
)
def test_replicas_that_are_missing_are_told(facts: TopicFacts, status: str, found: str) -> None:
    (told,) = of("replicas", with_topics({"spans": facts}))
    assert told.status == status
    assert told.found.startswith(found)


@pytest.mark.parametrize(
    ("subject", "status", "found"),
    [
        (None, "fail", "is not registered"),
        (SubjectFacts("FULL_TRANSITIVE", 2, 0), "fail", "does not hold this version's schema among its 2"),
        (SubjectFacts("BACKWARD", 1, 1), "warn", "has compatibility BACKWARD"),
        (SubjectFacts(None, 1, 1), "warn", "has compatibility of the registry at large"),
    ],
)
def test_a_subject_that_is_not_ours_is_told(subject: SubjectFacts | None, status: str, found: str) -> None:
    subjects = {name: known for name, known in SUBJECTS.items() if name != "spans"}
    if subject is not None:
        subjects["spans"] = subject
    (told,) = of("subjects", replace(WELL, registry=RegistryFacts(subjects)))
    assert (told.status, told.about, told.found) == (status, "pool-spans-value", found)
    assert "--fix" in told.todo


@pytest.mark.parametrize("found", [RegistryFacts(SUBJECTS), Trouble("no answer within 5 s")])
def test_the_registrys_password_is_not_told(found: RegistryFacts | Trouble) -> None:
    settings = SETTINGS.with_(registry_url="https://me:r3g-pw@r:1")
    told = [f.about for f in examine(replace(WELL, settings=settings, registry=found)) if f.check == "registry"]
    assert told == ["https://me:***@r:1"]


def test_a_newer_schema_beside_ours_is_well() -> None:
    subjects = SUBJECTS | {"spans": SubjectFacts("FULL_TRANSITIVE", 3, 2)}
    assert of("subjects", replace(WELL, registry=RegistryFacts(subjects))) == []


@pytest.mark.parametrize(
    ("applied", "found"),
    [
        (None, "the database does not exist"),
        ({}, "not applied: 0001_x.sql"),
        ({"0001_x.sql": "bb"}, "applied with other content: 0001_x.sql"),
    ],
)
def test_tables_that_are_not_this_versions_fail(applied: dict[str, str] | None, found: str) -> None:
    facts = ClickHouseFacts("26.6", applied, {"0001_x.sql": "aa"})
    (told,) = of("tables", replace(WELL, clickhouse=facts))
    assert (told.status, told.found) == ("fail", found)


@pytest.mark.parametrize("applied", [{}, {"views.sql": "old"}])
def test_views_that_are_missing_or_old_can_be_made_again(applied: dict[str, str]) -> None:
    migrated = {"0001_x.sql": "aa"}
    facts = ClickHouseFacts("26.6", migrated | applied, migrated, views={"views.sql": "vv"})
    assert facts.changed == []
    (told,) = of("tables", replace(WELL, clickhouse=facts))
    assert (told.found, told.todo) == ("not applied: views.sql", "run `spanloop doctor --fix`")
    assert of("tables", replace(WELL, clickhouse=replace(facts, applied=migrated | {"views.sql": "vv"}))) == []


def test_an_old_clickhouse_fails() -> None:
    (told,) = of("clickhouse", replace(WELL, clickhouse=ClickHouseFacts("24.8.4.13", {}, {})))
    assert (told.found, told.expected) == ("version 24.8.4.13", "25.3 or later")


@pytest.mark.parametrize(("seconds", "statuses"), [(2.5, []), (-4.0, ["warn"]), (60.0, ["fail"]), (None, [])], ids=str)
def test_clocks_that_disagree_are_told(seconds: float | None, statuses: list[str]) -> None:
    found = of("clock", replace(WELL, registry=RegistryFacts(SUBJECTS, seconds)))
    assert [f.status for f in found] == statuses
    assert [f.found for f in found] == [
        {-4.0: "4.0 s behind this machine's", 60.0: "60.0 s ahead of this machine's"}[float(seconds or 0)]
        for _ in statuses
    ]


@pytest.mark.parametrize(("free", "statuses"), [(20 << 30, []), (5 << 30, ["warn"]), (100 << 20, ["fail"])])
def test_a_disk_that_fills_up_is_told(free: int, statuses: list[str]) -> None:
    assert [f.status for f in of("disk", replace(WELL, disk=DiskFacts("/x", free, 1 << 40)))] == statuses


@pytest.mark.parametrize(
    ("version", "expected"), [("2.10.1", "<2.14,>=2.11"), ("2.14.0+cpu", "<2.14,>=2.11"), ("2.11.0+cu128", None)]
)
def test_an_installed_package_outside_its_range_fails(version: str, expected: str | None) -> None:
    found = of("packages", replace(WELL, packages=dict(WELL.packages) | {"torch": version}))
    assert [f.expected for f in found] == [expected] * (expected is not None)


def test_groups_far_behind_and_transactions_left_open_are_told() -> None:
    (told,) = of("lag", replace(WELL, groups={"sink": GroupFacts(100_001, True), "assembler": GroupFacts(0, False)}))
    assert (told.status, told.about, told.found) == ("warn", "sink", "100,001 records behind")
    (told,) = of("transactions", replace(WELL, open_transactions={"rollouts[2]": 5}))
    assert (told.about, told.found) == ("rollouts[2]", "5 records wait behind an open transaction")
