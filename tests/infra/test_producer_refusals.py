"""What librdkafka refuses at once: a record, or every record from now on."""

from __future__ import annotations

from contextlib import closing
from functools import partial

import pytest
from confluent_kafka import KafkaException

from spanloop.infra.embedded_broker import EmbeddedBroker
from spanloop.infra.producer import Producer
from spanloop.infra.settings import Settings
from spanloop.schemas.errors import ConfigError, DeliveryFailed
from spanloop.schemas.records import Task

PRODUCE, INIT_PRODUCER_ID = 0, 22  # of Kafka's protocol, as the errors
TOPIC_AUTHORIZATION_FAILED, CLUSTER_AUTHORIZATION_FAILED, INVALID_TIMEOUT = 29, 31, 50
TASK = Task("ro-1", "run")


def test_a_producer_that_has_failed_for_good_says_so_ever_after(
    broker: EmbeddedBroker, embedded_settings: Settings
) -> None:
    broker.refuse_next(INIT_PRODUCER_ID, INVALID_TIMEOUT)
    with closing(Producer(embedded_settings, "test")) as producer:
        with pytest.raises(DeliveryFailed):
            producer.send_wait(TASK)
        for again in (partial(producer.send, TASK), producer.check):
            with pytest.raises(DeliveryFailed, match="start its process anew") as raised:
                again()
            assert raised.value is not producer.failure  # which would keep the frames of all who were told


@pytest.mark.parametrize(
    ("request_", "error", "named"),
    [
        (PRODUCE, TOPIC_AUTHORIZATION_FAILED, "topic .*tasks"),
        (INIT_PRODUCER_ID, CLUSTER_AUTHORIZATION_FAILED, "every topic"),
    ],
)
def test_a_producer_that_may_not_write_says_so_to_who_waits_and_to_who_asks(
    broker: EmbeddedBroker, embedded_settings: Settings, request_: int, error: int, named: str
) -> None:
    broker.refuse_next(request_, error)
    with closing(Producer(embedded_settings, "test")) as producer:
        for asked in (partial(producer.send_wait, TASK), producer.check):
            with pytest.raises(ConfigError, match=f"refuses producer test on {named}.*docs/security.md") as refused:
                asked()
            assert isinstance(refused.value, DeliveryFailed)


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
