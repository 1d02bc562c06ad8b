"""First offsets of a group: a coordinator being chosen is waited for, and a late start says what may be gone."""

from __future__ import annotations

from contextlib import closing
from typing import cast

import pytest
from confluent_kafka import Consumer, KafkaError, KafkaException, TopicPartition
from waiting import until

from spanloop.infra.embedded_broker import EmbeddedBroker
from spanloop.infra.group_offsets import Start, first_offsets, patiently
from spanloop.infra.kafka import Member
from spanloop.infra.producer import Producer
from spanloop.infra.settings import Settings
from spanloop.schemas.records import Task
from spanloop.schemas.topics import TASKS

OFFSET_FETCH = 9  # number of the request in Kafka's protocol


def asked(failures: list[int]) -> str:
    """Fails as listed, then answers."""
    if failures:
        raise KafkaException(KafkaError(failures.pop(0)))
    return "answer"


def test_a_coordinator_that_is_being_chosen_is_asked_again() -> None:
    failures = [KafkaError.NOT_COORDINATOR] * 2
    assert patiently(lambda: asked(failures)) == "answer"


def test_what_does_not_pass_in_time_or_by_itself_is_raised() -> None:
    with pytest.raises(KafkaException):
        patiently(lambda: asked([KafkaError.NOT_COORDINATOR] * 9), timeout_s=0.3)
    refused = [KafkaError.GROUP_AUTHORIZATION_FAILED, KafkaError.NOT_COORDINATOR]
    with pytest.raises(KafkaException):
        patiently(lambda: asked(refused))
    assert refused == [KafkaError.NOT_COORDINATOR]


def test_a_member_survives_a_coordinator_that_moves_while_it_joins(
    broker: EmbeddedBroker, embedded_settings: Settings
) -> None:
    with closing(Producer(embedded_settings, "test")) as producer:
        producer.send_wait(Task("ro-1", "run"))
    broker.refuse_next(OFFSET_FETCH, KafkaError.NOT_COORDINATOR)
    with closing(Member(embedded_settings, "late", [TASKS])) as member:
        until(lambda: bool(member.poll()), "the record")


class Kept:
    """A consumer of a group without offsets, on a partition whose first records are gone."""

    def committed(self, parts: list[TopicPartition], timeout: float) -> list[TopicPartition]:
        del timeout
        return parts

    def get_watermark_offsets(self, at: TopicPartition, timeout: float) -> tuple[int, int]:
        del at, timeout
        return 5, 9


@pytest.mark.parametrize(("start", "offset", "told"), [("earliest", 5, True), ("latest", 9, False)])
def test_a_group_without_offsets_says_what_it_may_have_missed(
    start: Start, offset: int, told: bool, caplog: pytest.LogCaptureFixture
) -> None:
    fresh = first_offsets(cast("Consumer", Kept()), [TopicPartition("tasks", 0)], start)
    assert [tp.offset for tp in fresh] == [offset]
    assert ("begins at 5, the first one kept" in caplog.text) is told
