"""How schemas may grow, on the embedded registry and on a real one (BR-1, BR-2, BR-3)."""

from __future__ import annotations

import io
import json
from typing import Any

import pytest
from avro_body import avro_body

from spanloop.infra import admin
from spanloop.infra.producer import Producer
from spanloop.infra.registry import COMPATIBILITY, Registry
from spanloop.infra.release import released
from spanloop.infra.settings import Settings
from spanloop.schemas.errors import SchemaMismatch
from spanloop.schemas.serde import Decoder, frame, parsed_schema, read_datum, schema_json, split
from spanloop.schemas.topics import TASKS, TOPICS

ID = {"name": "id", "type": "string"}
SOURCE = {"name": "source", "type": ["null", "string"], "default": None}
PRIO = {"name": "prio", "type": "int", "default": 0}


def record(*fields: dict[str, Any]) -> str:
    return json.dumps({"type": "record", "name": "R", "fields": list(fields)})


V1, V2, V3 = record(ID), record(ID, SOURCE), record(ID, SOURCE, PRIO)


def status(*symbols: str) -> str:
    kind = {"type": "enum", "name": "Status", "symbols": list(symbols), "default": "unknown"}
    return record(ID, {"name": "status", "type": kind, "default": "unknown"})


@pytest.fixture
def subject(conforming: Settings, lookup: Registry) -> str:
    """A subject of this test's own, as `spanloop init` sets them up."""
    name = f"{conforming.prefix}-things-value"
    lookup.set_compatibility(name)
    return name


def written(schema_id: int, schema: str, value: dict[str, Any]) -> bytes:
    return frame(schema_id, avro_body(schema, value))


def read(decoder: Decoder, value: bytes, reader: str) -> Any:
    schema_id, body = split(value)
    return read_datum(io.BytesIO(body), parsed_schema(decoder.writer(schema_id)), parsed_schema(reader))


def test_init_holds_every_subject_to_full_transitive(conforming: Settings, lookup: Registry) -> None:
    levels = {t.name: lookup.compatibility(t.subject(conforming.prefix)) for t in TOPICS.values()}
    assert levels == dict.fromkeys(TOPICS, COMPATIBILITY) == dict.fromkeys(TOPICS, "FULL_TRANSITIVE")


def test_every_released_version_is_registered_in_order_and_todays_after_them(
    conforming: Settings, lookup: Registry
) -> None:
    settings = conforming.with_(prefix=f"{conforming.prefix}r")
    ids: dict[str, list[int]] = {}
    for schemas in released().values():
        for name, text in schemas.items():
            subject = TOPICS[name].subject(settings.prefix)
            lookup.set_compatibility(subject)
            ids.setdefault(name, []).append(lookup.register(subject, text))
    for name, latest in admin.register(settings).items():
        assert all(lookup.schema(i) for i in {*ids.get(name, ()), latest})


def test_old_and_new_writers_and_readers_of_a_grown_record_read_each_other(subject: str, lookup: Registry) -> None:
    ids = [lookup.register(subject, schema) for schema in (V1, V2, V3)]
    assert len(set(ids)) == 3
    decoder = Decoder(lookup)
    one = written(ids[0], V1, {"id": "a"})
    two = written(ids[1], V2, {"id": "b", "source": "s"})
    three = written(ids[2], V3, {"id": "c", "source": "s", "prio": 7})
    mixed = [three, one, two]
    assert [read(decoder, value, V1) for value in mixed] == [{"id": "c"}, {"id": "a"}, {"id": "b"}]
    assert [read(decoder, value, V3) for value in mixed] == [
        {"id": "c", "source": "s", "prio": 7},
        {"id": "a", "source": None, "prio": 0},
        {"id": "b", "source": "s", "prio": 0},
    ]


@pytest.mark.parametrize(
    ("v4", "field"),
    [(record(SOURCE, PRIO), "id"), (record(ID, SOURCE, PRIO, {"name": "x", "type": "int"}), "x")],
)
def test_a_removed_field_and_one_without_a_default_are_refused_by_name(
    subject: str, lookup: Registry, v4: str, field: str
) -> None:
    for schema in (V1, V2, V3):
        lookup.register(subject, schema)
    with pytest.raises(SchemaMismatch, match=f"subject '{subject}': .*field '{field}'.*only be added, with defaults"):
        lookup.register(subject, v4)


def test_a_symbol_that_an_old_reader_does_not_know_is_unknown_to_it(subject: str, lookup: Registry) -> None:
    old, new = status("unknown", "running"), status("unknown", "running", "superseded")
    lookup.register(subject, old)
    value = written(lookup.register(subject, new), new, {"id": "a", "status": "superseded"})
    assert read(Decoder(lookup), value, old) == {"id": "a", "status": "unknown"}


def test_a_producer_whose_schema_breaks_its_subject_fails_at_its_start(conforming: Settings, lookup: Registry) -> None:
    settings = conforming.with_(prefix=f"{conforming.prefix}b")
    subject = TASKS.subject(settings.prefix)
    later = json.loads(schema_json(TASKS.record))
    later["fields"].append({"name": "needed", "type": "string"})
    lookup.register(subject, json.dumps(later))
    lookup.set_compatibility(subject)
    with pytest.raises(SchemaMismatch, match="field 'needed'"):
        Producer(settings, "test")
