"""The `.avsc` files say the same as the dataclasses, and keep the rules that make them evolve."""

from __future__ import annotations

import dataclasses
import io
import json
import types
import typing
from collections.abc import Iterator
from importlib.resources import files
from typing import Any, Literal

import fastavro
import pytest

from spanloop.schemas import records
from spanloop.schemas.serde import fingerprint, from_dict, parsed_schema, read_datum, schema_json
from spanloop.schemas.topics import TOPICS, Topic

Schema = Any  # parsed Avro: a name, a list of branches or a dict
Json = dict[str, Any]
PLAIN = {str: ("string",), int: ("int", "long"), float: ("double",), bool: ("boolean",), bytes: ("bytes",)}
each_topic = pytest.mark.parametrize("topic", TOPICS.values(), ids=TOPICS)


def raw(topic: Topic) -> Json:
    text = (files("spanloop.schemas") / "avro" / f"{topic.record.__name__}.avsc").read_text("utf-8")
    return json.loads(text)


def parts(schema: Schema) -> list[Schema]:
    """The types directly inside a type."""
    if isinstance(schema, str):
        return []
    if isinstance(schema, list):
        return list(typing.cast("list[Schema]", schema))
    inner = typing.cast("Json", schema)
    fields = [field["type"] for field in inner.get("fields", [])]
    return fields + [inner[name] for name in ("items", "values") if name in inner]


def everything(schema: Schema) -> Iterator[Schema]:
    """A type and every type inside it."""
    yield schema
    for part in parts(schema):
        yield from everything(part)


def named(schema: Schema) -> list[Json]:
    """Every record and enum defined inside a type."""
    return [t for t in everything(schema) if isinstance(t, dict) and t["type"] in ("record", "enum")]


def records_in(union: list[Schema], names: set[str]) -> int:
    """How many branches of a union are records, defined there or named."""
    return sum(
        (isinstance(branch, dict) and typing.cast("Json", branch)["type"] == "record")
        or (isinstance(branch, str) and branch in names)
        for branch in union
        if not isinstance(branch, list)
    )


def agrees(hint: Any, schema: Schema) -> bool:
    """True where a Python annotation and an Avro type mean the same."""
    origin, args = typing.get_origin(hint), typing.get_args(hint)
    if isinstance(schema, list):
        null, other = typing.cast("list[Schema]", schema)
        inner = [a for a in args if a is not type(None)]
        return origin in (types.UnionType, typing.Union) and null == "null" and agrees(inner[0], other)
    if isinstance(schema, str):
        name = schema.removeprefix("spanloop.")
        return schema in PLAIN.get(hint, ()) or name in (getattr(hint, "__name__", None), literal_name(hint))
    avro = typing.cast("Json", schema)
    if origin is list:
        return avro["type"] == "array" and agrees(args[0], avro["items"])
    if origin is dict:
        return avro["type"] == "map" and agrees(args[1], avro["values"])
    if origin is Literal:
        return avro["symbols"] == list(args)
    return avro["name"] == hint.__name__


def literal_name(hint: Any) -> str | None:
    """The name under which a Literal is exported, which is its enum's name."""
    return next((name for name, value in vars(records).items() if value == hint), None)


def default_of(field: dataclasses.Field[Any]) -> Any:
    value = field.default if field.default is not dataclasses.MISSING else None
    if field.default_factory is not dataclasses.MISSING:
        value = field.default_factory()
    return dataclasses.asdict(value) if dataclasses.is_dataclass(value) and not isinstance(value, type) else value


