"""Schema resolution as the Avro specification defines it, one rule a test; each also against fastavro's own reading."""

from __future__ import annotations

import io
import json
import re
from collections.abc import Callable
from typing import Any, cast

import fastavro
import pytest
from fastavro.schema import parse_schema

from spanloop.infra.compatibility import complaints, parse, unreadable
from spanloop.schemas.errors import SchemaMismatch
from spanloop.schemas.serde import schema_json
from spanloop.schemas.topics import TOPICS, Topic

Schema = Any  # parsed Avro: a name, a list of branches or a dict
# fastavro's stubs leave its file argument untyped
write = cast("Callable[[io.BytesIO, Schema, object], None]", fastavro.schemaless_writer)  # pyright: ignore[reportUnknownMemberType]
read = cast("Callable[[io.BytesIO, Schema, Schema], object]", fastavro.schemaless_reader)  # pyright: ignore[reportUnknownMemberType]


def record(*fields: dict[str, Schema], name: str = "R") -> dict[str, Schema]:
    return {"type": "record", "name": name, "fields": list(fields)}


def field(name: str, kind: Schema, **more: object) -> dict[str, Schema]:
    return {"name": name, "type": kind, **more}


def wrong(reader: Schema, writer: Schema) -> list[str]:
    return unreadable(parse(json.dumps(reader)), parse(json.dumps(writer)))


A = field("a", "int")
INNER = record(field("x", "int"), name="I")
WIDER = record(field("x", "int"), field("y", "int"), name="I")

READABLE: list[tuple[str, Schema, Schema, Schema]] = [
    ("equal schemas", record(A), record(A), {"a": 1}),
    ("a new field with a default", record(A, field("b", "int", default=7)), record(A), {"a": 1}),
    ("a field that the reader left out", record(A), record(A, field("b", "int")), {"a": 1, "b": 2}),
    ("another order of fields", record(field("b", "int"), A), record(A, field("b", "int")), {"a": 1, "b": 2}),
    ("a renamed field by its alias", record(field("z", "int", aliases=["a"])), record(A), {"a": 1}),
    ("int as long", record(field("a", "long")), record(A), {"a": 1}),
    ("int as double", record(field("a", "double")), record(A), {"a": 1}),
    ("string as bytes", record(field("a", "bytes")), record(field("a", "string")), {"a": "x"}),
    ("a value where the reader has a union", record(field("a", ["null", "int"])), record(A), {"a": 1}),
    ("an int for the reader's union with long", record(field("a", ["null", "long"])), record(A), {"a": 1}),
    ("an array of what can be read", {"type": "array", "items": "long"}, {"type": "array", "items": "int"}, [1]),
    ("a map of what can be read", {"type": "map", "values": "long"}, {"type": "map", "values": "int"}, {"k": 1}),
    (
        "a symbol unknown to an enum with a default",
        record(field("e", {"type": "enum", "name": "E", "symbols": ["u", "a"], "default": "u"})),
        record(field("e", {"type": "enum", "name": "E", "symbols": ["u", "a", "b"], "default": "u"})),
        {"e": "b"},
    ),
    (
        "a record that holds itself",
        record(field("v", "long"), field("next", ["null", "N"]), name="N"),
        record(field("v", "int"), field("next", ["null", "N"]), name="N"),
        {"v": 1, "next": {"v": 2, "next": None}},
    ),
]


@pytest.mark.parametrize(("why", "reader", "writer", "value"), READABLE, ids=[r[0] for r in READABLE])
def test_it_is_readable(why: str, reader: Schema, writer: Schema, value: object) -> None:
    assert wrong(reader, writer) == [], why
    out = io.BytesIO()
    write(out, parse_schema(writer), value)
    out.seek(0)
    read(out, parse_schema(writer), parse_schema(reader))  # another implementation agrees


