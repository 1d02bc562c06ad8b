"""A finished run's copy of its topics: every record, undecoded, in files that anyone can read."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer as KafkaProducer

from spanloop.consumers.export import ExportService
from spanloop.consumers.tail import exported
from spanloop.infra.producer import Producer
from spanloop.infra.registry import Registry
from spanloop.infra.settings import Settings
from spanloop.schemas.examples import example
from spanloop.schemas.records import Task
from spanloop.schemas.serde import encode_body, frame, schema_json
from spanloop.schemas.topics import ROLLOUTS, TASKS, TOPICS


@pytest.fixture
def producer(embedded_settings: Settings) -> Iterator[Producer]:
    with closing(Producer(embedded_settings, "test")) as made:
        yield made


def export(settings: Settings, home: Path) -> Path:
    """Everything there is by now, exported."""
    stop = threading.Event()
    stop.set()
    ExportService(settings, home / "topics").run(stop)
    return home


def put(settings: Settings, value: bytes) -> None:
    """Writes bytes to `tasks` as they are."""
    raw = KafkaProducer({"bootstrap.servers": settings.bootstrap})
    raw.produce(TASKS.full(settings.prefix), value, key=b"ro-1")
    assert raw.flush(30) == 0


def test_every_topics_records_are_read_back(embedded_settings: Settings, producer: Producer, tmp_path: Path) -> None:
    acks = {name: producer.send_wait(example(topic.record)) for name, topic in TOPICS.items()}
    home = export(embedded_settings, tmp_path)
    for name, ack in acks.items():
        (line,) = exported(home, name)
        assert (line["partition"], line["offset"]) == (ack.partition, ack.offset)
        json.dumps(line, allow_nan=False)
    task = example(TASKS.record)
    assert isinstance(task, Task)
    record = next(exported(home, "tasks"))["record"]
    assert (record["rollout_id"], record["input"], record["group_size"]) == (
        task.rollout_id,
        task.input,
        task.group_size,
    )
    assert set(record) == {field["name"] for field in json.loads(schema_json(Task))["fields"]}


def test_a_topics_records_come_in_the_order_of_their_offsets(
    embedded_settings: Settings, producer: Producer, tmp_path: Path
) -> None:
    for number in range(5):
        producer.send(Task(rollout_id=f"ro-{number}", run_id="run", input="null"))
    producer.flush()
    lines = list(exported(export(embedded_settings, tmp_path), "tasks"))
    assert [(line["offset"], line["record"]["rollout_id"]) for line in lines] == [(n, f"ro-{n}") for n in range(5)]


def test_what_has_no_body_is_left_out(embedded_settings: Settings, producer: Producer, tmp_path: Path) -> None:
    producer.send_wait(Task(rollout_id="ro-0", run_id="run", input="null"))
    put(embedded_settings, b"no framing")
    put(embedded_settings, frame(999_999, b"body"))  # nobody registered this schema
    producer.send_wait(Task(rollout_id="ro-3", run_id="run", input="null"))
    producer.tombstone(ROLLOUTS, "ro-0")
    producer.flush()
    home = export(embedded_settings, tmp_path)
    assert [line["offset"] for line in exported(home, "tasks")] == [0, 3]
    assert not (home / "topics" / "rollouts.avro").exists()


def test_another_writers_schema_gets_a_file_of_its_own(
    embedded_settings: Settings, producer: Producer, tmp_path: Path
) -> None:
    newer: dict[str, Any] = json.loads(schema_json(Task))
    newer["fields"].append({"name": "colour", "type": "string", "default": ""})
    with closing(Registry(embedded_settings.registry_url)) as registry:
        schema_id = registry.register(TASKS.subject(embedded_settings.prefix), json.dumps(newer))
    task = Task(rollout_id="ro-1", run_id="run", input="null")
    producer.send_wait(task)
    put(embedded_settings, frame(schema_id, encode_body(task) + b"\x06red"))
    home = export(embedded_settings, tmp_path)
    assert [line["offset"] for line in exported(home, "tasks")] == [0]
    assert len(list((home / "topics").glob("tasks-*.avro"))) == 1
