from __future__ import annotations

import pytest

from spanloop.infra import admin
from spanloop.infra.embedded_broker import EmbeddedBroker
from spanloop.infra.embedded_registry import EmbeddedRegistry
from spanloop.infra.kafka import partitions
from spanloop.infra.settings import Settings
from spanloop.schemas.errors import ConfigError, Unavailable
from spanloop.schemas.topics import TOPICS

SETTINGS = Settings(prefix="pool", partitions=4)


def test_equal_partition_counts_have_no_problems() -> None:
    assert admin.problems(SETTINGS, {t.name: partitions(SETTINGS, t) for t in TOPICS.values()}) == []
    assert admin.problems(SETTINGS, {}) == []


def test_topics_that_are_read_together_must_have_equal_counts() -> None:
    (told,) = admin.problems(SETTINGS, {"spans": 4, "rewards": 8, "assemblies": 4, "tasks": 1})
    assert told.found == "topic 'spans' has 4 partitions, 'rewards' 8, 'assemblies' 4"
    assert told.expected == "equal counts"
    assert "SPANLOOP_PREFIX" in told.todo
    (told,) = admin.problems(SETTINGS, {"spans": 4, "rewards": 8})
    assert str(told).startswith("topic 'spans' has 4 partitions, 'rewards' 8, expected equal counts; ")


def test_every_count_is_held_to_the_settings() -> None:
    told = admin.problems(SETTINGS, {"tasks": 3, "spans": 8, "rewards": 8, "assemblies": 8, "rollouts": 4})
    assert [str(t).split(";")[0] for t in told] == [
        "topic 'tasks' has 3 partitions, expected 1",
        "topic 'spans' has 8 partitions, expected 4",
        "topic 'rewards' has 8 partitions, expected 4",
        "topic 'assemblies' has 8 partitions, expected 4",
    ]
    assert "set SPANLOOP_PARTITIONS to what prefix 'pool' was made with" in told[0].todo


def test_all_replicas_but_one_must_have_a_record_unless_the_setting_says_else() -> None:
    said = [(1, 0), (3, 0), (3, 1), (3, 3)]
    assert [admin.min_isr(SETTINGS.with_(replication=r, min_isr=m)) for r, m in said] == [1, 2, 1, 3]
    with pytest.raises(ConfigError, match="min_isr: 2 replicas must have each record, but setting replication makes 1"):
        admin.min_isr(SETTINGS.with_(min_isr=2))
    made = admin.new_topic(SETTINGS.with_(replication=3), TOPICS["tasks"])
    assert (made.replication_factor, (made.config or {})["min.insync.replicas"]) == (3, "2")


def test_init_may_be_run_again_and_gives_the_same_ids(embedded_settings: Settings) -> None:
    assert admin.init(embedded_settings) == admin.init(embedded_settings)
    assert admin.counts(embedded_settings) == {t.name: partitions(embedded_settings, t) for t in TOPICS.values()}


def test_init_refuses_a_prefix_whose_counts_are_others(embedded_settings: Settings) -> None:
    with pytest.raises(ConfigError, match="topic 'assignments' has 4 partitions, expected 8"):
        admin.init(embedded_settings.with_(partitions=8))


def test_init_says_who_can_create_topics_on_an_embedded_broker(
    broker: EmbeddedBroker, registry: EmbeddedRegistry
) -> None:
    settings = Settings(profile="embedded", bootstrap=broker.bootstrap, registry_url=registry.url, prefix="unmade")
    with pytest.raises(ConfigError, match=r"lacks unmade-tasks, .*only the process that holds it"):
        admin.init(settings)


def test_init_without_a_broker_names_its_address() -> None:
    settings = SETTINGS.with_(bootstrap="127.0.0.1:1", kafka={"socket.connection.setup.timeout.ms": "1000"})
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(admin, "METADATA_TIMEOUT_S", 0.5)
        with pytest.raises(Unavailable, match=r"no Kafka broker answers at 127\.0\.0\.1:1 within 0\.5 s"):
            admin.init(settings)


def test_a_new_topic_carries_its_policy_retention_and_limit() -> None:
    made = {t.name: admin.new_topic(SETTINGS, t) for t in TOPICS.values()}
    assert made["spans"].topic == "pool-spans"
    assert made["spans"].num_partitions == 4
    assert made["tasks"].num_partitions == 1
    config = {name: topic.config or {} for name, topic in made.items()}
    assert config["rollouts"]["cleanup.policy"] == "compact"
    assert config["tasks"]["retention.ms"] == "-1"
    assert config["dead-letters"]["max.message.bytes"] == str(20 << 20)
    assert [name for name in config if "message.timestamp.type" in config[name]] == ["trajectories"]
