"""What an audit is read up to: where the log ends once nobody owes it anything more."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import closing

import pytest
from confluent_kafka import Consumer, KafkaError, KafkaException, TopicPartition
from confluent_kafka import Producer as KafkaProducer
from faults import reading
from faults.reading import Ends, arrive, at_rest, committed_of
from waiting import until

from spanloop.infra.kafka import Position, common_config, consumer_config
from spanloop.infra.settings import Settings
from spanloop.schemas.topics import TASKS

SETTINGS = Settings(partitions=1)
AT = (TASKS.name, 0)


class Log:
    """A log of which one group makes another record of whatever it reads, `owed` times over."""

    def __init__(self, owed: int) -> None:
        self.owed = owed
        self.ends: Ends = {("spans", 0): 5, ("trajectories", 0): 3, ("workers", 0): 0}

    def ends_now(self) -> Ends:
        self.ends["workers", 0] += 1
        return dict(self.ends)

    def all_arrive(self, ends: Ends) -> dict[str, Ends]:
        if self.owed:
            self.owed -= 1
            self.ends["trajectories", 0] += 1
        return {"sink": ends}


def test_the_log_is_read_up_to_what_its_readers_made_of_it() -> None:
    log = Log(owed=3)
    ends, committed = at_rest(log.ends_now, log.all_arrive)
    assert ends["trajectories", 0] == 6
    assert committed == {"sink": ends}
    assert log.owed == 0


def test_a_log_that_never_rests_is_taken_as_it_is_in_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reading, "SETTLE_S", 0.01)
    log = Log(owed=10**9)
    ends, committed = at_rest(log.ends_now, log.all_arrive)
    assert log.ends["trajectories", 0] - ends["trajectories", 0] == 1
    assert committed == {"sink": ends}


def answering(*answers: Ends | None) -> Callable[[Settings, str, Sequence[Position]], Ends]:
    """What a group's coordinator tells each time, the last from then on; None = it is being chosen."""
    left = list(answers)

    def committed_of(settings: Settings, group: str, positions: Sequence[Position]) -> Ends:
        del settings, group, positions
        answer = left.pop(0) if len(left) > 1 else left[0]
        if answer is None:
            raise KafkaException(KafkaError(KafkaError.NOT_COORDINATOR))
        return answer

    return committed_of


def test_a_coordinator_that_does_not_answer_is_asked_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reading, "committed_of", answering(None, {AT: 1}, None, {AT: 2}))
    assert arrive(SETTINGS, "controller", [TASKS], {AT: 2}) == {AT: 2}


@pytest.mark.parametrize(("answer", "committed"), [(None, -1), ({AT: 1}, 1)])
def test_a_group_that_does_not_get_there_is_told_of(
    monkeypatch: pytest.MonkeyPatch, answer: Ends | None, committed: int
) -> None:
    monkeypatch.setattr(reading, "SETTLE_S", 0.01)
    monkeypatch.setattr(reading, "committed_of", answering(answer))
    assert arrive(SETTINGS, "controller", [TASKS], {AT: 2}) == {AT: committed}


@pytest.mark.kafka
def test_what_a_group_has_committed_is_told_while_a_transaction_is_open(kafka_settings: Settings) -> None:
    topic = TASKS.full(kafka_settings.prefix)
    producer = KafkaProducer(common_config(kafka_settings, "test") | {"transactional.id": kafka_settings.prefix})
    producer.init_transactions(30.0)
    with closing(Consumer(consumer_config(kafka_settings, "group", isolation="read_committed"))) as member:
        member.commit(offsets=[TopicPartition(topic, 0, 5)], asynchronous=False)
        producer.begin_transaction()
        producer.send_offsets_to_transaction([TopicPartition(topic, 0, 9)], member.consumer_group_metadata(), 30.0)
        assert committed_of(kafka_settings, "group", [AT]) == {AT: 5}
        producer.commit_transaction(30.0)
        until(lambda: committed_of(kafka_settings, "group", [AT]) == {AT: 9}, "what was committed")  # a moment later
