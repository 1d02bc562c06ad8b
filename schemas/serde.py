"""Records to bytes and back: Avro bodies in Confluent framing (byte 0, 4-byte schema id, body).

Bodies of this version's schemas are written and read by compiled functions, those of other versions read by fastavro,
which resolves the two schemas. The schema id is also accepted in the header `__value_schema_id` (byte 0 + id, or byte 1
+ GUID), as newer Confluent clients send it. No network here: who looks ids up is passed in.
"""

from __future__ import annotations

import hashlib
import io
import json
import struct
import time
from collections.abc import Callable, Mapping, Sequence
from copy import copy
from dataclasses import is_dataclass
from functools import cache
from importlib.resources import files
from typing import Any, Protocol, TypeVar, cast
from uuid import UUID

import fastavro
import msgspec

from . import records, spans, trajectories
from .compiled import compile_reader, compile_writer
from .errors import InvalidRecord
from .foreign import parse, parsed_writer, source
from .topics import BY_RECORD, TOPICS, Record, Topic

MAGIC = 0
HEADER = struct.Struct(">bI")
SCHEMA_ID_HEADER = "__value_schema_id"
Headers = Sequence[tuple[str, "str | bytes | None"]] | None
# How long an id that was refused is not asked for again: a registry fed from a log may learn it later.
REFUSED_S = 30.0
# Garbage makes an id of any four bytes.
MAX_REFUSED = 10_000
# What goes wrong with a foreign schema or body may quote all of it.
MAX_REASON = 500
T = TypeVar("T")
# fastavro's stubs leave its file argument untyped
read_datum = cast("Callable[[io.BufferedIOBase, Any, Any], Any]", fastavro.schemaless_reader)  # pyright: ignore[reportUnknownMemberType]


# every record and every part of one, by its schema's name
_CLASSES: dict[str, type] = {
    name: kind
    for module in (records, spans, trajectories)
    for name, kind in vars(module).items()
    if isinstance(kind, type) and is_dataclass(kind)
}


class SchemaLookup(Protocol):
    """Finds a schema's JSON by id or GUID; raises InvalidRecord (UnknownSchemaId) or Unavailable.

    Implemented by `infra.registry`.
    """

    def schema(self, schema_id: int | str) -> str: ...


@cache
def schema_json(record: type[Record]) -> str:
    """The schema a record is written with, as in `avro/`, without white space."""
    text = (files("spanloop.schemas") / "avro" / f"{record.__name__}.avsc").read_text("utf-8")
    return json.dumps(json.loads(text), separators=(",", ":"))


@cache
def parsed_schema(text: str) -> Any:
    """A schema's JSON, parsed once per process; marked as parsed, else fastavro parses it again for every record."""
    return parse(text)


