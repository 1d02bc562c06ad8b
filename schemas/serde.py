"""Records to bytes and back: Avro bodies in Confluent framing (byte 0, 4-byte schema id, body).

Bodies are written and read by fastavro with parsed schemas cached by id. The schema id is also accepted in the header
`__value_schema_id` (byte 0 + id, or byte 1 + GUID), as newer Confluent clients send it. No network here: who looks
ids up is passed in.
"""

from __future__ import annotations

import dataclasses
import hashlib
import io
import json
import struct
import types
import typing
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from importlib.resources import files
from operator import attrgetter
from typing import Any, Protocol, TypeVar, cast
from uuid import UUID

import fastavro
from fastavro.schema import parse_schema

from .errors import InvalidRecord
from .topics import BY_RECORD, TOPICS, Record, Topic

MAGIC = 0
HEADER = struct.Struct(">bI")
SCHEMA_ID_HEADER = "__value_schema_id"
Headers = Sequence[tuple[str, "str | bytes | None"]] | None
T = TypeVar("T")
# fastavro's stubs leave its file argument untyped
write_datum = cast("Callable[[io.BytesIO, Any, Any], None]", fastavro.schemaless_writer)  # pyright: ignore[reportUnknownMemberType]
read_datum = cast("Callable[[io.BytesIO, Any, Any], Any]", fastavro.schemaless_reader)  # pyright: ignore[reportUnknownMemberType]


class SchemaLookup(Protocol):
    """Finds a schema's JSON by id or GUID; raises UnknownSchemaId or Unavailable. Implemented by `infra.registry`."""

    def schema(self, schema_id: int | str) -> str: ...


@cache
def schema_json(record: type[Record]) -> str:
    """The schema a record is written with, as in `avro/`, without white space."""
    text = (files("spanloop.schemas") / "avro" / f"{record.__name__}.avsc").read_text("utf-8")
    return json.dumps(json.loads(text), separators=(",", ":"))


@cache
def parsed_schema(text: str) -> Any:
    """A schema's JSON, parsed once per process. fastavro's parsed form has no type of its own."""
    return parse_schema(json.loads(text), _write_hint=False)


