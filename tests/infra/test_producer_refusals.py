"""What librdkafka refuses at once: a record, or every record from now on."""

from __future__ import annotations

from contextlib import closing

import pytest
from confluent_kafka import KafkaException

from spanloop.infra.embedded_broker import EmbeddedBroker
from spanloop.infra.producer import Producer
from spanloop.infra.settings import Settings
from spanloop.schemas.errors import DeliveryFailed
from spanloop.schemas.records import Task

INIT_PRODUCER_ID, CLUSTER_AUTHORIZATION_FAILED = 22, 31  # of Kafka's protocol
TASK = Task("ro-1", "run")


def test_a_producer_that_has_failed_for_good_says_so_ever_after(
    broker: EmbeddedBroker, embedded_settings: Settings
) -> None:
    broker.refuse_next(INIT_PRODUCER_ID, CLUSTER_AUTHORIZATION_FAILED)
    with closing(Producer(embedded_settings, "test")) as producer:
        with pytest.raises(DeliveryFailed):
            producer.send_wait(TASK)
        with pytest.raises(DeliveryFailed, match=r"topic 'tasks' on .*start its process anew"):
            producer.send(TASK)
        with pytest.raises(DeliveryFailed, match="start its process anew"):
            producer.check()


def test_a_record_that_the_client_refuses_fails_alone(embedded_settings: Settings) -> None:
    with closing(Producer(embedded_settings, "test")) as producer:
        producer.send_wait(TASK)
        with pytest.raises(DeliveryFailed, match=r"topic 'tasks' on .*[Pp]artition"):
            producer.send(TASK, partition=99)
        producer.check()
        assert producer.send_wait(TASK).offset == 1


def test_with_transactions_what_librdkafka_raises_passes(embedded_settings: Settings) -> None:
    with closing(Producer(embedded_settings, "test", transactional_id="tx")) as producer:
        with pytest.raises(KafkaException):
            producer.send(TASK)
        producer.check()
