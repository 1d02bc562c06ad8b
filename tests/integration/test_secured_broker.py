"""Every client on a listener that wants TLS, a user and a password: of librdkafka's and of aiokafka's kind."""

from __future__ import annotations

import threading
from collections.abc import Generator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from pathlib import Path
from uuid import uuid4

import pytest
from events import batch, end, llm
from waiting import until

from spanloop.infra import admin
from spanloop.infra.embedded_registry import EmbeddedRegistry
from spanloop.infra.kafka import Reader, wait_for_broker
from spanloop.infra.process import Part
from spanloop.infra.producer import Producer
from spanloop.infra.real_kafka import RealKafka
from spanloop.infra.registry import connect
from spanloop.infra.settings import Settings
from spanloop.schemas.errors import ConfigError
from spanloop.schemas.records import Rollout, Task, Trajectory
from spanloop.schemas.serde import Decoder
from spanloop.schemas.topics import ROLLOUTS, TRAJECTORIES, Record
from spanloop.streams.assembler_service import AssemblerService
from spanloop.streams.controller_shell import ControllerService

pytestmark = pytest.mark.kafka
TIMEOUT_S = 90.0


@pytest.fixture
def secured(real_kafka: RealKafka, registry: EmbeddedRegistry, tmp_path: Path) -> Settings:
    """A fresh prefix whose every connection is to the SASL_SSL listener, a client's certificate shown as well."""
    settings = Settings(
        bootstrap=real_kafka.sasl_bootstrap,
        kafka={**real_kafka.security(), **real_kafka.client_certificate},
        registry_url=registry.url,
        prefix=f"s{uuid4().hex[:8]}",
        partitions=2,
        home=tmp_path,
    )
    admin.init(settings)
    return settings


@contextmanager
def running(*parts: Part) -> Generator[None]:
    """Parts in threads; their errors are raised here."""
    stop = threading.Event()
    with ThreadPoolExecutor(len(parts)) as pool:
        done = [pool.submit(part.run, stop) for part in parts]
        try:
            yield
        finally:
            stop.set()
            for each in done:
                each.result(TIMEOUT_S)


def test_producer_consumer_assembler_and_the_controllers_transactions_work_through_sasl_and_tls(
    secured: Settings,
) -> None:
    found: list[Record] = []
    with (
        closing(Producer(secured, "test")) as producer,
        closing(connect(secured)) as registry,
        closing(Reader(secured, "test")) as reader,
        running(AssemblerService(secured), ControllerService(secured)),
    ):
        decoder = Decoder(registry)
        reader.assign_topics([TRAJECTORIES, ROLLOUTS])
        producer.send(batch(llm("s1", [1, 2], [3]), begin=True, end=end(span_count=1)))
        producer.send(Task("ro-2", "run-1"))

        def both() -> bool:
            for m in reader.poll():
                if m.value is not None:
                    found.append(decoder.decode_topic(admin.TOPICS[m.topic], m.value, m.headers))
            return {type(r) for r in found} == {Trajectory, Rollout}

        until(both)
    assert {r.rollout_id for r in found if isinstance(r, Rollout)} == {"ro-2"}
    assert {r.attempt_id for r in found if isinstance(r, Trajectory)} == {"at-1"}


@pytest.mark.parametrize("mechanism", ["PLAIN", "SCRAM-SHA-512"])
def test_other_mechanisms_work_too(secured: Settings, real_kafka: RealKafka, mechanism: str) -> None:
    settings = secured.with_(kafka=real_kafka.security(mechanism))
    with closing(Producer(settings, "test")) as producer:
        assert producer.send_wait(Task("ro-1", "run-1"), TIMEOUT_S).offset == 0


def test_a_wrong_password_is_told_as_such_and_not_shown(secured: Settings) -> None:
    wrong = secured.with_(kafka={**secured.kafka, "sasl.password": "not-the-one"})
    with pytest.raises(ConfigError, match=r"refuses .*setting `kafka`") as caught:
        wait_for_broker(wrong, 5.0)
    assert "not-the-one" not in str(caught.value)
