"""How far a group is behind, asked from outside of it."""

from __future__ import annotations

import time
from contextlib import closing

import pytest

from spanloop.infra import lag
from spanloop.infra.embedded_broker import EmbeddedBroker
from spanloop.infra.kafka import Member
from spanloop.infra.lag import Lag
from spanloop.infra.producer import Producer
from spanloop.infra.settings import Settings
from spanloop.schemas.errors import Unavailable
from spanloop.schemas.records import Resource, Task
from spanloop.schemas.topics import RESOURCES, REWARDS, TASKS

DEADLINE_S = 30.0


def consume(settings: Settings, group: str, count: int, commit: int) -> None:
    """Reads `count` tasks as a member of a group and commits the first `commit` of them."""
    with closing(Member(settings, group, [TASKS])) as member:
        seen, deadline = 0, time.monotonic() + DEADLINE_S
        while seen < count:
            assert time.monotonic() < deadline
            seen += len(member.poll())
        member.commit({("tasks", 0): commit})


def test_the_lag_is_what_a_group_has_not_committed(embedded_settings: Settings) -> None:
    with (
        closing(Producer(embedded_settings, "test")) as producer,
        closing(Lag(embedded_settings, "sink", [TASKS, RESOURCES, REWARDS])) as behind,
    ):
        assert behind.records() == 0
        for number in range(3):
            producer.send(Task(rollout_id=f"ro-{number}", run_id="run", input="null"))
        producer.send(Resource("prompt", 1, kind="prompt", body='"x"'))
        producer.flush()
        assert behind.records() == 4  # it never committed: all that is kept
        consume(embedded_settings, "sink", 3, commit=2)
        assert behind.records() == 2  # one task, one resource
        producer.send_wait(Task(rollout_id="ro-4", run_id="run", input="null"))
        assert behind.records() == 3


def test_the_lag_is_the_groups_own(embedded_settings: Settings) -> None:
    with closing(Producer(embedded_settings, "test")) as producer:
        producer.send_wait(Task(rollout_id="ro-1", run_id="run", input="null"))
    consume(embedded_settings, "sink", 1, commit=1)
    with (
        closing(Lag(embedded_settings, "other", [TASKS])) as other,
        closing(Lag(embedded_settings, "sink", [TASKS])) as own,
    ):
        assert (other.records(), own.records()) == (1, 0)


def test_a_broker_that_is_away_is_unavailable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lag, "TIMEOUT_S", 0.3)
    with EmbeddedBroker({"p-tasks": 1}) as broker:
        settings = Settings(profile="embedded", bootstrap=broker.bootstrap, prefix="p")
        broker.set_down()
        with closing(Lag(settings, "sink", [TASKS])) as behind, pytest.raises(Unavailable, match="lag of group sink"):
            behind.records()
