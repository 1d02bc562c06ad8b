"""One example of every record, kept in `avro/examples` in Avro's JSON encoding, so that any Avro tool reads them."""

from __future__ import annotations

import io
import json
from collections.abc import Iterator
from importlib.resources import files
from typing import Any, TypeVar, cast

import fastavro

from .serde import from_dict, parsed_schema, schema_json

T = TypeVar("T")


def example(record: type[T]) -> T:
    """The example of a record that lies on a topic, such as `example(Task)`."""
    text = (files("spanloop.schemas") / "avro" / "examples" / f"{record.__name__}.json").read_text("utf-8")
    schema = parsed_schema(schema_json(cast("Any", record)))
    source = io.StringIO(json.dumps(json.loads(text)))
    values = cast("Iterator[dict[str, Any]]", fastavro.json_reader(source, schema))  # pyright: ignore[reportUnknownMemberType]  # not in fastavro's stubs
    return from_dict(record, next(values))