@cache
def fingerprint(text: str) -> str:
    """16 hex digits that are equal for equal schemas, docs and white space included."""
    canonical = json.dumps(json.loads(text), sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(canonical.encode()).hexdigest()[:16]


def encode_body(record: Record) -> bytes:
    """A record's Avro body, unframed. Raises InvalidRecord where a value does not fit its field."""
    out = io.BytesIO()
    try:
        write_datum(out, parsed_schema(schema_json(type(record))), to_dict(record))
    except (ValueError, TypeError, AttributeError, OverflowError, struct.error) as error:
        raise InvalidRecord("undecodable", f"{type(record).__name__} cannot be encoded: {error}") from error
    return out.getvalue()


def frame(schema_id: int, body: bytes) -> bytes:
    """Puts the Confluent header before a body."""
    return HEADER.pack(MAGIC, schema_id) + body


def split(value: bytes, headers: Headers = None) -> tuple[int | str, bytes]:
    """A framed value's schema id (or GUID) and its body. Raises InvalidRecord where neither framing is there."""
    for name, content in headers or ():
        if name == SCHEMA_ID_HEADER and isinstance(content, bytes):
            return _header_id(content), value
    if len(value) < HEADER.size or value[0] != MAGIC:
        raise InvalidRecord(
            "bad_framing", f"expected byte 0 and a 4-byte schema id, got {len(value)} bytes starting {value[:5].hex()}"
        )
    return HEADER.unpack_from(value)[1], value[HEADER.size :]


def _header_id(content: bytes) -> int | str:
    if len(content) == HEADER.size and content[0] == MAGIC:
        return HEADER.unpack(content)[1]
    if len(content) == 17 and content[0] == 1:
        return str(UUID(bytes=content[1:]))
    raise InvalidRecord("bad_framing", f"header {SCHEMA_ID_HEADER} has {len(content)} bytes, expected 5 or 17")


def decode_body(record: type[T], body: bytes, writer: str) -> T:
    """A body written with schema `writer`, read as `record`. Raises InvalidRecord where it does not fit."""
    own = schema_json(cast("type[Record]", record))
    reader = None if writer == own else parsed_schema(own)
    source = io.BytesIO(body)
    try:
        value = read_datum(source, parsed_schema(writer), reader)
        decoded = from_dict(record, cast("dict[str, Any]", value))
    except Exception as error:  # fastavro raises nearly anything on garbage; all of it is the record's fault
        raise InvalidRecord("undecodable", f"body is no {record.__name__}: {type(error).__name__} {error}") from error
    if left := len(body) - source.tell():
        raise InvalidRecord("undecodable", f"{left} bytes are left over after {record.__name__}")
    return decoded


class Decoder:
    """Reads framed values; caches writer schemas by id for the life of the process."""

    def __init__(self, lookup: SchemaLookup) -> None:
        self._lookup = lookup
        self._writers: dict[int | str, str] = {}

    def writer(self, schema_id: int | str) -> str:
        """The schema JSON behind an id. Raises UnknownSchemaId, or Unavailable while the registry cannot be reached."""
        found = self._writers.get(schema_id)
        if found is None:
            text = self._lookup.schema(schema_id)
            found = self._writers[schema_id] = json.dumps(json.loads(text), separators=(",", ":"))
        return found

    def decode(self, record: type[T], value: bytes, headers: Headers = None) -> T:
        """One record. A tombstone has no value: callers handle it before. Raises InvalidRecord or Unavailable."""
        schema_id, body = split(value, headers)
        return decode_body(record, body, self.writer(schema_id))

    def decode_topic(self, topic: Topic, value: bytes, headers: Headers = None) -> Record:
        """One record of a topic."""
        return self.decode(topic.record, value, headers)


class Encoder:
    """Writes framed values with the ids that the registry gave out."""

    def __init__(self, ids: Mapping[str, int]) -> None:
        """`ids`: topic name -> schema id."""
        self._ids = dict(ids)

    def encode(self, record: Record) -> bytes:
        """A record as it goes onto its topic."""
        return frame(self._ids[BY_RECORD[type(record)].name], encode_body(record))


def local_ids() -> dict[str, int]:
    """Schema ids by position in TOPICS, for tests and tools that have no registry; see LocalSchemas."""
    return {name: i + 1 for i, name in enumerate(TOPICS)}


class LocalSchemas:
    """A SchemaLookup over this version's own schemas, numbered by `local_ids`."""

    def schema(self, schema_id: int | str) -> str:
        from .errors import UnknownSchemaId

        for name, own in local_ids().items():
            if own == schema_id:
                return schema_json(TOPICS[name].record)
        raise UnknownSchemaId(schema_id)


# --- dataclass <-> dict, compiled once per class -------------------------------------------------------------------


def to_dict(record: Any) -> dict[str, Any]:
    """A record as nested dicts for fastavro, in field order."""
    names, getter, nested = _shape(cast("type[Any]", type(record)))
    out = dict(zip(names, getter(record), strict=True))
    for name, (kind, _) in nested.items():
        value = out[name]
        if value is None:
            continue
        if kind == "optional":  # fastavro's tuple notation: names the branch instead of trying each
            out[name] = (f"spanloop.{type(value).__name__}", to_dict(value))
        elif kind == "one":
            out[name] = to_dict(value)
        elif value:
            out[name] = [to_dict(item) for item in value]
    return out


def to_plain(record: Record) -> dict[str, Any]:
    """A record as nested dicts, for people: without fastavro's notation for unions."""
    return dataclasses.asdict(record)


def from_dict(record: type[T], value: dict[str, Any]) -> T:
    """Nested dicts as a record; takes over (and changes) the dict."""
    for name, (kind, inner) in _shape(record)[2].items():
        item = value[name]
        if item is None:
            continue
        value[name] = [from_dict(inner, x) for x in item] if kind == "many" else from_dict(inner, item)
    return record(**value)


Shape = tuple[tuple[str, ...], Callable[[Any], tuple[Any, ...]], dict[str, tuple[str, type[Any]]]]


@cache
def _shape(record: type[Any]) -> Shape:
    hints = typing.get_type_hints(record)
    names = tuple(f.name for f in dataclasses.fields(record))
    getter = cast("Callable[[Any], tuple[Any, ...]]", attrgetter(*names))
    return names, getter, {n: found for n in names if (found := _nested(hints[n])) is not None}


def _nested(hint: Any) -> tuple[str, type[Any]] | None:
    """("one" | "optional" | "many", record class) where a field holds records, else None."""
    if dataclasses.is_dataclass(hint):
        return ("one", cast("type[Any]", hint))
    args = typing.get_args(hint)
    if typing.get_origin(hint) in (typing.Union, types.UnionType):
        inner = next((a for a in args if dataclasses.is_dataclass(a)), None)
        return ("optional", cast("type[Any]", inner)) if inner is not None else None
    if typing.get_origin(hint) is list and dataclasses.is_dataclass(args[0]):
        return ("many", cast("type[Any]", args[0]))
    return None