@cache
def fingerprint(text: str) -> str:
    """16 hex digits that are equal for equal schemas, docs and white space included."""
    canonical = json.dumps(json.loads(text), sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(canonical.encode()).hexdigest()[:16]


@cache
def _own_schemas() -> dict[str, str]:
    """Fingerprint -> our own text: a registry may give a schema back with its keys in another order."""
    return {fingerprint(text): text for text in (schema_json(topic.record) for topic in TOPICS.values())}


def encode_body(record: Record) -> bytes:
    """A record's Avro body, unframed. Raises InvalidRecord where a value does not fit its field."""
    try:
        return _writer(type(record))(record)
    except (ValueError, TypeError, LookupError, AttributeError, OverflowError, struct.error) as error:
        reason = f"{type(record).__name__} cannot be encoded: {type(error).__name__} {error}"
        raise InvalidRecord("undecodable", reason) from error


def frame(schema_id: int, body: bytes) -> bytes:
    """Puts the Confluent header before a body."""
    return HEADER.pack(MAGIC, schema_id) + body


def split(value: bytes, headers: Headers = None) -> tuple[int | str, bytes]:
    """A framed value's schema id (or GUID) and its body. Raises InvalidRecord where neither framing is there."""
    schema_id, start = _framing(value, headers)
    return schema_id, value[start:]


def _framing(value: bytes, headers: Headers) -> tuple[int | str, int]:
    """A framed value's schema id and where its body starts."""
    for name, content in headers or ():
        if name == SCHEMA_ID_HEADER and isinstance(content, bytes):
            return _header_id(content), 0
    if len(value) < HEADER.size or value[0] != MAGIC:
        raise InvalidRecord(
            "bad_framing", f"expected byte 0 and a 4-byte schema id, got {len(value)} bytes starting {value[:5].hex()}"
        )
    return HEADER.unpack_from(value)[1], HEADER.size


def _header_id(content: bytes) -> int | str:
    if len(content) == HEADER.size and content[0] == MAGIC:
        return HEADER.unpack(content)[1]
    if len(content) == 17 and content[0] == 1:
        return str(UUID(bytes=content[1:]))
    raise InvalidRecord("bad_framing", f"header {SCHEMA_ID_HEADER} has {len(content)} bytes, expected 5 or 17")


def decode_body(record: type[T], body: bytes, writer: str) -> T:
    """A body written with schema `writer`, read as `record`. Raises InvalidRecord where it does not fit."""
    own = cast("type[Record]", record)
    try:
        decoded, end = _reader(own)(body) if writer == schema_json(own) else _read_foreign(own, body, writer)
    except Exception as error:  # garbage raises nearly anything; all of it is the record's fault
        raise _undecodable(f"body is no {record.__name__}", error) from error
    if end > len(body):
        raise InvalidRecord("undecodable", f"body is no {record.__name__}: it ends {end - len(body)} bytes early")
    if left := len(body) - end:
        raise InvalidRecord("undecodable", f"{left} bytes are left over after {record.__name__}")
    return decoded


@cache
def _writer(record: type[Record]) -> Callable[[Any], bytes]:
    return compile_writer(json.loads(schema_json(record)))


@cache
def _reader(record: type[Record]) -> Callable[[bytes], tuple[Any, int]]:
    return compile_reader(json.loads(schema_json(record)), _CLASSES)


def _read_foreign(record: type[Record], body: bytes, writer: str) -> tuple[Any, int]:
    """Another version's body by fastavro, which resolves the two schemas.

    It is written once more, for a value that fits no field of ours, as an int past 32 bits, would stop whoever puts it
    into a further record.
    """
    left = source(body)
    value = read_datum(left, parsed_writer(writer), parsed_schema(schema_json(record)))
    found = from_dict(record, cast("dict[str, Any]", value))
    _writer(record)(found)
    return found, left.tell()


def _writer_schema(schema_id: int | str, text: str) -> str:
    """What a registry holds under an id, as our own text where it is ours. Raises InvalidRecord where it is no record.

    A registry shared with others has schemas of other kinds, such as refer to further ones, and such as no body can be
    read with safely.
    """
    try:
        own = _own_schemas().get(fingerprint(text))
        if own is None:
            parsed_writer(text)
            root = json.loads(text)
            if root["type"] != "record" or not isinstance(root["fields"], list):
                raise TypeError(f"expected a record and a list of its fields, got type {root['type']}")
    except Exception as error:  # a foreign text raises nearly anything; all of it is the record's fault
        raise _undecodable(f"schema id {schema_id} is no Avro record that stands alone", error) from error
    return own or text


def _undecodable(what: str, error: Exception) -> InvalidRecord:
    return InvalidRecord("undecodable", f"{what}: {type(error).__name__} {error}"[:MAX_REASON])


class Decoder:
    """Reads framed values; caches writer schemas by id for the life of the process, and refused ids for REFUSED_S."""

    def __init__(self, lookup: SchemaLookup, now_s: Callable[[], float] = time.monotonic) -> None:
        self._lookup = lookup
        self._now_s = now_s
        self._writers: dict[int | str, str] = {}
        self._refused: dict[int | str, tuple[float, InvalidRecord]] = {}  # until when, and why

    def writer(self, schema_id: int | str) -> str:
        """The schema JSON behind an id, always a record's.

        Raises InvalidRecord where there is none, or Unavailable while the registry cannot be reached.
        """
        found = self._writers.get(schema_id)
        if found is None:
            found = self._writers[schema_id] = self._ask(schema_id)
        return found

    def asks(self, value: bytes, headers: Headers = None) -> bool:
        """Whether reading a value asks the registry first, which may take seconds."""
        try:
            schema_id, _ = _framing(value, headers)
        except InvalidRecord:
            return False
        return schema_id not in self._writers and self._refusal(schema_id) is None

    def _ask(self, schema_id: int | str) -> str:
        if (refusal := self._refusal(schema_id)) is not None:
            raise copy(refusal)
        try:
            return _writer_schema(schema_id, self._lookup.schema(schema_id))
        except InvalidRecord as error:
            if len(self._refused) >= MAX_REFUSED:
                self._refused.clear()
            self._refused[schema_id] = self._now_s() + REFUSED_S, copy(error)  # a copy holds no frames
            raise

    def _refusal(self, schema_id: int | str) -> InvalidRecord | None:
        until_s, error = self._refused.get(schema_id, (0.0, None))
        return error if error is not None and self._now_s() < until_s else None

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


# --- dataclass <-> dict, by msgspec in C: a third of what the same takes in Python ------------------------------------

_KEPT = (bytes,)  # packed fields stay bytes instead of becoming base64


def to_plain(record: Record) -> dict[str, Any]:
    """A record as nested dicts, in field order."""
    return cast("dict[str, Any]", msgspec.to_builtins(record, builtin_types=_KEPT))


def from_dict(record: type[T], value: dict[str, Any]) -> T:
    """Nested dicts as a record. Raises msgspec.ValidationError where they do not fit."""
    return msgspec.convert(value, record, builtin_types=_KEPT)
