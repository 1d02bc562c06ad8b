"""What the sink refuses, and what it must not: framing, schemas, garbled bodies, tombstones."""

from __future__ import annotations

import io
import json
import random
import struct
from collections.abc import Callable
from dataclasses import replace
from typing import Any, cast
from uuid import UUID

import fastavro
import pytest
from clickhouse_connect.driver.exceptions import DatabaseError
from sink_rig import Lab

from spanloop.infra.clickhouse_client import Client
from spanloop.infra.kafka import Message
from spanloop.schemas.errors import ConfigError, TooManyDeadLetters, Unavailable
from spanloop.schemas.records import Reward, SpanBatch
from spanloop.schemas.serde import (
    SCHEMA_ID_HEADER,
    LocalSchemas,
    encode_body,
    fingerprint,
    frame,
    local_ids,
    schema_json,
    to_plain,
)

# fastavro's stubs stop short
write = cast("Callable[[io.BytesIO, Any, Any], None]", fastavro.schemaless_writer)  # pyright: ignore[reportUnknownMemberType]


def bad(topic: str, offset: int, value: bytes) -> Message:
    return Message(topic, 0, offset, b"ro-1", value)


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        (b"\x01\x02\x03", "bad_framing"),
        (struct.pack(">bI", 0, 4_000_000) + b"body", "unknown_schema_id"),
        (b'{"rollout_id":"ro-1"}', "bad_framing"),
    ],
)
def test_one_poisoned_record_among_a_thousand_is_quarantined_alone(
    lab: Lab, value: bytes, reason: str
) -> None:  # SP-22
    messages = [lab.message(lab.batch(lab.span(f"{i:016x}"))) for i in range(1001)]
    messages[500] = bad("spans", 500, value)
    lab.sink().write(messages)
    assert lab.one("SELECT count() FROM v_spans") == 1000
    assert [(d.topic, d.partition, d.offset, d.reason, d.raw) for d in lab.letters.sent] == [
        ("spans", 0, 500, reason, value)
    ]
    assert lab.rows("SELECT records, rows, quarantined FROM v_audit") == [(1001, 1000, 1)]


