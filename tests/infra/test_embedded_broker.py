from __future__ import annotations

import subprocess
import sys

import pytest
from confluent_kafka.admin import AdminClient

from spanloop.infra.embedded_broker import EmbeddedBroker
from spanloop.schemas.errors import ConfigError

COUNT = (
    "import sys; from confluent_kafka.admin import AdminClient; "
    "topics = AdminClient({'bootstrap.servers': sys.argv[1]}).list_topics(timeout=20).topics; "
    "sys.stdout.write(str(len(topics['t'].partitions)))"
)


def test_topics_have_the_partitions_asked_for() -> None:
    with EmbeddedBroker({"one": 1, "four": 4}) as broker:
        broker.create("eight", 8)
        topics = AdminClient({"bootstrap.servers": broker.bootstrap}).list_topics(timeout=20).topics
        assert {name: len(topic.partitions) for name, topic in topics.items()} == {"one": 1, "four": 4, "eight": 8}


def test_other_processes_reach_it() -> None:
    with EmbeddedBroker({"t": 3}) as broker:
        done = subprocess.run(
            [sys.executable, "-c", COUNT, broker.bootstrap], capture_output=True, text=True, check=True
        )
    assert done.stdout == "3"


def test_a_topic_that_exists_is_not_made_again() -> None:
    with EmbeddedBroker({"t": 1}) as broker, pytest.raises(ConfigError, match="cannot create topic 't'"):
        broker.create("t", 2)


def test_several_brokers_share_one_address_list() -> None:
    with EmbeddedBroker({"t": 6}, brokers=3) as broker:
        assert len(broker.bootstrap.split(",")) == 3
        broker.set_down()
        broker.set_up()
        found = AdminClient({"bootstrap.servers": broker.bootstrap}).list_topics(timeout=20)
        assert len(found.topics["t"].partitions) == 6


def test_a_closed_broker_says_so_and_may_be_closed_again() -> None:
    broker = EmbeddedBroker()
    broker.close()
    broker.close()
    with pytest.raises(ConfigError, match="closed"):
        broker.create("t", 1)
