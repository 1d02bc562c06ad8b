"""What ends a controller's term."""

from __future__ import annotations

import threading
from contextlib import closing
from typing import cast

import pytest
from confluent_kafka import Consumer

from spanloop.infra.clock import SystemClock
from spanloop.infra.embedded_broker import EmbeddedBroker
from spanloop.infra.producer import Producer
from spanloop.infra.registry import connect, register_all
from spanloop.infra.settings import Settings
from spanloop.schemas.errors import ConfigError, Unavailable
from spanloop.schemas.records import Task
from spanloop.schemas.serde import Encoder
from spanloop.streams import controller_term
from spanloop.streams.controller import ControllerPolicy
from spanloop.streams.controller_term import Term

ADD_PARTITIONS_TO_TXN, TOPIC_AUTHORIZATION_FAILED = 24, 29  # of Kafka's protocol


class Mute:
    """A client whose own thread does not answer."""

    def __init__(self, asked: threading.Event, over: threading.Event) -> None:
        self._asked = asked
        self._over = over

    def consumer_group_metadata(self) -> object:
        self._asked.set()
        self._over.wait(60)
        raise RuntimeError("nobody waits for this any more")


class Alone:
    """Who has no group to tell of."""

    def consumer_group_metadata(self) -> None:
        return None


def test_a_topic_that_may_not_be_written_in_a_transaction_ends_the_term_as_a_setting_to_be_seen_to(
    broker: EmbeddedBroker, embedded_settings: Settings
) -> None:
    with closing(connect(embedded_settings)) as registry, closing(Producer(embedded_settings, "ends")) as ends:
        encode = Encoder(register_all(registry, embedded_settings))
        term = Term(embedded_settings, encode, ends, SystemClock(), ControllerPolicy(), stop=threading.Event())
        broker.refuse_next(ADD_PARTITIONS_TO_TXN, TOPIC_AUTHORIZATION_FAILED)
        with closing(term), pytest.raises(ConfigError, match="refuses the controller on a topic of its transactions: "):
            term.take([Task("ro-1", "run")], {}, cast("Consumer", Alone()))


def test_a_client_that_never_says_what_its_group_is_ends_the_term(
    embedded_settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(controller_term, "STUCK_S", 5.0)
    asked, over = threading.Event(), threading.Event()
    with closing(connect(embedded_settings)) as registry, closing(Producer(embedded_settings, "ends")) as ends:
        encode = Encoder(register_all(registry, embedded_settings))
        term = Term(embedded_settings, encode, ends, SystemClock(), ControllerPolicy(), stop=threading.Event())
        with pytest.raises(Unavailable, match="a transaction did not come back"):
            term.take([], {("tasks", 0): 1}, cast("Consumer", Mute(asked, over)))
        assert asked.is_set()
        term.close()
        over.set()
