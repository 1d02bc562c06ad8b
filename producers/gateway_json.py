"""JSON at the gateway's edges: strict out, lenient in, and typed looks into what strangers sent.

Engines write bare NaN and Infinity; strict parsers (and every OpenAI client outside Python) refuse those.
"""

from __future__ import annotations

import json
from typing import cast

import orjson

Object = dict[str, object]


def loads(data: bytes | str) -> object:
    """Parsed JSON, NaN and infinities included. Raises ValueError."""
    return loads_noting(data)[0]


def loads_noting(data: bytes | str) -> tuple[object, bool]:
    """Parsed JSON and whether it was strict. Raises ValueError."""
    try:
        return orjson.loads(data), True
    except orjson.JSONDecodeError:
        return cast("object", json.loads(data)), False


def dumps(value: object) -> bytes:
    """Strict JSON: NaN and infinities become null."""
    try:
        return orjson.dumps(value)
    except (orjson.JSONEncodeError, TypeError):  # lone surrogates and integers past 64 bits, which json can write
        return json.dumps(value, separators=(",", ":")).encode()


def text(value: object) -> str | None:
    """A string, or None."""
    return value if isinstance(value, str) else None


def integer(value: object) -> int | None:
    """An integer that is no boolean, or None."""
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def number(value: object) -> float | None:
    """A number that is no boolean, or None."""
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else None


def obj(value: object) -> Object:
    """An object; anything else is an empty one."""
    return cast("Object", value) if isinstance(value, dict) else {}


def listed(value: object) -> list[object] | None:
    """A list, or None."""
    return cast("list[object]", value) if isinstance(value, list) else None


def items(value: object) -> list[object]:
    """A list; anything else is an empty one."""
    return listed(value) or []
