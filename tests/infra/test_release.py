"""Released schemas: each reads what each wrote, and none is ever broken."""

from __future__ import annotations

import io
import json
from itertools import product
from pathlib import Path
from typing import Any

import pytest
from avro_body import avro_body
from fastavro.utils import generate_many

from spanloop.infra.release import breaks, cut, released
from spanloop.schemas.errors import ConfigError, SchemaMismatch
from spanloop.schemas.serde import parsed_schema, read_datum, schema_json
from spanloop.schemas.topics import TOPICS, Topic

VERSIONS = {**released(), "this one": {t.name: schema_json(t.record) for t in TOPICS.values()}}
each_topic = pytest.mark.parametrize("topic", TOPICS.values(), ids=TOPICS)


def record(*fields: dict[str, Any]) -> str:
    return json.dumps({"type": "record", "name": "R", "fields": list(fields)})


ID = {"name": "id", "type": "string"}
V1 = record(ID)


@each_topic
def test_every_version_reads_what_every_version_wrote(topic: Topic) -> None:
    texts = {name: schemas[topic.name] for name, schemas in VERSIONS.items() if topic.name in schemas}
    assert "this one" in texts
    for (wrote, writer), (read, reader) in product(texts.items(), repeat=2):
        for value in generate_many(json.loads(writer), 5):
            body = avro_body(writer, value)
            found = read_datum(io.BytesIO(body), parsed_schema(writer), parsed_schema(reader))
            assert found.keys() == {f["name"] for f in json.loads(reader)["fields"]}, f"{read} reads {wrote}"


@each_topic
def test_no_version_breaks_an_earlier_one(topic: Topic) -> None:
    texts = [schemas[topic.name] for schemas in VERSIONS.values() if topic.name in schemas]
    for i, text in enumerate(texts):
        assert breaks(topic.name, text, texts[:i]) is None


def test_a_breaking_change_is_refused_by_a_message_that_names_the_field() -> None:  # BR-2
    removed = breaks("tasks", record(), [V1])
    added = breaks("tasks", record(ID, {"name": "x", "type": "int"}), [V1])
    assert removed is not None
    assert added is not None
    assert removed.startswith("topic 'tasks': ")
    assert "field 'id'" in removed
    assert "field 'x'" in added
    assert breaks("tasks", record(ID, {"name": "x", "type": "int", "default": 0}), [V1]) is None


def test_a_release_keeps_todays_schemas_once(tmp_path: Path) -> None:
    cut("0.9.0", tmp_path)
    cut("0.10.0", tmp_path)
    assert list(released(tmp_path)) == ["0.9.0", "0.10.0"]
    assert released(tmp_path)["0.10.0"].keys() == TOPICS.keys()
    with pytest.raises(ConfigError, match=r"version 0\.9\.0 was cut already"):
        cut("0.9.0", tmp_path)
    with pytest.raises(ConfigError, match="expected three numbers"):
        cut("next", tmp_path)


def test_a_release_that_breaks_an_earlier_one_is_not_cut(tmp_path: Path) -> None:
    older = cut("0.9.0", tmp_path) / "tasks.avsc"
    schema = json.loads(older.read_text())
    schema["fields"].append({"name": "gone", "type": "string"})
    older.write_text(json.dumps(schema))
    with pytest.raises(SchemaMismatch, match=r"topic 'tasks': .*field 'gone'"):
        cut("0.10.0", tmp_path)
    assert list(released(tmp_path)) == ["0.9.0"]
