"""Fixtures of the conformance suite."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from spanloop.infra.embedded_broker import LACKS
from spanloop.infra.producer import Producer
from spanloop.infra.registry import Registry
from spanloop.infra.settings import Settings


@pytest.fixture
def conforming(request: pytest.FixtureRequest, each_settings: Settings) -> Settings:
    """Each broker in turn, but for what the embedded one lacks."""
    lacking = [m.args[0] for m in request.node.iter_markers("needs")]
    if each_settings.profile == "embedded" and lacking:
        pytest.skip(f"the embedded broker has no {lacking[0]}: {LACKS[lacking[0]]}")
    return each_settings


@pytest.fixture
def producer(conforming: Settings) -> Iterator[Producer]:
    made = Producer(conforming, "test")
    yield made
    made.close()


@pytest.fixture
def lookup(conforming: Settings) -> Iterator[Registry]:
    made = Registry(conforming.registry_url)
    yield made
    made.close()
