"""Landing tables: where a topic's records arrive undecoded, and the views that spread them over the target tables.

    Avro container ─▶ landing_spans_<fingerprint> (Null) ─▶ view ─▶ spans
                                                         └▶ view ─▶ ends

One landing table per writer schema, made from that schema, so that old and new writers land side by side. Its name
ends in a digest of its views: a new version of the code that selects otherwise gets a table of its own, and nothing
that another process still writes to is ever dropped.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from ..schemas.serde import fingerprint, schema_json
from ..schemas.topics import Topic
from .avro_sql import Schema, has, literal, quote, resolve
from .clickhouse_client import Client

LINEAGE = {"k_partition": "Int32", "k_offset": "Int64"}
PLACE = re.compile(r"\{([\w.]+)\}")
NO_STRINGS: dict[str, str] = {}


@dataclass(frozen=True, slots=True)
class Target:
    """How one table is filled from one topic.

    A column takes the field of its name, or of its name with _ns, from the first of `paths` that has it; `columns`
    says otherwise, as SQL with {paths}. explode: the array whose elements are the rows. where: which records.
    """

    table: str
    paths: Sequence[str] = ("",)
    columns: Mapping[str, str] = field(default_factory=lambda: NO_STRINGS)
    explode: str = ""
    where: str = ""


SPANS = Target(
    "spans",
    ("", "spans", "spans.call", "spans.call.sampling"),
    {
        "duration_ns": "{spans.end_ns} - {spans.start_ns}",
        "is_call": "isNotNull({spans.call.request})",
        "policy_version": "if(empty({spans.call.policy_versions}), NULL, {spans.call.policy_versions}[1].version)",
        "call_flags": "{spans.call.flags}",
        "input_tokens": "{spans.call.usage.input}",
        "cached_input_tokens": "{spans.call.usage.cached_input}",
        "output_tokens": "{spans.call.usage.output}",
        "reasoning_tokens": "{spans.call.usage.reasoning}",
        "prompt_base_span_id": "{spans.call.prompt_base.span_id}",
        "prompt_base_length": "{spans.call.prompt_base.length}",
        "payload_uri": "{spans.call.payload.uri}",
        "payload_sha256": "{spans.call.payload.sha256}",
        "payload_bytes": "{spans.call.payload.bytes}",
        # null values have no key in the map, nested ones are JSON text
        "attributes": (
            "CAST(JSONExtractKeysAndValues({spans.attributes}, 'String'), 'Map(LowCardinality(String), String)')"
        ),
    },
    explode="spans",
)
ENDS = Target(
    "ends",
    ("", "end", "end.context"),
    {"credit_mode": "{end.context.credit.mode}", "credit_gamma": "{end.context.credit.gamma}"},
    where="isNotNull({end})",
)
TARGETS: dict[str, tuple[Target, ...]] = {
    "tasks": (Target("tasks", ("", "limits"), {"credit_mode": "{credit.mode}", "credit_gamma": "{credit.gamma}"}),),
    "assignments": (Target("assignments", ("", "task")),),
    "workers": (Target("workers"),),
    "spans": (SPANS, ENDS),
    "rewards": (Target("rewards"),),
    "attempts": (Target("attempts"),),
    "rollouts": (Target("rollouts", ("", "task")),),
    "assemblies": (Target("assemblies"),),
    "trajectories": (
        Target(
            "trajectories",
            ("", "context"),
            {"credit_mode": "{context.credit.mode}", "credit_gamma": "{context.credit.gamma}"},
        ),
    ),
    "batches": (Target("batches"),),
    "decisions": (Target("decisions"),),
    "resources": (Target("resources"),),
    "dead-letters": (Target("dead_letters"),),
}


@dataclass(frozen=True, slots=True)
class Landing:
    """A landing table and its views, as the statements that make them where they are missing."""

    table: str
    statements: tuple[str, ...]


def plan(topic: Topic, writer_schema: str, columns: Mapping[str, Mapping[str, str]]) -> Landing:
    """The landing table of a topic's records written with a schema.

    columns: target table -> its columns' types. Raises InvalidRecord for a schema that ClickHouse cannot read.
    """
    writer, reader = Schema(writer_schema), Schema(schema_json(topic.record))
    targets = [t for t in TARGETS[topic.name] if not t.explode or writer.field(writer.root, t.explode)]
    body = ", ".join(f"{quote(n)} {t}" for n, t in [*LINEAGE.items(), *writer.columns()])
    selects = [(t.table, select(t, writer, reader, columns[t.table])) for t in targets]
    digest = hashlib.sha256(repr((body, selects)).encode()).hexdigest()[:8]
    table = f"landing_{topic.name.replace('-', '_')}_{fingerprint(writer_schema)}_{digest}"
    views = (
        f"CREATE MATERIALIZED VIEW IF NOT EXISTS {quote(f'{table}_to_{target}')} TO {quote(target)} AS\n"
        + sql.format(landing=quote(table))
        for target, sql in selects
    )
    return Landing(table, (f"CREATE TABLE IF NOT EXISTS {quote(table)} ({body}) ENGINE = Null", *views))


def select(target: Target, writer: Schema, reader: Schema, columns: Mapping[str, str]) -> str:
    """The query that turns landed records into a target's rows; {landing} stands for the landing table."""
    explode = target.explode
    elements = {explode: explode} if explode else {}
    exploded: dict[str, str] = {}

    def place(path: str) -> str:
        value = resolve(path, writer, reader, elements)
        if not explode or not value.startswith(quote(explode) + "."):
            return value
        # leaf by leaf: ClickHouse takes ten times as long to plan a view that takes the elements apart itself
        return exploded.setdefault(value, quote(f"element_{len(exploded)}"))

    def sql(template: str) -> str:
        return PLACE.sub(lambda m: place(m[1]), template)

    parts: list[str] = []
    for column, kind in columns.items():
        value = sql(target.columns.get(column) or _template(target, column, reader, elements))
        parts.append(f"  {_fitted(value, kind)} AS {quote(column)}")
    query = "SELECT\n" + ",\n".join(parts) + "\nFROM {landing}"
    if explode:
        query += "\nARRAY JOIN\n" + ",\n".join(f"  {value} AS {name}" for value, name in exploded.items())
    return query + (f"\nWHERE {PLACE.sub(lambda m: _landed(place(m[1])), target.where)}" if target.where else "")


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
        self._made: dict[tuple[str, str], str] = {}
        self._columns: dict[str, dict[str, str]] = {}

    def table(self, topic: Topic, writer_schema: str) -> str:
        """The landing table for a topic's records written with a schema. Raises InvalidRecord, Unavailable."""
        key = (topic.name, writer_schema)
        if key not in self._made:
            landing = plan(topic, writer_schema, self._target_columns())
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
