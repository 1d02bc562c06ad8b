"""What the columns of the views mean: the docs of the schemas' fields that fill them."""

from __future__ import annotations

from collections.abc import Mapping

from ..schemas.serde import schema_json
from ..schemas.topics import TOPICS
from .avro_sql import Schema, literal, quote
from .clickhouse_client import Client
from .landing import PLACE
from .landing_targets import ENDS, SPANS, TARGETS, Target

MADE = {
    "k_partition": "partition of the record in its topic",
    "k_offset": "offset of the record in its partition",
    "capped": "columns whose text was over 1 MiB and is cut -> its whole length and its SHA-256; the log has it whole",
    "replayed_at": "when the letter was last put back; null where it was not",
    "unknown_fields": "fields of a newer writer that have no column: path -> JSON",
}
# Views that are not called after their table.
SOURCES: Mapping[str, tuple[str, Target]] = {
    "v_calls": ("spans", SPANS),
    "v_ends": ("spans", ENDS),
    "v_orders": ("rollouts", TARGETS["rollouts"][0]),
    "v_trajectory_calls": ("trajectories", Target("trajectories", ("calls", "", "context"))),
    "v_trajectory_rows": ("trajectories", Target("trajectories", ("rows", "", "context"))),
}


def comment_views(client: Client) -> None:
    """Gives each column of a view that has no comment its own: its table's, else its field's doc."""
    known: dict[str, dict[str, str]] = {}
    for row in client.rows("SELECT table, name, comment FROM system.columns WHERE database = currentDatabase()"):
        known.setdefault(row["table"], {})[row["name"]] = row["comment"]
    for view, columns in known.items():
        if not view.startswith("v_"):
            continue
        topic, target = SOURCES.get(view) or _named_after(view)
        table = known.get(target.table, {}) if target else {}
        found = {c: table.get(c) or MADE.get(c) or (doc(topic, target, c) if target else "") for c in columns}
        parts = [f"COMMENT COLUMN {quote(c)} {literal(found[c])}" for c in columns if not columns[c] and found[c]]
        if parts:
            client.command(f"ALTER TABLE {quote(view)} {', '.join(parts)}")


def _named_after(view: str) -> tuple[str, Target | None]:
    topic = view.removeprefix("v_").replace("_", "-")
    return topic, TARGETS[topic][0] if topic in TARGETS else None


def doc(topic: str, target: Target, column: str) -> str:
    """The doc of the field that fills a column as it is; empty for one that is made of fields."""
    schema = Schema(schema_json(TOPICS[topic].record))
    paths = [f"{path}.{column}{suffix}".lstrip(".") for suffix in ("_ns", "") for path in target.paths]
    if column in target.columns:
        plain = PLACE.fullmatch(target.columns[column])
        paths = [plain[1]] if plain else []
    return next((found for path in paths if (found := _doc(schema, path))), "")


def _doc(schema: Schema, path: str) -> str:
    at, found = schema.root, ""
    for name in path.split("."):
        field = schema.field(at, name)
        if field is None:
            return ""
        at, found = schema.element(field["type"]), field.get("doc", "")
    return found
