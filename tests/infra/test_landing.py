"""Writers of several versions of one schema, side by side in one partition."""

from __future__ import annotations

import io
import json
from collections.abc import Callable, Iterator
from typing import Any, cast
from uuid import uuid4

import fastavro
import pytest

from spanloop.consumers.avro_container import Container
from spanloop.infra.avro_sql import Schema, foreign
from spanloop.infra.clickhouse import connect
from spanloop.infra.clickhouse_client import Client
from spanloop.infra.landing import select
from spanloop.infra.landing_targets import MADE, Target
from spanloop.infra.settings import Settings

Json = dict[str, Any]

# fastavro's stubs stop short
write = cast("Callable[[io.BytesIO, Any, Any], None]", fastavro.schemaless_writer)  # pyright: ignore[reportUnknownMemberType]

ID: Json = {"name": "id", "type": "string"}
SOURCE: Json = {"name": "source", "type": ["null", "string"], "default": None}
PRIO: Json = {"name": "prio", "type": "int", "default": 0}


def record(*fields: Json, name: str = "R") -> Json:
    return {"type": "record", "name": name, "fields": list(fields)}


V1, V2, V3 = record(ID), record(ID, SOURCE), record(ID, SOURCE, PRIO)
VALUES = ({"id": "one"}, {"id": "two", "source": "s"}, {"id": "three", "source": None, "prio": 7})
COLUMNS = {"id": "String", "source": "Nullable(String)", "prio": "Int32"}


@pytest.fixture
def client(clickhouse_url: str) -> Iterator[Client]:
    settings = Settings(clickhouse_url=clickhouse_url, clickhouse_database=f"t{uuid4().hex[:12]}")
    found = connect(settings)
    found.command(f"CREATE DATABASE {settings.clickhouse_database}", use_database=False)
    yield found
    found.command(f"DROP DATABASE {settings.clickhouse_database}", use_database=False)
    found.close()


def land(client: Client, writer: Json, reader: Json, columns: dict[str, str], *values: Any) -> None:
    """Inserts values written with one schema for a reader of another."""
    schema, table = Schema(json.dumps(writer)), f"landing_{uuid4().hex[:8]}"
    names = ", ".join(f"`{n}` {t}" for n, t in [("k_partition", "Int32"), ("k_offset", "Int64"), *schema.columns()])
    client.command(f"CREATE TABLE {table} ({names}) ENGINE = Null")
    sql = select(Target("t"), schema, Schema(json.dumps(reader)), columns).format(landing=table)
    client.command(f"CREATE MATERIALIZED VIEW {table}_to_t TO t AS {sql}")
    container = Container(json.dumps(writer))
    bodies = [(0, offset, body(writer, value)) for offset, value in enumerate(values)]
    client.insert(table, container.header + container.block(bodies), "Avro", {"async_insert": 0})


def body(writer: Json, value: object) -> bytes:
    out = io.BytesIO()
    write(out, writer, value)
    return out.getvalue()


def target(client: Client, columns: dict[str, str]) -> dict[str, str]:
    """The table `t`; its columns with those that no field fills."""
    made = {**columns, "unknown_fields": MADE["unknown_fields"]}
    client.command(f"CREATE TABLE t ({', '.join(f'{n} {t}' for n, t in made.items())}) ENGINE = MergeTree ORDER BY id")
    return made


def test_writers_of_three_versions_land_in_the_newest_ones_columns(client: Client) -> None:  # BR-1
    columns = target(client, COLUMNS)
    for writer, value in zip((V1, V2, V3), VALUES, strict=True):
        land(client, writer, V3, columns, value)
    rows = client.query("SELECT id, source, prio, unknown_fields FROM t ORDER BY id").result_rows
    assert [tuple(row) for row in rows] == [("one", None, 0, {}), ("three", None, 7, {}), ("two", "s", 0, {})]


def test_an_old_sink_keeps_what_it_does_not_know_beside_its_columns(client: Client) -> None:  # BR-1
    columns = target(client, {"id": "String"})
    for writer, value in zip((V1, V2, V3), VALUES, strict=True):
        land(client, writer, V1, columns, value)
    rows = client.query("SELECT id, unknown_fields FROM t ORDER BY id").result_rows
    assert [tuple(row) for row in rows] == [
        ("one", {}),
        ("three", {"source": "null", "prio": "7"}),
        ("two", {"source": '"s"'}),
    ]


def test_a_field_inside_a_record_and_a_record_of_its_own_are_kept_as_json(client: Client) -> None:
    inner = record({"name": "x", "type": "int"}, name="In")
    wider = record({"name": "x", "type": "int"}, {"name": "y", "type": "string"}, name="In")
    other = record({"name": "z", "type": {"type": "array", "items": "long"}}, name="Other")
    old = record(ID, {"name": "in", "type": inner})
    new = record(ID, {"name": "in", "type": wider}, {"name": "other", "type": ["null", other], "default": None})
    columns = target(client, {"id": "String"})
    land(client, new, old, columns, {"id": "a", "in": {"x": 1, "y": "why"}, "other": {"z": [1, 2]}})
    assert client.query("SELECT unknown_fields FROM t").result_rows[0][0] == {"in.y": '"why"', "other": '{"z":[1,2]}'}


def test_foreign_fields_are_named_by_their_paths() -> None:
    item, wider = record(ID, name="Item"), record(ID, PRIO, name="Item")
    old, new = (
        Schema(json.dumps(record({"name": "items", "type": {"type": "array", "items": i}}))) for i in (item, wider)
    )
    assert list(foreign(new, old, ["items"])) == ["items.prio"]
    assert list(foreign(new, old)) == []  # inside an array that is no rows
    assert list(foreign(old, new, ["items"])) == []