UNREADABLE: list[tuple[str, Schema, Schema, str]] = [
    ("a new field without a default", record(A, field("b", "int")), record(A), "field 'b'"),
    ("another type", record(field("a", "string")), record(A), "field 'a': type string cannot read int"),
    ("long as int", record(A), record(field("a", "long")), "field 'a'"),
    ("double as float", record(field("a", "float")), record(field("a", "double")), "field 'a'"),
    ("null where the reader has no union", record(A), record(field("a", ["null", "int"])), "field 'a'"),
    (
        "a string for a union without one",
        record(field("a", ["null", "int"])),
        record(field("a", "string")),
        "field 'a'",
    ),
    (
        "inside a record in an array",
        record(field("l", {"type": "array", "items": WIDER})),
        record(field("l", {"type": "array", "items": INNER})),
        r"field 'l\[\].y'",
    ),
    (
        "inside a record in a union",
        record(field("o", ["null", WIDER])),
        record(field("o", ["null", INNER])),
        "field 'o.y'",
    ),
    (
        "inside a map",
        record(field("m", {"type": "map", "values": "int"})),
        record(field("m", {"type": "map", "values": "string"})),
        r"field 'm\{\}'",
    ),
    (
        "a symbol unknown to an enum without a default",
        {"type": "enum", "name": "E", "symbols": ["a"]},
        {"type": "enum", "name": "E", "symbols": ["a", "b"]},
        r"symbols \['b'\]",
    ),
    ("a record of another name", record(A, name="S"), record(A), "record S cannot read record R"),
    (
        "a fixed of another size",
        {"type": "fixed", "name": "F", "size": 4},
        {"type": "fixed", "name": "F", "size": 8},
        "fixed",
    ),
]


@pytest.mark.parametrize(("why", "reader", "writer", "named"), UNREADABLE, ids=[r[0] for r in UNREADABLE])
def test_it_is_not_readable_and_the_field_is_named(why: str, reader: Schema, writer: Schema, named: str) -> None:
    del why
    (complaint,) = wrong(reader, writer)
    assert re.search(named, complaint), complaint


V1 = json.dumps(record(A))
V2 = json.dumps(record(A, field("b", "int", default=0)))
V3 = json.dumps(record(A, field("b", "int")))  # the default is gone: it reads v2, not v1
V1_LESS = json.dumps(record())


@pytest.mark.parametrize(
    ("level", "new", "earlier", "allowed"),
    [
        ("NONE", json.dumps("string"), [V1], True),
        ("BACKWARD", V2, [V1], True),
        ("BACKWARD", V1_LESS, [V1], True),
        ("BACKWARD", V3, [V1], False),
        ("BACKWARD", V3, [V1, V2], True),
        ("BACKWARD_TRANSITIVE", V3, [V1, V2], False),
        ("FORWARD", V3, [V1], True),
        ("FORWARD", V1_LESS, [V1], False),
        ("FULL", V2, [V1], True),
        ("FULL", V3, [V1], False),
        ("FULL", V1_LESS, [V1], False),
        ("FULL", V3, [V1, V2], True),
        ("FULL_TRANSITIVE", V3, [V1, V2], False),
        ("FULL_TRANSITIVE", V2, [V1], True),
    ],
)
def test_levels(level: str, new: str, earlier: list[str], allowed: bool) -> None:
    assert (complaints(level, new, earlier) == []) is allowed


@pytest.mark.parametrize("topic", TOPICS.values(), ids=lambda t: t.name)
def test_this_versions_schemas_take_an_added_field_and_refuse_a_removed_one(topic: Topic) -> None:
    own = schema_json(topic.record)
    more = json.loads(own)
    more["fields"].append(field("later", ["null", "string"], default=None))
    assert complaints("FULL_TRANSITIVE", json.dumps(more), [own]) == []
    less = json.loads(own)
    gone = next(f for f in less["fields"] if "default" not in f)
    less["fields"].remove(gone)
    (complaint,) = complaints("FULL_TRANSITIVE", json.dumps(less), [own])
    assert f"field '{gone['name']}'" in complaint


def test_what_is_no_schema_is_refused() -> None:
    for text in ("{", '{"type": "record"}', '"nothing"', '{"type": "record", "name": "R", "fields": [{"name": "a"}]}'):
        with pytest.raises(SchemaMismatch, match="not an Avro schema"):
            parse(text)
