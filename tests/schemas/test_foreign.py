"""Records of other writers: no schema and no body of theirs kills or stops whoever reads it."""

from __future__ import annotations

import json
import subprocess
import sys
from importlib.resources import files
from typing import Any

import pytest

from spanloop.schemas.examples import example
from spanloop.schemas.foreign import parsed_writer
from spanloop.schemas.records import Reward
from spanloop.schemas.serde import Decoder, decode_body, encode_body, schema_json
from spanloop.schemas.topics import TOPICS, Record
from spanloop.schemas.varint import write_long

BODY = encode_body(example(Reward))
LIST: Any = {"type": "record", "name": "L", "fields": [{"name": "n", "type": ["null", "L"]}]}
EMPTY: Any = {"type": "record", "name": "E", "fields": []}
NULLS: Any = {"type": "record", "name": "N", "fields": [{"name": "a", "type": "null"}, {"name": "b", "type": EMPTY}]}
NOTHING: Any = {"type": "fixed", "name": "F", "size": 0}
# Run apart: what it does wrong, it does with the interpreter's lock held, or with a segfault.
READ = """
import sys
from spanloop.schemas.errors import InvalidRecord
from spanloop.schemas.records import Reward
from spanloop.schemas.serde import Decoder
class Shared:
    def schema(self, schema_id):
        return sys.argv[1]
try:
    Decoder(Shared()).decode(Reward, sys.stdin.buffer.read())
except InvalidRecord as error:
    print(error)
"""


def reward(*more: Any, **types: Any) -> str:
    """Our schema of a reward with further fields, or with other types for those it has."""
    schema = json.loads(schema_json(Reward))
    for field in schema["fields"]:
        field["type"] = types.get(field["name"], field["type"])
    schema["fields"] += [{"name": f"more{i}", "type": kind} for i, kind in enumerate(more)]
    return json.dumps(schema)


def doubling(leaf: Any, times: int) -> list[Any]:
    """Records, each of which holds the one before twice."""
    pair = [[{"name": n, "type": f"R{i - 1}" if i else leaf} for n in "ab"] for i in range(times)]
    return [{"type": "record", "name": f"R{i}", "fields": fields} for i, fields in enumerate(pair)]


@pytest.mark.parametrize(
    ("kinds", "body", "why"),
    [
        ([["null", LIST]], b"\2" * 200_000 + b"\0", "L holds itself"),
        ([{"type": "array", "items": "null"}], write_long(1 << 40), "items of an array take no bytes"),
        ([{"type": "array", "items": NULLS}], write_long(1 << 40), "items of an array take no bytes"),
        ([{"type": "array", "items": NOTHING}], write_long(1 << 40), "items of an array take no bytes"),
        ([{"type": "map", "values": {"type": "array", "items": EMPTY}}], b"", "items of an array take no bytes"),
        (doubling("null", 40), b"", "more than 100 values in it take no bytes"),
        (doubling("int", 200), b"", "lie more than 100 deep"),
        ([{"type": "array", "items": "double"}], write_long(1 << 40), "ends early"),
        ([{"type": "array", "items": {"type": "fixed", "name": "F", "size": 4}}], write_long(1 << 40), "ends early"),
        ([{"type": "map", "values": "null"}], write_long(1 << 40), "ends early"),
    ],
    ids=["list", "null", "record", "fixed", "map", "doubling", "deep", "skip-double", "skip-fixed", "map-null"],
)
def test_a_record_whose_reading_would_not_end_is_refused(kinds: list[Any], body: bytes, why: str) -> None:
    value = b"\0\0\0\0\7" + BODY + body
    command = [sys.executable, "-c", READ, reward(*kinds)]
    done = subprocess.run(command, input=value, capture_output=True, timeout=60, check=True)
    assert done.stdout.startswith(b"undecodable: ")
    assert why in done.stdout.decode()


def test_our_own_schemas_of_every_version_pass() -> None:
    released = [f.read_text("utf-8") for v in (files("spanloop.schemas") / "released").iterdir() for f in v.iterdir()]
    assert released
    for text in (*released, *(schema_json(topic.record) for topic in TOPICS.values())):
        parsed_writer(text)


def test_further_fields_of_any_other_kind_are_left_out() -> None:
    kinds: list[Any] = ["null", EMPTY, {"type": "array", "items": ["null", "E"]}, {"type": "array", "items": "double"}]
    body = BODY + b"\4\0\2\0" + b"\2" + b"\0" * 8 + b"\0" + b"\2\2k\0"
    assert decode_body(Reward, body, reward(*kinds, {"type": "map", "values": "null"})) == example(Reward)


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("created_ns", {"type": "long", "logicalType": "timestamp-micros"}),
        ("rollout_id", {"type": "string", "logicalType": "uuid"}),
        ("rollout_id", {"type": "bytes", "logicalType": "decimal", "precision": 4, "scale": 9}),
    ],
)
def test_a_logical_type_is_read_as_what_is_stored(name: str, kind: Any) -> None:
    class Shared:
        def schema(self, schema_id: int | str) -> str:
            assert schema_id == 7
            return reward(**{name: kind})

    assert Decoder(Shared()).decode(Reward, b"\0\0\0\0\7" + BODY) == example(Reward)


@pytest.mark.parametrize("record", [topic.record for topic in TOPICS.values()], ids=list(TOPICS))
def test_a_record_of_a_newer_schema_is_read_as_what_it_says(record: type[Record]) -> None:
    schema = json.loads(schema_json(record))
    schema["fields"].append({"name": "newer", "type": "int"})
    assert decode_body(record, encode_body(example(record)) + b"\2", json.dumps(schema)) == example(record)


def test_wide_and_nested_schemas_pass() -> None:
    lists: Any = "int"
    for _ in range(40):
        lists = {"type": "array", "items": lists}
    assert decode_body(Reward, BODY + b"\0" * 151, reward(lists, *[["null", "int"]] * 150)) == example(Reward)


def test_a_schema_that_says_it_is_parsed_is_parsed_all_the_same() -> None:
    one = {"type": "record", "name": "A", "fields": [{"name": "x", "type": "int"}]}
    schema = json.loads(reward(one, {"type": "array", "items": "A"}))
    schema |= {"__fastavro_parsed": True, "__named_schemas": {"A": {"type": "record", "name": "A", "fields": []}}}
    assert parsed_writer(json.dumps(schema))["__named_schemas"]["spanloop.A"]["fields"] == one["fields"]
