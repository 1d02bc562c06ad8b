"""`doctor --fix` on a real broker: settings are altered, what is missing is made, partition counts stay."""

from __future__ import annotations

from contextlib import closing

import httpx
import pytest
from waiting import until

from spanloop.infra import admin, doctor_fix
from spanloop.infra.doctor import examine
from spanloop.infra.doctor_facts import gather
from spanloop.infra.facts import BrokerFacts, Facts, Finding
from spanloop.infra.producer import Producer
from spanloop.infra.settings import Settings
from spanloop.schemas.records import Task
from spanloop.schemas.topics import ASSIGNMENTS, DAY_MS, REWARDS, SPANS, TASKS, TOPICS

pytestmark = [pytest.mark.kafka, pytest.mark.slow]
DAY_S = 86_400.0
# What depends on this machine, and on a ClickHouse that these settings have none of.
ELSEWHERE = {"clickhouse", "disk", "packages", "java"}


def told(facts: Facts) -> dict[tuple[str, str], Finding]:
    """What is not well of broker and registry, by check and subject."""
    return {(f.check, f.about): f for f in examine(facts) if f.status != "ok" and f.check not in ELSEWHERE}


def asked(settings: Settings) -> Facts:
    return gather(settings, longest_attempt_s=DAY_S, round_s=60)  # the machine may be busy


def test_a_fresh_prefix_is_well(kafka_settings: Settings) -> None:
    facts = asked(kafka_settings)
    assert told(facts) == {}
    assert isinstance(facts.broker, BrokerFacts)
    assert facts.broker.cluster
    assert facts.open_transactions == {}
    spans = (facts.broker.topics["spans"].config or {})["retention.ms"]
    assert spans == str(7 * DAY_MS)


def test_the_fix_alters_retention_and_registers_and_is_well_afterwards(kafka_settings: Settings) -> None:  # BR-12
    doctor_fix.alter(
        kafka_settings,
        {"spans": {"retention.ms": "3600000"}, "rollouts": {"cleanup.policy": "delete"}},
    )
    subject = SPANS.subject(kafka_settings.prefix)
    body = {"compatibility": "NONE"}
    assert httpx.put(f"{kafka_settings.registry_url}/config/{subject}", json=body, timeout=30).is_success
    wrong = {
        ("topic settings", "spans"), ("topic settings", "rollouts"), ("retention", "spans"), ("subjects", subject)
    }  # fmt: skip
    until(lambda: told(asked(kafka_settings)).keys() == wrong, "the broker to take its new settings")
    facts = asked(kafka_settings)
    found = told(facts)
    assert found["retention", "spans"].status == "fail"

    done = doctor_fix.fix(kafka_settings, facts)
    prefix = kafka_settings.prefix
    assert sorted(done) == [
        f"registered {len(TOPICS)} subjects, FULL_TRANSITIVE",
        f"set cleanup.policy=compact on {prefix}-rollouts",
        f"set retention.ms={7 * DAY_MS} on {prefix}-spans",
    ]
    until(lambda: told(asked(kafka_settings)) == {}, "the broker to take what was mended")
    assert doctor_fix.fix(kafka_settings, asked(kafka_settings)) == []


def test_the_fix_makes_missing_topics_once_partition_counts_are_the_settings(kafka_settings: Settings) -> None:  # BR-12
    here = kafka_settings.with_(prefix=f"{kafka_settings.prefix}x", partitions=2)
    admin.create(here, [TASKS, ASSIGNMENTS, REWARDS])
    until(lambda: len(admin.counts(here)) == 3, "the topics")
    other = here.with_(partitions=4)
    facts = asked(other)
    assert {check for check, _ in told(facts)} == {"topics", "partitions", "subjects"}
    assert doctor_fix.fix(other, facts) == [f"registered {len(TOPICS)} subjects, FULL_TRANSITIVE"]
    assert len(admin.counts(here)) == 3

    (done,) = doctor_fix.fix(here, asked(here))
    assert done.startswith(f"created {here.prefix}-workers, {here.prefix}-spans, ")
    counts = admin.counts(here)
    assert (counts["assignments"], counts["rewards"], counts["spans"], counts["assemblies"]) == (2, 2, 2, 2)
    facts = asked(here)
    assert told(facts) == {}
    assert doctor_fix.fix(here, facts) == []
    assert admin.counts(here) == counts


def test_a_transaction_that_stays_open_is_told_with_what_waits_behind_it(kafka_settings: Settings) -> None:
    with closing(Producer(kafka_settings, "hanging", transactional_id=f"{kafka_settings.prefix}-hanging")) as hanging:
        hanging.client.init_transactions(30)
        hanging.client.begin_transaction()
        hanging.client.produce(TOPICS["attempts"].full(kafka_settings.prefix), b"x", b"ro-1")
        hanging.client.flush(30)
        with closing(Producer(kafka_settings, "test")) as other:
            other.send_wait(Task("ro-1", "run"))
        found = told(asked(kafka_settings))
        assert found.keys() == {("transactions", "attempts[0]")}
        assert found["transactions", "attempts[0]"].found == "1 records wait behind an open transaction"
        hanging.client.abort_transaction(30)
    assert told(asked(kafka_settings)) == {}
