"""One record that nobody can read, among a thousand good ones: every consumer sets it aside once and goes on."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import Future
from contextlib import ExitStack
from operator import attrgetter
from typing import Protocol, cast

import pytest
from events import batch, end, span
from in_thread import in_thread
from waiting import until

from spanloop.consumers.pump import PumpPolicy
from spanloop.consumers.sink import SINK_TOPICS, SinkService
from spanloop.infra.clickhouse import connect, migrate
from spanloop.infra.kafka import Reader, admin
from spanloop.infra.lag import Lag
from spanloop.infra.producer import Producer
from spanloop.infra.registry import Registry
from spanloop.infra.settings import Settings
from spanloop.schemas.records import DeadLetter, Rollout, Task, Trajectory
from spanloop.schemas.serde import Decoder
from spanloop.schemas.topics import (
    DEAD_LETTERS,
    REWARDS,
    ROLLOUTS,
    SPANS,
    TASKS,
    TRAJECTORIES,
    Record,
    Topic,
    partition_of,
)
from spanloop.streams.assembler_service import AssemblerService
from spanloop.streams.controller_shell import INPUTS, ControllerService

DEADLINE_S = 120.0
POISON = {
    "three random bytes": (b"\x93\x1f\x7f", "bad_framing"),
    "the right magic byte and an unknown schema id": (b"\x00\x00\x0f\xff\xff" + b"x" * 20, "unknown_schema_id"),
    "JSON": (b'{"rollout_id":"ro-1"}', "bad_framing"),
}
poisoned = pytest.mark.parametrize(("value", "reason"), POISON.values(), ids=POISON.keys())


class GroupMember(Protocol):
    member_id: str


class Group(Protocol):
    members: Sequence[GroupMember]


def members(settings: Settings, group: str) -> set[str]:
    """Member ids of a group, which change where it starts anew; the embedded broker does not tell them."""
    if settings.profile == "embedded":
        return set()
    name = f"{settings.prefix}-{group}"
    # confluent-kafka's types leave out what the futures hold
    ask = cast(
        "Callable[[list[str]], dict[str, Future[Group]]]", attrgetter("describe_consumer_groups")(admin(settings))
    )
    return {member.member_id for member in ask([name])[name].result(30).members}


class Log:
    """Everything on some topics so far."""

    def __init__(self, settings: Settings, *topics: Topic) -> None:
        self._registry = Registry(settings.registry_url)
        self._decoder = Decoder(self._registry)
        self._topics = {t.name: t for t in topics}
        self._reader = Reader(settings, "log")
        self._reader.assign_topics(list(topics))
        self.records: list[Record] = []

    def read(self) -> list[Record]:
        for m in self._reader.poll(2000, 0.05):
            if m.value is not None:
                self.records.append(self._decoder.decode_topic(self._topics[m.topic], m.value, m.headers))
        return self.records

    def letters(self) -> list[DeadLetter]:
        return [r for r in self.read() if isinstance(r, DeadLetter)]

    def close(self) -> None:
        self._reader.close()
        self._registry.close()


def send(settings: Settings, topic: Topic, good: list[Record], value: bytes) -> int:
    """A thousand good records in one partition with a bad one at offset 500; returns the partition."""
    assert len(good) == 1000
    partition = partition_of("ro-1", settings.partitions) if topic.spread else 0
    producer = Producer(settings, "test")
    for i, record in enumerate(good):
        if i == 500:
            producer.flush()
            producer.client.produce(topic.full(settings.prefix), value, b"ro-1", partition)
            producer.flush()
        producer.send(record)
    producer.close()
    return partition


@poisoned
def test_assembler_and_sink_each_set_one_bad_span_record_aside(
    each_settings: Settings, clickhouse_url: str, value: bytes, reason: str
) -> None:  # SP-22
    settings = each_settings.with_(clickhouse_url=clickhouse_url, clickhouse_database=f"poison_{each_settings.prefix}")
    client = connect(settings)
    migrate(client, settings.clickhouse_database)
    with ExitStack() as stack:
        stack.callback(client.close)
        stack.callback(client.command, f"DROP DATABASE {settings.clickhouse_database}", use_database=False)
        log = Log(settings, DEAD_LETTERS, TRAJECTORIES)
        stack.callback(log.close)
        lags = {"assembler": Lag(settings, "assembler", [SPANS, REWARDS]), "sink": Lag(settings, "sink", SINK_TOPICS)}
        for lag in lags.values():
            stack.callback(lag.close)
        runs = [
            stack.enter_context(in_thread(AssemblerService(settings), DEADLINE_S)),
            stack.enter_context(in_thread(SinkService(settings, PumpPolicy(max_wait_s=0.2)), DEADLINE_S)),
        ]
        good: list[Record] = [batch(span(f"s{i}", seq=i), begin=i == 0) for i in range(999)]
        partition = send(settings, SPANS, [*good, batch(span("last"), end=end(span_count=1000))], value)
        until(lambda: len(log.letters()) == 2)
        before = {group: members(settings, group) for group in lags}
        until(lambda: any(isinstance(r, Trajectory) for r in log.read()))
        until(lambda: client.query("SELECT count() FROM v_spans").result_rows == [(1000,)])
        until(lambda: all(lag.records() == 0 for lag in lags.values()))
        (trajectory,) = (r for r in log.records if isinstance(r, Trajectory))
        assert (trajectory.span_count, trajectory.revision) == (1000, 1000)
        found = {(d.consumer, d.topic, d.partition, d.offset, d.reason, d.raw) for d in log.letters()}
        assert found == {(group, "spans", partition, 500, reason, value) for group in lags}
        assert len(log.letters()) == 2
        assert all(run.thread.is_alive() for run in runs)
        assert {group: members(settings, group) for group in lags} == before


@poisoned
def test_the_controller_sets_one_bad_task_aside(each_settings: Settings, value: bytes, reason: str) -> None:  # SP-22
    settings = each_settings
    with ExitStack() as stack:
        log, lag = Log(settings, DEAD_LETTERS, ROLLOUTS), Lag(settings, "controller", INPUTS)
        stack.callback(log.close)
        stack.callback(lag.close)
        run = stack.enter_context(in_thread(ControllerService(settings), DEADLINE_S))
        send(settings, TASKS, [Task(f"ro-{i}", "run") for i in range(1000)], value)
        until(lambda: len(log.letters()) == 1)
        before = members(settings, "controller")
        until(lambda: len({r.rollout_id for r in log.read() if isinstance(r, Rollout)}) == 1000)
        until(lambda: lag.records() == 0)
        (letter,) = log.letters()
        assert (letter.consumer, letter.topic, letter.offset, letter.reason, letter.raw) == (
            "controller", "tasks", 500, reason, value,
        )  # fmt: skip
        assert run.thread.is_alive()
        assert members(settings, "controller") == before
