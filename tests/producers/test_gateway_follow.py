"""Whoever waits for the follower hears from it, however it ends."""

from __future__ import annotations

import threading
from typing import Any, cast

import pytest

from spanloop.infra.kafka import Message
from spanloop.infra.producer import Producer
from spanloop.infra.quarantine import Quarantine
from spanloop.infra.settings import Settings
from spanloop.producers import gateway_follow
from spanloop.producers.gateway_attempts import Attempts
from spanloop.producers.gateway_engines import Engines
from spanloop.producers.gateway_follow import Follower
from spanloop.producers.gateway_policy import GatewayPolicy
from spanloop.schemas.errors import DataLost, SpanloopError, Unavailable

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
    def reads(_: Settings, __: str) -> Reads:
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
