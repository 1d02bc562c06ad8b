"""Avro schemas as ClickHouse types and expressions.

    null | T        Nullable(T)              record     Tuple(name T, ...)
    null | record   Nullable(Tuple(...))     array, map Array(T), Map(String, T); null = empty
    enum            LowCardinality(String)   bytes      String

ClickHouse reads such columns from Avro as they are; any other union, and a record inside itself, it does not.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, cast

from ..schemas.errors import InvalidRecord

SCALARS = {
    "boolean": "Bool", "int": "Int32", "long": "Int64", "float": "Float32", "double": "Float64",
    "string": "String", "bytes": "String",
}  # fmt: skip
# What ClickHouse turns into one another by itself.
FAMILIES = {
    "string": "text", "bytes": "text", "enum": "text", "fixed": "text",
    "int": "number", "long": "number", "float": "number", "double": "number",
}  # fmt: skip
Json = Any  # a parsed schema: str, list or dict


class Schema:
    """One record schema, its named types resolved."""

    def __init__(self, text: str) -> None:
        self.root: Json = json.loads(text)
        self._named: dict[str, dict[str, Json]] = {}
        self._collect(self.root, "")

    def columns(self) -> list[tuple[str, str]]:
        """(name, ClickHouse type) of each field of the record. Raises InvalidRecord for what cannot be read."""
        return [(f["name"], self.type(f["type"])) for f in self._record(self.root)["fields"]]

    def type(self, schema: Json, inside: tuple[str, ...] = ()) -> str:
        """A schema's ClickHouse type."""
        inner, nullable = self.split_null(schema)
        kind = inner["type"]
        if kind in SCALARS:
            return f"Nullable({SCALARS[kind]})" if nullable else SCALARS[kind]
        if kind == "enum":
            return "LowCardinality(Nullable(String))" if nullable else "LowCardinality(String)"
        if kind == "fixed":
            return f"Nullable(FixedString({inner['size']}))" if nullable else f"FixedString({inner['size']})"
        if kind == "array":
            return f"Array({self.type(inner['items'], inside)})"
        if kind == "map":
            return f"Map(String, {self.type(inner['values'], inside)})"
        if "fields" not in inner:  # null by itself, or a name that is not defined here
            raise InvalidRecord("unsupported", f"a field of type {kind}: ClickHouse cannot hold it")
        return self._tuple(inner, nullable, inside)

    def _tuple(self, record: dict[str, Json], nullable: bool, inside: tuple[str, ...]) -> str:
        if record["name"] in inside:
            raise InvalidRecord("unsupported", f"record {record['name']} contains itself; ClickHouse cannot hold it")
        fields = (f"{quote(f['name'])} {self.type(f['type'], (*inside, record['name']))}" for f in record["fields"])
        found = f"Tuple({', '.join(fields)})"
        return f"Nullable({found})" if nullable else found

    def split_null(self, schema: Json) -> tuple[dict[str, Json], bool]:
        """A schema without its null branch, as a dict with named types resolved, and whether it had one."""
        if isinstance(schema, list):
            branches = [s for s in cast("list[Json]", schema) if s != "null"]
            if len(branches) != 1:
                raise InvalidRecord("unsupported", f"union {json.dumps(schema)}: only null with one other type")
            return self.split_null(branches[0])[0], len(branches) < len(cast("list[Json]", schema))
        if isinstance(schema, str):
            return self._named.get(schema, {"type": schema}), False
        return cast("dict[str, Json]", schema), False  # of a logical type only what it is stored as is read

    def field(self, record: Json, name: str) -> Json | None:
        """A record's field by name, None where it has none."""
        return next((f for f in self.fields(record) if f["name"] == name), None)

    def fields(self, record: Json) -> list[dict[str, Json]]:
        """A record's fields; none of what is no record."""
        return self._record(record)["fields"]

    def items(self, schema: Json) -> Json:
        """The element schema of an array."""
        inner = self.split_null(schema)[0]
        if inner["type"] != "array":
            raise InvalidRecord("unsupported", f"a field of type {inner['type']}, expected an array")
        return inner["items"]

    def element(self, schema: Json) -> Json:
        """The element schema of an array, whatever else it is itself."""
        inner = self.split_null(schema)[0]
        return inner["items"] if inner["type"] == "array" else schema

    def family(self, schema: Json) -> str:
        """What a value is to SQL: a text, a number, a record, an array of one of them."""
        inner = self.split_null(schema)[0]
        kind: str = inner["type"]
        if kind in ("array", "map"):
            return f"{kind} of {self.family(inner.get('items') or inner.get('values'))}"
        return FAMILIES.get(kind, kind)

    def default(self, field: Json, rest: Sequence[str], path: str) -> str:
        """A field's default as a typed literal, or that of a field inside it. Raises InvalidRecord without one."""
        if "default" not in field:
            raise InvalidRecord("unsupported", f"the writer's schema lacks {path}, which has no default")
        value = field["default"]
        absent = False
        for name in rest:
            absent = absent or value is None
            field = _need(self, field["type"], name, path)
            if isinstance(value, dict):  # a record's default names some of its fields
                value = cast("dict[str, Json]", value).get(name, field.get("default"))
        kind = self.type(field["type"])
        if absent and not kind.startswith(("Nullable", "LowCardinality", "Array", "Map", "Tuple")):
            return f"CAST(NULL, {literal(f'Nullable({kind})')})"
        if value is None and not kind.startswith(("Nullable", "LowCardinality(Nullable")):
            return f"defaultValueOfTypeName({literal(kind)})"
        return f"CAST({literal(value)}, {literal(kind)})"

    def _record(self, schema: Json) -> dict[str, Json]:
        inner, _ = self.split_null(schema)
        return inner if "fields" in inner else {"fields": []}

    def _collect(self, schema: Json, namespace: str) -> None:
        if isinstance(schema, list):
            for branch in cast("list[Json]", schema):
                self._collect(branch, namespace)
        elif isinstance(schema, dict):
            named = cast("dict[str, Json]", schema)
            if "name" in named and named.get("type") in ("record", "enum", "fixed"):
                namespace = named.get("namespace", namespace)
                self._named[named["name"]] = self._named[f"{namespace}.{named['name']}".lstrip(".")] = named
            for child in [named.get("items"), named.get("values"), *(f["type"] for f in named.get("fields", ()))]:
                self._collect(child, namespace)


