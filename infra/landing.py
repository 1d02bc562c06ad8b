"""Landing tables: where a topic's records arrive undecoded, and the views that spread them over the target tables.

    Avro container ─▶ landing_spans_<fingerprint> (Null) ─▶ view ─▶ spans
                                                         └▶ view ─▶ ends

One landing table per writer schema, made from that schema, so that old and new writers land side by side:

    what the writer lacks                  the reader's default, as in Avro's own resolution
    what only the writer has               JSON in `unknown_fields` by its path; left out inside other arrays and maps
    a text or an attribute of over 1 MiB   cut, its length and SHA-256 in `capped` or beside the attribute

The log holds everything whole. A table's name ends in a digest of its views: a new version of the code that selects
otherwise gets a table of its own, and nothing that another process still writes to is ever dropped.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from dataclasses import dataclass

from ..schemas.serde import fingerprint, schema_json
from ..schemas.topics import Topic
from .avro_sql import Schema, foreign, has, literal, quote, resolve
from .clickhouse_client import Client
from .landing_targets import MADE, MAX_VALUE_BYTES, TARGETS, Target

PLACE = re.compile(r"\{([\w.]+)\}")
LINEAGE = {"k_partition": "Int32", "k_offset": "Int64"}


@dataclass(frozen=True, slots=True)
class Landing:
    """A landing table and its views, as the statements that make them where they are missing."""

    table: str
    statements: tuple[str, ...]


def plan(topic: Topic, writer_schema: str, columns: Mapping[str, Mapping[str, str]], *, long: bool = False) -> Landing:
    """The landing table of a topic's records written with a schema.

    columns: target table -> its columns' types. long: for records of over MAX_VALUE_BYTES. Raises InvalidRecord for a
    schema that ClickHouse cannot read.
    """
    writer, reader = Schema(writer_schema), Schema(schema_json(topic.record))
    targets = [t for t in TARGETS[topic.name] if not t.explode or writer.field(writer.root, t.explode)]
    body = ", ".join(f"{quote(n)} {t}" for n, t in [*LINEAGE.items(), *writer.columns()])
    selects = [(t.table, select(t, writer, reader, columns[t.table], long=long)) for t in targets]
    digest = hashlib.sha256(repr((body, selects)).encode()).hexdigest()[:8]
    table = f"landing_{topic.name.replace('-', '_')}_{fingerprint(writer_schema)}_{digest}"
    views = (
        f"CREATE MATERIALIZED VIEW IF NOT EXISTS {quote(f'{table}_to_{target}')} TO {quote(target)} AS\n"
        + sql.format(landing=quote(table))
        for target, sql in selects
    )
    return Landing(table, (f"CREATE TABLE IF NOT EXISTS {quote(table)} ({body}) ENGINE = Null", *views))


def select(target: Target, writer: Schema, reader: Schema, columns: Mapping[str, str], *, long: bool = False) -> str:
    """The query that turns landed records into a target's rows; {landing} stands for the landing table."""
    places = _Places(target, writer, reader)
    templates = {**target.columns, **target.long} if long else target.columns
    values = {
        column: places.sql(templates.get(column) or _template(target, column, reader, places.elements))
        for column in columns
        if column not in MADE
    }
    texts = {column: values[column] for column in target.texts if column in values} if long else {}
    made = {"unknown_fields": places.unknown_fields(), "capped": places.capped(texts)}
    values |= {column: _cut(value, is_text=column != "raw") for column, value in texts.items()}
    values |= {column: value for column, value in made.items() if value and column in columns}
    parts = (f"  {_fitted(values[c], kind)} AS {quote(c)}" for c, kind in columns.items() if c in values)
    query = "SELECT\n" + ",\n".join(parts) + "\nFROM {landing}" + places.joined()
    return query + (f"\nWHERE {PLACE.sub(lambda m: _landed(places.of(m[1])), target.where)}" if target.where else "")


