"""Which Avro schemas can read what others wrote: the schema resolution of the Avro specification, as a check.

BACKWARD: the new schema reads what the old one wrote. FORWARD: the old reads what the new one writes. FULL: both.
`_TRANSITIVE`: against every earlier version rather than the latest.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, cast

from fastavro.schema import SchemaParseException, UnknownType, parse_schema

from ..schemas.errors import SchemaMismatch

LEVELS = ("NONE", "BACKWARD", "BACKWARD_TRANSITIVE", "FORWARD", "FORWARD_TRANSITIVE", "FULL", "FULL_TRANSITIVE")
# writer type -> reader types that it may be promoted to
PROMOTIONS: dict[str, tuple[str, ...]] = {
    "int": ("long", "float", "double"),
    "long": ("float", "double"),
    "float": ("double",),
    "string": ("bytes",),
    "bytes": ("string",),
}
Schema = Any  # parsed Avro: a name, a list of branches or a Named
Named = dict[str, Schema]  # a record, an enum or a fixed, by its attributes


@dataclass(frozen=True, slots=True)
class Parsed:
    """A schema with the named types that it defines."""

    root: Schema
    named: Mapping[str, Schema] = field(repr=False)


def parse(text: str) -> Parsed:
    """Raises SchemaMismatch where the text is no Avro schema."""
    named: Named = {}
    try:
        root = parse_schema(json.loads(text), named_schemas=named, _write_hint=False)
    except (ValueError, KeyError, TypeError, AttributeError, SchemaParseException, UnknownType) as error:
        raise SchemaMismatch(f"not an Avro schema: {type(error).__name__} {error}") from error
    return Parsed(root, named)


def complaints(level: str, new: str, earlier: Sequence[str]) -> list[str]:
    """Why `new` may not follow `earlier` (oldest first) under a level; empty = it may."""
    against = earlier if level.endswith("_TRANSITIVE") else earlier[-1:]
    kind = level.removesuffix("_TRANSITIVE")
    own = parse(new)
    out: list[str] = []
    for text in against:
        old = parse(text)
        if kind in ("BACKWARD", "FULL"):
            out += [f"new schema cannot read old data: {c}" for c in unreadable(own, old)]
        if kind in ("FORWARD", "FULL"):
            out += [f"old schema cannot read new data: {c}" for c in unreadable(old, own)]
    return list(dict.fromkeys(out))


def unreadable(reader: Parsed, writer: Parsed) -> list[str]:
    """What keeps a reader's schema from reading a writer's data, each with the field it is about."""
    return _Check(reader.named, writer.named).pair(reader.root, writer.root, "")


class _Check:
    """One walk over two schemas; remembers pairs of named types, since records may hold themselves."""

    def __init__(self, reader_named: Mapping[str, Schema], writer_named: Mapping[str, Schema]) -> None:
        self._reader_named = reader_named
        self._writer_named = writer_named
        self._seen: set[tuple[str, str]] = set()

    def pair(self, reader: Schema, writer: Schema, path: str) -> list[str]:
        reader, writer = _resolve(reader, self._reader_named), _resolve(writer, self._writer_named)
        if isinstance(writer, list):
            branches = cast("list[Schema]", writer)
            return [c for branch in branches for c in self.pair(reader, branch, path)]
        if isinstance(reader, list):
            return self._reader_union(cast("list[Schema]", reader), writer, path)
        kind, wrote = _kind(reader), _kind(writer)
        if kind != wrote:
            promoted = kind in PROMOTIONS.get(wrote, ())
            return [] if promoted else [f"{_at(path)}: type {kind} cannot read {wrote}"]
        match kind:
            case "record" | "error":
                return self._record(reader, writer, path)
            case "enum":
                return self._enum(reader, writer, path)
            case "fixed":
                return _fixed(reader, writer, path)
            case "array":
                return self.pair(reader["items"], writer["items"], f"{path}[]")
            case "map":
                return self.pair(reader["values"], writer["values"], f"{path}{{}}")
            case _:
                return []

    def _reader_union(self, branches: list[Schema], writer: Schema, path: str) -> list[str]:
        found: list[list[str]] = []
        for branch in branches:
            # A branch that was tried and failed must not count as seen when it is met again elsewhere.
            before = set(self._seen)
            wrong = self.pair(branch, writer, path)
            if not wrong:
                return []
            self._seen = before
            found.append(wrong)
        same = [
            w for b, w in zip(branches, found, strict=True) if _kind(_resolve(b, self._reader_named)) == _kind(writer)
        ]
        return same[0] if same else [f"{_at(path)}: no branch of the reader's union takes {_kind(writer)}"]

    def _record(self, reader: Named, writer: Named, path: str) -> list[str]:
        if not _same_name(reader, writer):
            return [f"{_at(path)}: record {reader['name']} cannot read record {writer['name']}"]
        key = (reader["name"], writer["name"])
        if key in self._seen:
            return []
        self._seen.add(key)
        wrote = {f["name"]: f for f in writer["fields"]}
        out: list[str] = []
        for own in reader["fields"]:
            inner = f"{path}.{own['name']}" if path else str(own["name"])
            found = next((wrote[n] for n in (own["name"], *own.get("aliases", ())) if n in wrote), None)
            if found is not None:
                out += self.pair(own["type"], found["type"], inner)
            elif "default" not in own:
                out.append(f"{_at(inner)}: not written and without a default")
        return out

    def _enum(self, reader: Named, writer: Named, path: str) -> list[str]:
        if not _same_name(reader, writer):
            return [f"{_at(path)}: enum {reader['name']} cannot read enum {writer['name']}"]
        unknown = [s for s in writer["symbols"] if s not in reader["symbols"]]
        if not unknown or "default" in reader:
            return []
        return [f"{_at(path)}: symbols {unknown} are unknown to the reader, whose enum has no default"]


def _resolve(schema: Schema, named: Mapping[str, Schema]) -> Schema:
    return named.get(schema, schema) if isinstance(schema, str) else schema


def _kind(schema: Schema) -> str:
    if isinstance(schema, list):
        return "union"
    return str(cast("Named", schema)["type"]) if isinstance(schema, dict) else str(schema)


def _same_name(reader: Named, writer: Named) -> bool:
    """By the specification unqualified names are compared, or a reader's alias."""
    names = {str(n).rpartition(".")[2] for n in (reader["name"], *reader.get("aliases", ()))}
    return str(writer["name"]).rpartition(".")[2] in names


def _fixed(reader: Named, writer: Named, path: str) -> list[str]:
    if _same_name(reader, writer) and reader["size"] == writer["size"]:
        return []
    return [f"{_at(path)}: fixed {reader['name']}({reader['size']}) cannot read {writer['name']}({writer['size']})"]


def _at(path: str) -> str:
    return f"field '{path}'" if path else "the schema itself"