def resolve(path: str, writer: Schema, reader: Schema, elements: Mapping[str, str]) -> str:
    """A dotted path as an expression over a landing table of `writer`.

    `elements`: arrays that a view explodes -> the name of their element there. What the writer lacks becomes the
    default of the reader's schema, as in Avro's own resolution. Raises KeyError where the reader lacks it too, and
    InvalidRecord where the writer means something else by it.
    """
    theirs: Json = reader.root
    ours: Json = writer.root
    out: list[str] = []
    names = path.split(".")
    for depth, name in enumerate(names):
        wanted = _need(reader, theirs, name, path)
        found = writer.field(ours, name)
        if found is None:
            return reader.default(wanted, names[depth + 1 :], path)
        exploded = depth == 0 and name in elements
        out.append(quote(elements[name] if exploded else name))
        theirs, ours = wanted["type"], found["type"]
        if exploded:
            theirs, ours = reader.items(theirs), writer.items(ours)
    if (wrote := writer.family(ours)) != (expected := reader.family(theirs)):
        raise InvalidRecord("unsupported", f"the writer's schema has {path} as {wrote}, expected {expected}")
    return ".".join(out)


def has(path: str, schema: Schema, elements: Mapping[str, str]) -> bool:
    """True where a schema has a field at a dotted path."""
    at: Json = schema.root
    for depth, name in enumerate(path.split(".")):
        found = schema.field(at, name)
        if found is None:
            return False
        at = schema.items(found["type"]) if depth == 0 and name in elements else found["type"]
    return True


def foreign(writer: Schema, reader: Schema, elements: Iterable[str] = ()) -> Iterator[str]:
    """Dotted paths of fields that only the writer has, outermost first; `elements`: arrays to look into."""
    yield from _foreign(writer, writer.root, reader, reader.root, "", frozenset(elements))


def _foreign(
    writer: Schema, ours: Json, reader: Schema, theirs: Json, path: str, elements: frozenset[str]
) -> Iterator[str]:
    for field in writer.fields(ours):
        name = f"{path}{field['name']}"
        found = reader.field(theirs, field["name"])
        if found is None:
            yield name
        elif name in elements:
            items = writer.items(field["type"]), reader.items(found["type"])
            yield from _foreign(writer, items[0], reader, items[1], f"{name}.", frozenset())
        else:
            yield from _foreign(writer, field["type"], reader, found["type"], f"{name}.", frozenset())


def _need(schema: Schema, record: Json, name: str, path: str) -> Json:
    found = schema.field(record, name)
    if found is None:
        raise KeyError(f"{path}: schema {schema.root['name']} has no field {name!r}")
    return found


def literal(value: Json) -> str:
    """An Avro default as SQL."""
    if value is None:
        return "NULL"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        return "'" + value.replace("\\", "\\\\").replace("'", "\\'") + "'"
    if isinstance(value, list):
        return "[]"
    return "map()" if isinstance(value, dict) else repr(value)


def quote(name: str) -> str:
    """A name in backticks."""
    return "`" + name.replace("\\", "\\\\").replace("`", "\\`") + "`"
