"""JSON at the gateway's edges: strict out, lenient in, and typed looks into what strangers sent.

Engines write bare NaN and Infinity; strict parsers (and every OpenAI client outside Python) refuse those.
"""

from __future__ import annotations

import json
from typing import cast

import orjson

Object = dict[str, object]

MAX_DEPTH = 250  # orjson writes 254 levels
# Integers past 64 bits have 19 digits or more; orjson reads them as floats. Runs of digits are found by `translate`,
# since a regular expression takes fifty times as long.
DIGITS = bytes.maketrans(b"123456789", b"000000000")
LONG = b"0" * 19


def loads(data: bytes) -> object:
    """Parsed JSON, NaN and infinities included. Raises ValueError, for more than MAX_DEPTH levels too."""
    return loads_noting(data)[0]


def loads_noting(data: bytes) -> tuple[object, bool]:
    """Parsed JSON and whether it is sure to be strict. Raises ValueError, for more than MAX_DEPTH levels too."""
    strict = LONG not in data.translate(DIGITS)
    try:
        parsed: object = orjson.loads(data) if strict else _exactly(data)
    except orjson.JSONDecodeError:
        parsed, strict = _exactly(data), False
    if data.count(b"[") + data.count(b"{") > MAX_DEPTH:
        _check_depth(parsed)
    return parsed, strict


def _exactly(data: bytes) -> object:
    try:
        return cast("object", json.loads(data))
    except RecursionError as error:
        raise ValueError(f"more than {MAX_DEPTH} levels") from error


def _check_depth(value: object) -> None:
    try:
        orjson.dumps(value)  # the fastest way to find out
    except orjson.JSONEncodeError as error:
        level = [value]
        for _ in range(MAX_DEPTH):
            level = [inner for outer in level for inner in (*obj(outer).values(), *items(outer))]
        if level:
            raise ValueError(f"more than {MAX_DEPTH} levels") from error


def dumps(value: object) -> bytes:
    """Strict JSON: NaN and infinities become null. `value` has no more than MAX_DEPTH levels."""
    try:
        return orjson.dumps(value)
    except orjson.JSONEncodeError:  # lone surrogates and integers past 64 bits, which json can write
        found = json.dumps(value, separators=(",", ":"))
        if "NaN" in found or "Infinity" in found:
            finite = cast("object", json.loads(found, parse_constant=lambda _: None))
            found = json.dumps(finite, separators=(",", ":"))
        return found.encode()


def text(value: object) -> str | None:
    """A string, or None."""
    return value if isinstance(value, str) else None


def text_or_json(value: object) -> str:
    """A string, or the JSON of an object or a list; "" for anything else."""
    return dumps(value).decode() if type(value) in (dict, list) else text(value) or ""


def integer(value: object, bits: int = 64) -> int | None:
    """An integer of so many bits that is no boolean, or None."""
    if not isinstance(value, int) or isinstance(value, bool):
        return None
    return value if -(1 << bits - 1) <= value < 1 << bits - 1 else None


def number(value: object) -> float | None:
    """A number that is no boolean and that a float can hold, or None."""
    try:
        return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else None
    except OverflowError:
        return None


def obj(value: object) -> Object:
    """An object; anything else is an empty one."""
    return cast("Object", value) if isinstance(value, dict) else {}


def listed(value: object) -> list[object] | None:
    """A list, or None."""
    return cast("list[object]", value) if isinstance(value, list) else None


def items(value: object) -> list[object]:
    """A list; anything else is an empty one."""
    return cast("list[object]", value) if isinstance(value, list) else []