class _Places:
    """Where a target finds the reader's fields in what the writer wrote."""

    def __init__(self, target: Target, writer: Schema, reader: Schema) -> None:
        self.elements = {target.explode: target.explode} if target.explode else {}
        self._target = target
        self._writer = writer
        self._reader = reader
        self._exploded: dict[str, str] = {}

    def of(self, path: str) -> str:
        """A field of the reader's."""
        return self._leaf(resolve(path, self._writer, self._reader, self.elements))

    def sql(self, template: str) -> str:
        """A template with its {paths} filled in."""
        return PLACE.sub(lambda m: self.of(m[1]), template)

    def unknown_fields(self) -> str:
        """A map of the fields that only the writer has; empty where there are none."""
        paths = [p for p in foreign(self._writer, self._reader, self.elements) if p.split(".")[0] != self._target.apart]
        pairs = ", ".join(f"{literal(path)}, {self._json(path)}" for path in paths)
        return f"map({pairs})" if pairs else ""

    def _json(self, path: str) -> str:
        """A field of the writer's."""
        value = self._own(self._leaf(".".join(quote(name) for name in path.split("."))))
        return _cut(f"ifNull(toJSONString({value}), 'null')")

    def capped(self, texts: Mapping[str, str]) -> str:
        """A map of the texts that are too long, column -> (bytes, SHA-256); empty where there can be none."""
        marks = ", ".join(
            f"({literal(column)}, (ifNull(length({value}), 0), lower(hex(SHA256(ifNull({value}, ''))))))"
            for column, value in ((c, self._own(v)) for c, v in texts.items())
        )
        too_long = f"arrayFilter(x -> x.2.1 > {MAX_VALUE_BYTES}, [{marks}])"
        return f"CAST({too_long}, {literal(MADE['capped'])})" if marks else ""

    def joined(self) -> str:
        """The clause that makes elements rows."""
        if not self.elements:
            return ""
        return "\nARRAY JOIN\n" + ",\n".join(f"  {value} AS {name}" for value, name in self._exploded.items())

    def _own(self, value: str) -> str:
        """A value as it landed, where a column made of it may be called the same."""
        return value if self.elements else _landed(value)

    def _leaf(self, value: str) -> str:
        if not self.elements or not value.startswith(quote(self._target.explode) + "."):
            return value
        # leaf by leaf: ClickHouse takes ten times as long to plan a view that takes the elements apart itself
        return self._exploded.setdefault(value, quote(f"element_{len(self._exploded)}"))


def _cut(value: str, *, is_text: bool = True) -> str:
    start = f"substring({value}, 1, {MAX_VALUE_BYTES})"
    return f"if(length({value}) > {MAX_VALUE_BYTES}, {f'toValidUTF8({start})' if is_text else start}, {value})"


def _landed(value: str) -> str:
    """A landed column by its full name: a bare one in WHERE would be the selected column that is called the same."""
    return f"{{landing}}.{value}" if value.startswith("`") else value


def _template(target: Target, column: str, reader: Schema, elements: Mapping[str, str]) -> str:
    if column in LINEAGE:
        return quote(column)
    for suffix, shape in (("_ns", "fromUnixTimestamp64Nano({{{}}}, 'UTC')"), ("", "{{{}}}")):
        for path in target.paths:
            found = f"{path}.{column}{suffix}".lstrip(".")
            if has(found, reader, elements):
                return shape.format(found)
    raise KeyError(f"column {column} of table {target.table} has no field in {reader.root['name']} to be filled from")


def _fitted(value: str, kind: str) -> str:
    """A value for a column that cannot be null where the value can."""
    if kind.startswith(("Nullable", "Array", "Map", "Tuple")):
        return value
    return f"ifNull({value}, defaultValueOfTypeName({literal(kind)}))"


class Landings:
    """Makes landing tables when their first record comes, and remembers them."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self._made: dict[tuple[str, str, bool], str] = {}
        self._columns: dict[str, dict[str, str]] = {}

    def table(self, topic: Topic, writer_schema: str, *, long: bool = False) -> str:
        """The landing table for a topic's records written with a schema. Raises InvalidRecord, Unavailable.

        long: for records of over MAX_VALUE_BYTES, whose values are capped.
        """
        key = (topic.name, writer_schema, long)
        if key not in self._made:
            landing = plan(topic, writer_schema, self._target_columns(), long=long)
            for statement in landing.statements:
                self._client.command(statement)
            self._made[key] = landing.table
        return self._made[key]

    def _target_columns(self) -> dict[str, dict[str, str]]:
        if not self._columns:
            for row in self._client.rows(
                "SELECT table, name, type FROM system.columns WHERE database = currentDatabase() "
                "AND default_kind NOT IN ('ALIAS', 'MATERIALIZED') ORDER BY table, position"
            ):
                self._columns.setdefault(row["table"], {})[row["name"]] = row["type"]
        return self._columns
