"""Compiled writers make the bytes that fastavro makes, and compiled readers read them."""

from __future__ import annotations

import io
import json
from typing import Any, cast

import fastavro
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from spanloop.schemas.compiled import compile_writer
from spanloop.schemas.errors import InvalidRecord
from spanloop.schemas.examples import example
from spanloop.schemas.records import Resource, SpanBatch, Task
from spanloop.schemas.serde import decode_body, encode_body, from_dict, parsed_schema, schema_json, to_plain
from spanloop.schemas.topics import TOPICS, Record, Topic
from spanloop.schemas.varint import read_long, write_long

LONG = fastavro.parse_schema("long")
RECORDS = [topic.record for topic in TOPICS.values()]


def by_fastavro(record: Record) -> bytes:
    out = io.BytesIO()
    fastavro.schemaless_writer(out, parsed_schema(schema_json(type(record))), to_plain(record))  # pyright: ignore[reportUnknownMemberType] untyped
    return out.getvalue()


TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=5)  # lone surrogates are no UTF-8
PLAIN: dict[str, st.SearchStrategy[object]] = {
    "null": st.none(),
    "string": TEXT,
    "bytes": st.binary(max_size=5),
    "long": st.integers(-(2**63), 2**63 - 1),
    "int": st.integers(-(2**31), 2**31 - 1),
    "double": st.floats(),
    "boolean": st.booleans(),
}


def values(schema: Any, named: dict[str, st.SearchStrategy[object]]) -> st.SearchStrategy[Any]:
    """Any value of a schema, lists kept short."""
    if isinstance(schema, list):
        return st.one_of([values(branch, named) for branch in cast("list[Any]", schema)])
    if isinstance(schema, str):
        return named[schema.removeprefix("spanloop.")] if schema not in PLAIN else PLAIN[schema]
    match schema["type"]:
        case "record":
            fields = {f["name"]: values(f["type"], named) for f in schema["fields"]}
            made = named[schema["name"]] = st.fixed_dictionaries(fields)
        case "enum":
            made = named[schema["name"]] = st.sampled_from(schema["symbols"])
        case "array":
            made = st.lists(values(schema["items"], named), max_size=2)
        case "map":
            made = st.dictionaries(TEXT, values(schema["values"], named), max_size=2)
        case plain:
            made = values(plain, named)
    return made


def records(kind: type[Record]) -> st.SearchStrategy[Record]:
    return values(json.loads(schema_json(kind)), {}).map(lambda value: from_dict(kind, value))


any_record = st.one_of([records(kind) for kind in RECORDS])


@given(any_record)
@settings(max_examples=300, suppress_health_check=[HealthCheck.too_slow], deadline=None)
def test_any_record_has_the_bytes_that_fastavro_writes(record: Record) -> None:
    expected = by_fastavro(record)
    assert encode_body(record) == expected
    assert repr(decode_body(type(record), expected, schema_json(type(record)))) == repr(record)


@pytest.mark.parametrize("topic", TOPICS.values(), ids=TOPICS)
def test_a_body_cut_anywhere_is_refused(topic: Topic) -> None:
    body = encode_body(example(topic.record))
    for length in range(len(body)):
        with pytest.raises(InvalidRecord):
            decode_body(topic.record, body[:length], schema_json(topic.record))


@given(st.integers(-(2**63), 2**63 - 1))
def test_every_64_bit_number_is_avros_long_and_comes_back(value: int) -> None:
    data = write_long(value)
    out = io.BytesIO()
    fastavro.schemaless_writer(out, LONG, value)  # pyright: ignore[reportUnknownMemberType] untyped
    assert data == out.getvalue()
    assert read_long(data + b"\x7f", 0) == (value, len(data))


def test_a_number_of_more_than_64_bits_is_refused_both_ways() -> None:
    with pytest.raises(OverflowError, match="does not fit into 64 bits"):
        write_long(2**63)
    with pytest.raises(ValueError, match="more than 64 bits"):
        read_long(b"\xff" * 9 + b"\x7f", 0)


def test_a_number_without_end_is_not_read_to_its_end() -> None:
    with pytest.raises(ValueError, match="more than 64 bits"):  # read whole, this would take hours
        read_long(b"\xff" * (16 << 20), 0)


def test_array_blocks_that_name_their_bytes_are_read() -> None:
    # other Avro libraries write [-count, bytes, items]; ours writes [count, items]
    body = encode_body(SpanBatch("ro-1", "at-1", "wo-1"))
    empty = body.rindex(b"\0\0")  # no spans, no end
    span = example(SpanBatch).spans[0]
    one = encode_body(SpanBatch("ro-1", "at-1", "wo-1", spans=[span]))
    item = one[empty + 1 : -2]
    block = write_long(-1) + write_long(len(item)) + item + b"\0"
    read = decode_body(SpanBatch, body[:empty] + block + body[empty + 1 :], schema_json(SpanBatch))
    assert read == SpanBatch("ro-1", "at-1", "wo-1", spans=[span])


@pytest.mark.parametrize(
    "record",
    [
        Task(None, "run"),  # pyright: ignore[reportArgumentType]  # what a caller may pass
        Task("ro-1", "run", priority=1.5),  # pyright: ignore[reportArgumentType]
        Task("ro-1", "run", mode="traini"),  # pyright: ignore[reportArgumentType]
        Resource("policy", 1, body="\ud800"),
        Resource("policy", 1 << 63),
    ],
    ids=["null", "fraction", "symbol", "surrogate", "large"],
)
def test_a_value_that_does_not_fit_is_refused(record: Record) -> None:
    with pytest.raises(InvalidRecord, match="cannot be encoded"):
        encode_body(record)


@pytest.mark.parametrize("priority", [1 << 31, -(1 << 31) - 1, 1_760_000_000_000])
def test_a_number_beyond_32_bits_is_refused_both_ways_where_32_are_meant(priority: int) -> None:
    with pytest.raises(InvalidRecord, match=rf"Task\.priority is {priority}, expected .* to 2147483647"):
        encode_body(Task("ro-1", "run", priority=priority))
    head, tail = encode_body(Task("ro-1", "run", priority=7777)).split(write_long(7777))
    with pytest.raises(InvalidRecord, match="does not fit into 32 bits"):
        decode_body(Task, head + write_long(priority) + tail, schema_json(Task))
    newer = json.loads(schema_json(Task))
    newer["fields"].append({"name": "extra", "type": "int", "default": 0})
    assert decode_body(Task, head + write_long(7777) + tail + b"\0", json.dumps(newer)).priority == 7777
    with pytest.raises(InvalidRecord, match=rf"body is no Task: .*Task\.priority is {priority}"):
        decode_body(Task, head + write_long(priority) + tail + b"\0", json.dumps(newer))


def test_a_union_of_two_records_is_refused_when_compiled() -> None:
    schema = {"type": "record", "name": "A", "fields": [{"name": "x", "type": ["null", "string", "long"]}]}
    with pytest.raises(ValueError, match="only unions of null"):
        compile_writer(schema)
