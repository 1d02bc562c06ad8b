"""Whoever waits for the follower hears from it, however it ends."""

from __future__ import annotations

import threading
from concurrent.futures import TimeoutError
from contextlib import closing
from typing import Any, cast

import pytest
from confluent_kafka import Producer as KafkaProducer
from in_thread import in_thread

from spanloop.infra.kafka import Message
from spanloop.infra.producer import Producer, producer_config
from spanloop.infra.quarantine import Quarantine
from spanloop.infra.registry import Registry
from spanloop.infra.settings import Settings
from spanloop.producers import gateway_follow
from spanloop.producers.gateway_attempts import Attempts
from spanloop.producers.gateway_engines import Engines
from spanloop.producers.gateway_follow import Follower
from spanloop.producers.gateway_policy import GatewayPolicy
from spanloop.schemas.errors import DataLost, SpanloopError, Unavailable
from spanloop.schemas.records import Attempt
from spanloop.schemas.serde import encode_body, frame, schema_json
from spanloop.schemas.topics import ATTEMPTS

WAIT_S = 30.0


class Reads:
    """A reader that finds nothing, then does as it is told while somebody waits; then it goes on finding nothing."""

    def __init__(self, trouble: SpanloopError) -> None:
        self._trouble: SpanloopError | None = trouble
        self._polls = 0

    def watermarks(self, position: object) -> tuple[int, int]:
        del position
        return 0, 1

    def assign(self, offsets: object) -> None:
        """Nothing to do."""

    def reached(self, ends: object) -> bool:
        del ends
        return self._trouble is None

    def poll(self, *how: Any) -> list[Message]:
        del how
        self._polls += 1
        if self._polls > 1 and self._trouble is not None:
            trouble, self._trouble = self._trouble, None
            raise trouble
        return []

    def close(self) -> None:
        """Nothing to close."""


def follower(trouble: SpanloopError, monkeypatch: pytest.MonkeyPatch) -> Follower:
    def reads(_: Settings, __: str, **___: object) -> Reads:
        return Reads(trouble)

    monkeypatch.setattr(gateway_follow, "Reader", reads)
    engines, quarantine = Engines(GatewayPolicy()), Quarantine(cast("Producer", None), "gateway", 0)
    return Follower(Settings(registry_url="http://127.0.0.1:1"), Attempts(), engines, quarantine)


def test_a_follower_that_fails_tells_those_who_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    found = follower(DataLost("gone"), monkeypatch)
    asked = found.ask()
    with pytest.raises(DataLost):
        found.run(threading.Event())
    with pytest.raises(Unavailable, match="stopping"):
        asked.result(0)
    with pytest.raises(Unavailable, match="stopping"):
        found.ask().result(0)


def test_a_follower_that_cannot_read_for_a_while_tells_those_who_wait_and_goes_on(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    stop = threading.Event()
    found = follower(Unavailable("no broker"), monkeypatch)
    first = found.ask()
    thread = threading.Thread(target=found.run, args=(stop,))
    thread.start()
    with pytest.raises(Unavailable, match="no broker"):
        first.result(WAIT_S)
    found.ask().result(WAIT_S)
    stop.set()
    thread.join(WAIT_S)
    assert not thread.is_alive()


@pytest.mark.kafka
def test_who_asks_of_an_attempt_in_an_open_transaction_waits_for_its_end(kafka_settings: Settings) -> None:
    """Its assignment may be readable by then: partitions are told one after the other that it is committed."""
    settings = kafka_settings
    controller = KafkaProducer(producer_config(settings, "controller", f"{settings.prefix}-controller"))
    controller.init_transactions(WAIT_S)
    with closing(Registry(settings.registry_url)) as registry:
        schema_id = registry.register(ATTEMPTS.subject(settings.prefix), schema_json(Attempt))
    attempts, engines = Attempts(), Engines(GatewayPolicy())
    found = Follower(settings, attempts, engines, Quarantine(cast("Producer", None), "gateway", 0))
    with in_thread(found, WAIT_S):
        found.ask().result(WAIT_S)
        controller.begin_transaction()
        value = frame(schema_id, encode_body(Attempt("ro-1", "at-1", "preparing")))
        controller.produce(ATTEMPTS.full(settings.prefix), value, b"ro-1")
        controller.flush(WAIT_S)
        asked = found.ask()
        with pytest.raises(TimeoutError):
            asked.result(0.5)
        controller.commit_transaction(WAIT_S)
        asked.result(WAIT_S)
        assert attempts.liveness("ro-1", "at-1") == "live"
