"""A running rig for the fault tests, with a broker of its own, since some of them kill it."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from faults.rig import Rig, prepared

from spanloop.infra.real_kafka import RealCluster, RealKafka, missing
from spanloop.infra.settings import Settings

# Two shared cores carry as many rollouts a second, with faults going on.
RATE = 8.0


def running(nodes: int, home: Path, clickhouse_url: str) -> Iterator[Rig]:
    """A rig in which a first group has been trained on."""
    if reason := missing():
        if os.environ.get("CI") == "true":
            pytest.fail(f"CI must run the fault tests on a real Kafka: {reason}")
        pytest.skip(f"no real Kafka: {reason}")
    make: Callable[[Path], RealKafka] = RealCluster if nodes == 3 else RealKafka
    with ExitStack() as stack:
        kafka = stack.enter_context(make(home / "kafka"))
        settings = Settings(
            bootstrap=kafka.bootstrap,
            registry_url=kafka.registry_url,
            prefix=f"faults{nodes}",
            home=home,
            replication=nodes,
        )
        rig = stack.enter_context(Rig(kafka, prepared(settings, clickhouse_url), home, rate=RATE))
        rig.start()
        yield rig


@pytest.fixture(scope="module")
def rig(tmp_path_factory: pytest.TempPathFactory, clickhouse_url: str) -> Iterator[Rig]:
    """On one broker."""
    yield from running(1, tmp_path_factory.mktemp("rig"), clickhouse_url)


@pytest.fixture(scope="module")
def rig_of_three(tmp_path_factory: pytest.TempPathFactory, clickhouse_url: str) -> Iterator[Rig]:
    """On three brokers that keep three replicas."""
    yield from running(3, tmp_path_factory.mktemp("rig3"), clickhouse_url)
