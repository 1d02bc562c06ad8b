"""Schemas and bodies of other writers: what of them fastavro may be given, as their contents are anybody's.

fastavro, which is compiled, follows a body wherever its schema leads: down a type that holds itself until the stack is
full, through any number of items that take no bytes, with the interpreter's lock held. Such schemas are refused here.
"""

from __future__ import annotations

import io
import json
from functools import cache
from typing import Any, NamedTuple, cast

from fastavro.schema import parse_schema

PRIMITIVES = frozenset(("null", "boolean", "int", "long", "float", "double", "bytes", "string"))
# Each level takes stack in C; our own schemas have under ten.
MAX_DEPTH = 100
# Values that take no bytes cost time all the same, and a record that holds another twice doubles them.
MAX_BYTELESS = 100
Json = Any
# Logical types, and marks by which fastavro would take a schema for one that it has parsed, names and all.
UNSEEN = ("logicalType", "__fastavro_parsed", "__named_schemas")


def parse(text: str) -> Any:
    """A schema's JSON as fastavro takes it. Without logical types: what a record holds is what is stored."""
    return parse_schema(json.loads(text, object_hook=_stored))


@cache
def parsed_writer(text: str) -> Any:
    """Another's schema, safe to read any body with. Raises ValueError where it is not, and whatever parsing does."""
    schema = parse(text)
    _Walk().shape(schema)
    return schema


def _stored(found: dict[str, Json]) -> dict[str, Json]:
    for name in UNSEEN:
        found.pop(name, None)
    return found


class _Shape(NamedTuple):
    """What reading one value of a type takes at least, and at most."""

    empty: bool  # it takes no bytes
    byteless: int = 0  # values in it that take none
    depth: int = 1


class _Walk:
    """One walk over a parsed schema, each named type once."""

    def __init__(self) -> None:
        self._named: dict[str, _Shape | None] = {}  # None while its own fields are walked

    def shape(self, schema: Json) -> _Shape:
        """Raises ValueError where reading a value might not end."""
        found = self._shape(schema)
        if found.depth > MAX_DEPTH:
            raise ValueError(f"its types lie more than {MAX_DEPTH} deep")
        if found.byteless > MAX_BYTELESS:
            raise ValueError(f"more than {MAX_BYTELESS} values in it take no bytes")
        return found

    def _shape(self, schema: Json) -> _Shape:
        if isinstance(schema, list):
            return self._around([self.shape(branch) for branch in cast("list[Json]", schema)])
        if isinstance(schema, str):
            return _Shape(True, 1) if schema == "null" else self._name(schema)
        match schema["type"]:
            case "array":
                inner = self.shape(schema["items"])
                if inner.empty:
                    raise ValueError("the items of an array take no bytes: it may have any number of them")
                return self._around([inner])
            case "map":
                return self._around([self.shape(schema["values"])])  # every key takes a byte
            case "record" | "error":
                return self._record(schema)
            case "enum":
                return self._named.setdefault(schema["name"], _Shape(False)) or _Shape(False)
            case "fixed":
                empty = schema["size"] <= 0
                found = self._named[schema["name"]] = _Shape(empty, int(empty))
                return found
            case other:
                return self.shape(other)

    def _name(self, name: str) -> _Shape:
        if name in PRIMITIVES:
            return _Shape(False)
        if (found := self._named[name]) is None:
            raise ValueError(f"type {name} holds itself")
        return found

    def _around(self, inner: list[_Shape]) -> _Shape:
        """What comes after a length or the number of a branch, which take a byte: as many of it, as many bytes."""
        return _Shape(False, 0, 1 + max((s.depth for s in inner), default=0))

    def _record(self, schema: Json) -> _Shape:
        self._named[schema["name"]] = None
        shapes = [self.shape(f["type"]) for f in schema["fields"]]
        empty = all(s.empty for s in shapes)
        depth = 1 + max((s.depth for s in shapes), default=0)
        found = self._named[schema["name"]] = _Shape(empty, sum(s.byteless for s in shapes) + empty, depth)
        return found


class _Once(io.RawIOBase):
    """A body that can be had once; whoever reads on gets EOFError, not b"" for ever."""

    def __init__(self, body: bytes) -> None:
        self._left = memoryview(body)
        self._size = len(body)

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any, /) -> int:
        if not self._left:
            raise EOFError("the body ends early")
        size = min(len(buffer), len(self._left))
        buffer[:size], self._left = self._left[:size], self._left[size:]
        return size

    def tell(self) -> int:
        return self._size - len(self._left)


def source(body: bytes) -> io.BufferedReader:
    """A body to read from that raises EOFError at its end.

    fastavro skips a field's numbers and fixed bytes without looking whether there were any: at the end of a plain
    BytesIO, an array said to have 2^40 of them takes for ever. Buffered whole, so that reads stay in C.
    """
    return io.BufferedReader(_Once(body), max(len(body), 1))