@each_topic
def test_schema_and_dataclass_have_the_same_fields_types_and_defaults(topic: Topic) -> None:
    for schema in named(raw(topic)):
        if schema["type"] == "enum":
            continue
        cls = getattr(records, schema["name"], None) or typing.get_type_hints(records.Assembly)[schema["name"]]
        hints = typing.get_type_hints(cls)
        fields = dataclasses.fields(cls)
        assert [f["name"] for f in schema["fields"]] == [f.name for f in fields]
        for avro, field in zip(schema["fields"], fields, strict=True):
            assert agrees(hints[field.name], avro["type"]), (schema["name"], field.name)
            required = field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING
            assert ("default" in avro) is not required, (schema["name"], field.name)
            assert avro.get("default") == default_of(field), (schema["name"], field.name)


@each_topic
def test_every_record_and_field_is_documented(topic: Topic) -> None:
    for schema in named(raw(topic)):
        if schema["type"] == "record":
            assert schema["doc"]
            assert all(field["doc"] for field in schema["fields"])


@each_topic
def test_every_enum_has_the_default_symbol_unknown(topic: Topic) -> None:
    for schema in named(raw(topic)):
        if schema["type"] == "enum":
            assert schema["default"] == "unknown"
            assert schema["symbols"][0] == "unknown"


@each_topic
def test_no_union_holds_more_than_one_record(topic: Topic) -> None:
    # PS-6: a union of records would make a value ambiguous
    for union in everything(raw(topic)):
        if isinstance(union, list):
            null, *others = typing.cast("list[Schema]", union)
            assert null == "null"
            assert len(others) == 1


def write(schema: str, value: Json) -> bytes:
    out = io.BytesIO()
    fastavro.schemaless_writer(out, parsed_schema(schema), value)  # pyright: ignore[reportUnknownMemberType] untyped
    return out.getvalue()


def read(body: bytes, writer: str, reader: str) -> Json:
    return read_datum(io.BytesIO(body), parsed_schema(writer), parsed_schema(reader))


V1 = json.dumps({"type": "record", "name": "R", "fields": [{"name": "id", "type": "string"}]})
SOURCE = {"name": "source", "type": ["null", "string"], "default": None}
PRIO = {"name": "prio", "type": "int", "default": 0}
V3 = json.dumps({"type": "record", "name": "R", "fields": [{"name": "id", "type": "string"}, SOURCE, PRIO]})


def test_a_field_added_with_a_default_is_read_both_ways() -> None:
    # BR-1
    assert read(write(V1, {"id": "a"}), V1, V3) == {"id": "a", "source": None, "prio": 0}
    assert read(write(V3, {"id": "a", "source": "s", "prio": 2}), V3, V1) == {"id": "a"}


def test_a_new_enum_symbol_reads_as_unknown_in_an_old_reader() -> None:
    # BR-3
    old = json.loads(schema_json(records.Attempt))
    status = next(f["type"] for f in old["fields"] if f["name"] == "status")
    status["symbols"].append("superseded")
    newer = json.dumps(old)
    value = {"rollout_id": "ro-1", "attempt_id": "at-1", "status": "superseded"}
    decoded = from_dict(records.Attempt, read(write(newer, value), newer, schema_json(records.Attempt)))
    assert decoded.status == "unknown"


def test_the_fingerprint_ignores_white_space_and_sees_every_field() -> None:
    spaced = json.dumps(json.loads(V1), indent=4)
    assert fingerprint(spaced) == fingerprint(V1)
    assert fingerprint(V3) != fingerprint(V1)


@each_topic
def test_no_union_holds_two_records_whose_values_could_be_taken_for_each_other(topic: Topic) -> None:  # PS-6
    schema = raw(topic)
    records_defined = [t for t in named(schema) if t["type"] == "record"]
    names = {t["name"] for t in records_defined} | {f"spanloop.{t['name']}" for t in records_defined}
    unions = [typing.cast("list[Schema]", t) for t in everything(schema) if isinstance(t, list)]
    assert all(records_in(union, names) <= 1 for union in unions)
    ambiguous: list[Schema] = ["null", {"type": "record", "name": "A", "fields": []}, "B"]
    assert records_in(ambiguous, {"B"}) == 2
