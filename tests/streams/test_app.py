"""The assembler in front of a broker: records in, trajectories out, offsets committed in order, errors loud."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Generator
from contextlib import contextmanager

from events import batch, end, llm, rew

from spanloop.infra.kafka import Reader
from spanloop.infra.producer import Producer
from spanloop.infra.registry import Registry
from spanloop.infra.settings import Settings
from spanloop.schemas.records import Assembly, Attempt, Trajectory
from spanloop.schemas.serde import Decoder
from spanloop.schemas.topics import ASSEMBLIES, ATTEMPTS, TRAJECTORIES, Record, Topic
from spanloop.streams.app import AssemblerService
from spanloop.streams.messages import Policy

DEADLINE_S = 30.0


@contextmanager
def running(settings: Settings, policy: Policy | None = None) -> Generator[None]:
    """An assembler in a thread; an error of its own fails the test."""
    stop, errors = threading.Event(), list[BaseException]()
    service = AssemblerService(settings, policy)

    def run() -> None:
        try:
            service.run(stop)
        except BaseException as error:
            errors.append(error)
            raise

    thread = threading.Thread(target=run)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join(DEADLINE_S)
        assert not thread.is_alive()
    assert errors == []


def all_of(settings: Settings, topic: Topic, enough: Callable[[list[Record]], bool]) -> list[Record]:
    """Everything on a topic, once there is enough of it."""
    registry, reader = Registry(settings.registry_url), Reader(settings, "test")
    decoder, out, limit = Decoder(registry), list[Record](), time.monotonic() + DEADLINE_S
    try:
        reader.assign_topics([topic])
        while not enough(out):
            assert time.monotonic() < limit, f"only {out} came"
            out += [
                decoder.decode_topic(topic, m.value, m.headers) for m in reader.poll(100, 0.1) if m.value is not None
            ]
    finally:
        reader.close()
        registry.close()
    return out


def wait_for(condition: Callable[[], bool]) -> None:
    limit = time.monotonic() + DEADLINE_S
    while not condition():
        assert time.monotonic() < limit
        time.sleep(0.05)


def test_an_attempt_becomes_a_trajectory(embedded_settings: Settings) -> None:
    producer = Producer(embedded_settings, "test")
    with running(embedded_settings):
        producer.send(batch(llm("s1", [1, 2], [3]), begin=True))
        producer.send(rew(1.0))
        producer.send(batch(end=end(span_count=1)))
        producer.flush()
        (found,) = all_of(embedded_settings, TRAJECTORIES, lambda r: len(r) >= 1)[-1:]
        assert isinstance(found, Trajectory)
        assert found.attempt_id == "at-1"
        events = all_of(embedded_settings, ATTEMPTS, lambda r: len(r) >= 2)
        assert [e.status for e in events if isinstance(e, Attempt)] == ["running", "ended"]
        (assembly,) = all_of(embedded_settings, ASSEMBLIES, lambda r: len(r) >= 1)[:1]
        assert isinstance(assembly, Assembly)
    producer.close()
