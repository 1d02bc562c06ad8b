"""Avro bodies by any schema, such as one that no record of ours has."""

from __future__ import annotations

import io
from collections.abc import Callable
from typing import Any, cast

import fastavro

from spanloop.schemas.serde import parsed_schema

# fastavro's stubs leave its file argument untyped
write = cast("Callable[[io.BytesIO, Any, Any], None]", fastavro.schemaless_writer)  # pyright: ignore[reportUnknownMemberType]


def avro_body(schema: str, value: object) -> bytes:
    """A value's body."""
    out = io.BytesIO()
    write(out, parsed_schema(schema), value)
    return out.getvalue()
