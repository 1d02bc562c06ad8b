"""Outside services for tests: the embedded twins always, a real Kafka where Java and its jars are there."""

from __future__ import annotations

import gc
import os
from collections.abc import Iterator
from pathlib import Path
from uuid import uuid4

import pytest
from access_rig import USERS

from spanloop.infra import admin
from spanloop.infra.embedded_broker import EmbeddedBroker
from spanloop.infra.embedded_registry import EmbeddedRegistry
from spanloop.infra.kafka import partitions
from spanloop.infra.real_kafka import RealCluster, RealKafka, missing
from spanloop.infra.settings import Settings
from spanloop.schemas.topics import TOPICS

PARTITIONS = 4


def pytest_configure(config: pytest.Config) -> None:
    """Markers of this suite's own."""
    config.addinivalue_line("markers", "needs(what): a capability that infra.embedded_broker.LACKS may name")


@pytest.hookimpl(tryfirst=True)
def pytest_sessionfinish() -> None:
    """Collects what tests left behind: tracebacks of it, while pytest parses, break Python 3.11's parser."""
    gc.collect()


@pytest.fixture(scope="session")
def broker() -> Iterator[EmbeddedBroker]:
    """The session's embedded broker; tests keep apart by their prefix."""
    with EmbeddedBroker() as running:
        yield running


@pytest.fixture(scope="session")
def registry() -> Iterator[EmbeddedRegistry]:
    """The session's embedded registry."""
    with EmbeddedRegistry() as running:
        yield running


def fresh_prefix() -> str:
    """A prefix no other test has."""
    return f"t{uuid4().hex[:12]}"


def embedded(broker: EmbeddedBroker, registry: EmbeddedRegistry, home: Path) -> Settings:
    """Settings of a fresh prefix on embedded twins, its topics created and subjects registered."""
    settings = Settings(
        profile="embedded",
        bootstrap=broker.bootstrap,
        registry_url=registry.url,
        prefix=fresh_prefix(),
        partitions=PARTITIONS,
        home=home,
    )
    for topic in TOPICS.values():
        broker.create(topic.full(settings.prefix), partitions(settings, topic))
    admin.init(settings)
    return settings


@pytest.fixture
def embedded_settings(broker: EmbeddedBroker, registry: EmbeddedRegistry, tmp_path: Path) -> Settings:
    """A fresh prefix on the embedded broker and registry."""
    return embedded(broker, registry, tmp_path)


@pytest.fixture(scope="session")
def real_kafka(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RealKafka]:
    """The session's real Kafka and registry; skips where they cannot be had, except in CI, where that is a failure."""
    _needs_kafka()
    with RealKafka(tmp_path_factory.mktemp("kafka"), sasl=True, users=list(USERS.values())) as running:
        yield running


@pytest.fixture(scope="module")
def real_cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RealCluster]:
    """Three real nodes of which one may fail, without a registry; only for as long as a module needs them."""
    _needs_kafka()
    with RealCluster(tmp_path_factory.mktemp("cluster"), registry=False) as running:
        yield running


def _needs_kafka() -> None:
    if reason := missing():
        if os.environ.get("CI") == "true":
            pytest.fail(f"CI must run the tests on a real Kafka: {reason}")
        pytest.skip(f"no real Kafka: {reason}")


def real(kafka: RealKafka, home: Path) -> Settings:
    """Settings of a fresh prefix on a real Kafka, its topics created and subjects registered."""
    settings = Settings(
        profile="remote",
        bootstrap=kafka.bootstrap,
        registry_url=kafka.registry_url,
        prefix=fresh_prefix(),
        partitions=PARTITIONS,
        home=home,
    )
    admin.init(settings)
    return settings


@pytest.fixture
def kafka_settings(request: pytest.FixtureRequest, tmp_path: Path) -> Settings:
    """A fresh prefix on a real Kafka. Tests that use it carry the marker `kafka`."""
    return real(request.getfixturevalue("real_kafka"), tmp_path)


@pytest.fixture(params=["embedded", pytest.param("kafka", marks=pytest.mark.kafka)])
def each_settings(request: pytest.FixtureRequest, tmp_path: Path) -> Settings:
    """A fresh prefix, once on the embedded twins and once on a real Kafka."""
    if request.param == "kafka":
        return real(request.getfixturevalue("real_kafka"), tmp_path)
    return embedded(request.getfixturevalue("broker"), request.getfixturevalue("registry"), tmp_path)


@pytest.fixture(scope="session")
def clickhouse_url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The session's embedded ClickHouse server; tests use a database of their own."""
    from spanloop.infra.embedded_clickhouse import ClickHouseProcess

    process = ClickHouseProcess(tmp_path_factory.mktemp("clickhouse"))
    try:
        yield process.url
    finally:
        process.close()