@pytest.mark.parametrize("kind", ["cut", "random", "empty"])
def test_a_body_that_clickhouse_cannot_read_is_found_and_its_neighbours_are_stored(
    lab: Lab, kind: str
) -> None:  # CH-13
    messages = [lab.message(lab.batch(lab.span(f"{i:016x}"))) for i in range(1000)]
    good = messages[321].value or b""
    body = {"cut": good[5 : len(good) // 2], "random": random.Random(1).randbytes(300), "empty": b""}[kind]
    messages[321] = bad("spans", 321, good[:5] + body)
    lab.sink().write(messages)
    stored = {int(i, 16) for (i,) in lab.rows("SELECT span_id FROM v_spans")}
    assert stored == set(range(1000)) - {321}
    assert [(d.offset, d.reason) for d in lab.letters.sent] == [(321, "insert_rejected")]
    assert "Code:" in lab.letters.sent[0].message


def test_a_body_with_bytes_left_over_does_not_shift_the_next_one(lab: Lab) -> None:
    messages = [lab.message(lab.batch(lab.span(f"{i:016x}"))) for i in range(3)]
    messages[1] = bad("spans", 1, (messages[1].value or b"") + b"\x02\x02")
    lab.sink().write(messages)
    assert lab.rows("SELECT span_id, k_offset FROM v_spans ORDER BY k_offset") == [(f"{i:016x}", i) for i in range(3)]


def test_more_bad_neighbours_than_the_limit_stop_the_sink(lab: Lab) -> None:
    lab.limit = 5
    scattered = [lab.message(lab.batch(lab.span(f"s{i}"))) for i in range(20)]
    for i in range(0, 20, 2):
        scattered[i] = bad("spans", i, b"?")
    lab.sink().write(scattered)
    assert len(lab.letters.sent) == 10
    with pytest.raises(TooManyDeadLetters):
        lab.sink().write([bad("spans", 20 + i, b"?") for i in range(6)])


def test_missing_tables_stop_the_sink_instead_of_refusing_records(lab: Lab) -> None:
    sink = lab.sink()
    sink.write([lab.message(lab.batch(lab.span()))])
    for table in lab.rows("SHOW TABLES LIKE 'landing_spans%'"):
        lab.client.command(f"DROP TABLE `{table[0]}`")
    with pytest.raises(ConfigError, match="spanloop init"):
        sink.write([lab.message(lab.batch(lab.span()))])
    assert lab.letters.sent == []


class Answering:
    """A client of a ClickHouse that answers every insert with an error."""

    def __init__(self, client: Client, answer: str) -> None:
        self._client = client
        self._answer = answer
        self.asked = 0

    def insert(self, table: str, block: bytes, fmt: str, settings: object = None) -> None:
        del table, block, fmt, settings
        self.asked += 1
        raise DatabaseError(self._answer)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._client, name)


@pytest.mark.parametrize("tombstone", [False, True])
@pytest.mark.parametrize(
    "answer",
    [
        "Code: 243. DB::Exception: Cannot reserve 1.00 MiB, not enough space. (NOT_ENOUGH_SPACE)",
        "Code: 439. DB::Exception: Cannot schedule a task. (CANNOT_SCHEDULE_TASK)",
        "Code: 499. DB::Exception: slow down. (S3_ERROR)",
        "Code: 1001. DB::Exception: std::exception. Code: 1001, type: std::__fs::filesystem::filesystem_error",
        "Code: 49. DB::Exception: Bad cast. (LOGICAL_ERROR)",
        "Code: 7777. DB::Exception: what a later version says. (UNHEARD_OF)",
        "HTTP driver received HTTP status 413, server response: too large, says a proxy",
    ],
    ids=["disk", "threads", "s3", "file system", "bug", "unknown", "proxy"],
)
def test_what_clickhouse_says_of_itself_refuses_no_record(lab: Lab, answer: str, tombstone: bool) -> None:
    messages = [lab.message(lab.batch(lab.span(f"{i:016x}"))) for i in range(8)]
    if tombstone:
        messages = [Message("assemblies", 0, 1, b"at-1", None)]
    answering = Answering(lab.client, answer)
    lab.client = cast("Client", answering)
    with pytest.raises(Unavailable, match="cannot take this now"):
        lab.sink().write(messages)
    assert (answering.asked, lab.letters.sent) == (1, [])


# --- framing, tombstones, versions of schemas


def test_schema_ids_in_headers_are_understood(lab: Lab) -> None:
    class ByGuid(LocalSchemas):
        def schema(self, schema_id: int | str) -> str:
            return super().schema(local_ids()["spans"] if schema_id == str(UUID(int=7)) else schema_id)

    by_id = (SCHEMA_ID_HEADER, struct.pack(">bI", 0, local_ids()["spans"]))
    by_guid = (SCHEMA_ID_HEADER, b"\x01" + UUID(int=7).bytes)
    messages = [
        Message("spans", p, 0, b"ro-1", encode_body(lab.batch(lab.span(f"s{p}"))), [header])
        for p, header in enumerate((by_id, by_guid))
    ]
    lab.sink(ByGuid()).write(messages)
    assert lab.rows("SELECT span_id, k_partition FROM spans ORDER BY ALL") == [("s0", 0), ("s1", 1)]


def test_a_tombstone_has_its_own_table(lab: Lab) -> None:
    lab.sink().write([Message("assemblies", 2, 9, b"at-1", None, timestamp_ms=1_760_000_000_123)])
    stored = lab.rows("SELECT topic, key, k_partition, k_offset, toUnixTimestamp64Milli(at) FROM tombstones")
    assert stored == [("assemblies", "at-1", 2, 9, 1_760_000_000_123)]
    assert lab.rows("SELECT records, rows, tombstones FROM v_audit") == [(1, 0, 1)]


def test_an_older_writer_lands_beside_a_newer_one_with_the_readers_defaults(lab: Lab) -> None:
    older = json.loads(schema_json(type(lab.batch())))
    spans = next(f for f in older["fields"] if f["name"] == "spans")["type"]["items"]
    spans["fields"] = [f for f in spans["fields"] if f["name"] not in ("kind", "links", "call", "dropped_links")]
    older["fields"] = [f for f in older["fields"] if f["name"] not in ("begin", "end")]
    text = json.dumps(older, separators=(",", ":"))

    class Both(LocalSchemas):
        def schema(self, schema_id: int | str) -> str:
            return text if schema_id == 99 else super().schema(schema_id)

    value = frame(99, _old_body(older, lab.batch(lab.span("old"))))
    newer = replace(lab.message(lab.batch(lab.span("new", kind="client"))), offset=1)
    lab.sink(Both()).write([bad("spans", 0, value), newer])
    assert lab.letters.sent == []
    rows = lab.rows("SELECT span_id, kind, links, is_call, k_offset FROM v_spans ORDER BY k_offset")
    assert rows == [("old", "internal", "[]", False, 0), ("new", "client", "[]", False, 1)]
    tokens = lab.one("SELECT tokens FROM ingest_log")
    assert sorted(tokens) == sorted(
        [f"spans:0:0-0:{fingerprint(text)}", f"spans:0:1-1:{fingerprint(schema_json(type(lab.batch())))}"]
    )


def test_fields_of_a_newer_writer_are_kept_beside_the_columns(lab: Lab) -> None:  # BR-1
    newer = json.loads(schema_json(type(lab.batch())))
    spans = next(f for f in newer["fields"] if f["name"] == "spans")["type"]["items"]
    spans["fields"].append({"name": "colour", "type": ["null", "string"], "default": None})
    newer["fields"].append({"name": "prio", "type": "int", "default": 0})

    class Newer(LocalSchemas):
        def schema(self, schema_id: int | str) -> str:
            return json.dumps(newer) if schema_id == 99 else super().schema(schema_id)

    value = to_plain(lab.batch(lab.span("s1"), lab.span("s2")))
    value["prio"] = 7
    value["spans"][1]["colour"] = "red"
    out = io.BytesIO()
    write(out, newer, value)
    lab.sink(Newer()).write([bad("spans", 0, frame(99, out.getvalue()))])
    assert lab.letters.sent == []
    assert lab.rows("SELECT span_id, unknown_fields FROM v_spans ORDER BY span_id") == [
        ("s1", {"prio": "7", "spans.colour": "null"}),
        ("s2", {"prio": "7", "spans.colour": '"red"'}),
    ]


def _old_body(schema: Any, record: Any) -> bytes:
    out = io.BytesIO()
    write(out, schema, to_plain(record))
    return out.getvalue()


def _odd(kind: object) -> str:
    return json.dumps({"type": "record", "name": "Odd", "fields": [{"name": "x", "type": kind}]})


def _ours_but(record: type[Reward | SpanBatch], name: str, kind: object) -> str:
    schema = json.loads(schema_json(record))
    (field,) = (f for f in schema["fields"] if f["name"] == name)
    field["type"] = kind
    del field["default"]
    return json.dumps(schema)


@pytest.mark.parametrize(
    ("topic", "schema", "reason", "why"),
    [
        ("spans", _odd(["null", "long", "string"]), "unsupported", "only null with one other type"),
        ("spans", _odd("null"), "unsupported", "a field of type null"),
        ("spans", _odd("com.shop.Money"), "undecodable", "UnknownType com.shop.Money"),
        ("spans", 'syntax = "proto3";', "undecodable", "JSONDecodeError"),
        ("spans", _ours_but(SpanBatch, "spans", "string"), "unsupported", "of type string, expected an array"),
        ("rewards", _ours_but(Reward, "created_ns", "string"), "unsupported", "created_ns as text, expected number"),
        ("rewards", _ours_but(Reward, "dimensions", "string"), "unsupported", "as text, expected map of number"),
    ],
    ids=["union", "null", "reference", "protobuf", "no array", "a text for a time", "a text for a map"],
)
def test_a_record_of_a_schema_that_clickhouse_cannot_hold_is_quarantined(
    lab: Lab, topic: str, schema: str, reason: str, why: str
) -> None:
    class Shared(LocalSchemas):
        def schema(self, schema_id: int | str) -> str:
            return schema if schema_id == 99 else super().schema(schema_id)

    lab.sink(Shared()).write([bad(topic, 0, frame(99, b"\0")), lab.message(Reward("rw", "ro-1", "judge"), 1)])
    assert [(d.topic, d.offset, d.reason) for d in lab.letters.sent] == [(topic, 0, reason)]
    assert why in lab.letters.sent[0].message
    assert lab.one("SELECT count() FROM rewards") == 1
