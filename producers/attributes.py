"""Attribute values as one JSON object; whatever an agent hands over, a string comes out and nothing is raised.

null            stays null                    {"k": null}
nested values   canonical JSON in a string    {"k": "{\"a\":1}", "k.type": "json"}
too large       cut                           {"k": "xxx…", "k.truncated": true, "k.length": 5242880, "k.sha256": …}
bytes           UTF-8, U+FFFD where it is not {"k": "\ufffdabc", "k.lossy": true}
NaN, infinity   strings, as in OTLP's JSON    {"k": "NaN"}
numbers, texts  of any class, as what they hold
huge integers   in hexadecimal                {"k": "0x8ac723…"}
other objects   their repr in a string        {"k": "<Tool search>"}
keys            text, numbered where equal    {"1": "a", "1#2": "b"}

`k.lossy` also where that is so deep inside, and where a part could not be read.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import math
import numbers
from collections.abc import Iterable, Mapping
from typing import Any, cast

from ..schemas import semconv

Json = Any  # what json.dumps takes; JSON has no type of its own

# A record of one value and its marks stays below the 1 MiB that brokers allow by default.
MAX_VALUE_BYTES = 768 << 10
# A span stays far below the 16 MiB of the topic even where its values were cut one by one.
MAX_SPAN_BYTES = 8 << 20
# Well over OpenTelemetry's 128, which loses the oldest keys of a long conversation; what is over is counted.
MAX_ATTRIBUTES = 1024
MAX_KEY_BYTES = 4 << 10
MAX_INT_BITS = 2048  # Python refuses to write the digits of larger numbers, by default those of 14,284 bits
MAX_DEPTH = 32  # containers nested deeper than this are only named
MAX_NODES = 100_000  # containers looked at in one value; a hundred thousand take a tenth of a second

_strict = json.JSONEncoder(ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode
_SCALARS = frozenset({str, int, float, bool, type(None)})
_SEQUENCES = (list, tuple)
_CONTAINERS = frozenset({dict, list, tuple})  # the usual ones, known at a glance
_NOT_FINITE = ("NaN", "Infinity", "-Infinity")
_NO_SCALAR = object()


def encode(attributes: Mapping[Any, object] | None, budget: int = MAX_SPAN_BYTES) -> tuple[str, int]:
    """(JSON object, attributes left out). `budget`: bytes that the values may take together."""
    facts = facts_of(attributes)
    if not facts:
        return "{}", 0
    if (text := _plain(facts)) is not None:
        return text, 0
    out: dict[str, Json] = {}
    for name, value in list(facts.items())[:MAX_ATTRIBUTES]:
        key = _free(out, text_of(name, MAX_KEY_BYTES))
        budget -= _put(out, key, value, max(0, min(MAX_VALUE_BYTES, budget)))
    return dump(out), max(0, len(facts) - MAX_ATTRIBUTES)


def facts_of(attributes: Mapping[Any, object] | None) -> dict[Any, object]:
    """A mapping as a dict; one that cannot be read becomes a fact of its own. Never raises."""
    if attributes is None:
        return {}
    if type(attributes) is dict:
        return cast("dict[Any, object]", attributes)
    try:
        return dict(attributes.items())
    except Exception:  # noqa: BLE001 - a mapping may be the agent's code and raise anything
        return {type(attributes).__name__: attributes}


def encode_list(items: Iterable[Mapping[str, object]], limit: int = MAX_ATTRIBUTES) -> tuple[str, int]:
    """(JSON array, items left out) of events or links; their `attributes` go by the rules above."""
    kept: list[str] = []
    dropped, room = 0, MAX_SPAN_BYTES // 4
    for item in items:
        head = {name: value for name, value in item.items() if name != "attributes"}
        inner = cast("Mapping[str, object] | None", item.get("attributes"))
        text = encode(head)[0]
        if inner:
            text = f'{text[:-1]},"attributes":{encode(inner, room)[0]}}}'
        room -= len(text)
        if len(kept) >= limit or room < 0:
            dropped += 1
        else:
            kept.append(text)
    return f"[{','.join(kept)}]", dropped


def dump(value: Json) -> str:
    """Compact JSON; keys stay in order."""
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))


def canonical(value: Json) -> str:
    """Compact JSON with sorted keys."""
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"), sort_keys=True)


def clean(text: str) -> str:
    """Text that UTF-8 can carry: lone surrogates become U+FFFD. A subclass of str becomes a plain one."""
    try:
        str.encode(text)
    except UnicodeEncodeError:
        return str.encode(text, "utf-16", "surrogatepass").decode("utf-16", "replace")
    return str.__str__(text)  # the text itself, which is not what str() makes of an enum's member


def text_of(value: object, limit: int) -> str:
    """Any value as text of at most `limit` bytes; one that is cut says how long it was. Never raises."""
    text = _Simplifier().key(value)
    if len(text) <= limit // 4 or len(whole := text.encode()) <= limit:
        return text
    note = f"… ({len(whole)} bytes, cut)"
    return whole[: limit - len(note.encode())].decode("utf-8", "ignore") + note


def safe_repr(value: object) -> str:
    """A repr that never raises."""
    try:
        return clean(repr(value))
    except Exception:  # noqa: BLE001 - __repr__ is the agent's code and may raise anything; the span must arrive
        return object.__repr__(value)


class _Simplifier:
    """One value as what JSON knows; sets become lists, dataclasses and models their fields, anything else its repr.

    How much is looked at is bounded: circles and shared parts may unfold for ever.
    """

    def __init__(self) -> None:
        self.left = MAX_NODES
        self.lossy = False

    def of(self, value: object, depth: int) -> Json:
        kind = type(value)
        try:
            if kind not in _CONTAINERS and (scalar := self.scalar(value)) is not _NO_SCALAR:
                return scalar
            self.left -= 1
            if depth >= MAX_DEPTH or self.left < 0:
                return f"<{kind.__name__} nested too deep>"
            return self.container(value, depth + 1)
        except Exception:  # noqa: BLE001 - methods of any value are the agent's code, __class__ included
            self.lossy = True
            return safe_repr(value)

    def scalar(self, value: object) -> Json:
        kind = type(value)
        if kind is int:
            return _integer(cast("int", value))
        if kind is float:
            return _finite(cast("float", value))
        if kind is bool or value is None:
            return value
        if isinstance(value, str):
            text = clean(value)
            self.lossy = self.lossy or not str.__eq__(text, value)
            return text
        if isinstance(value, (bytes, bytearray)):
            return self.decoded(bytes(value))
        if isinstance(value, numbers.Integral):  # numpy's are registered as such
            return _integer(int.__index__(value) if isinstance(value, int) else int(value))
        if isinstance(value, numbers.Real):
            return _finite(float.__float__(value) if isinstance(value, float) else float(value))
        if hasattr(kind, "ndim") and hasattr(kind, "item") and cast("Any", value).ndim == 0:
            item = cast("Any", value).item()  # what an array of numpy's or a tensor holds that is one number
            return self.scalar(item) if type(item) in _SCALARS else _NO_SCALAR
        return _NO_SCALAR

    def decoded(self, data: bytes) -> str:
        try:
            return data.decode()
        except UnicodeDecodeError:
            self.lossy = True
            return data.decode("utf-8", "replace")

    def container(self, value: object, depth: int) -> Json:
        if isinstance(value, Mapping):
            # list(): another thread may change a dict meanwhile
            found: dict[str, Json] = {}
            for key, item in list(cast("Mapping[object, object]", value).items()):
                found[_free(found, self.key(key))] = self.of(item, depth)
            return found
        if isinstance(value, (list, tuple, set, frozenset)):
            return [self.of(v, depth) for v in cast("Iterable[object]", value)]
        if dataclasses.is_dataclass(value) and not isinstance(value, type):
            return {f.name: self.field(value, f.name, depth) for f in dataclasses.fields(value)}
        fields = getattr(type(value), "model_fields", None)  # pydantic, without importing it
        if isinstance(fields, dict):
            names = map(str, cast("dict[object, object]", fields))
            return {name: self.field(value, name, depth) for name in names}
        return safe_repr(value)

    def field(self, value: object, name: str, depth: int) -> Json:
        try:
            found = getattr(value, name, None)
        except Exception as error:  # noqa: BLE001 - a property is the agent's code; the other fields are kept
            self.lossy = True
            return f"<{type(error).__name__}>"
        return self.of(found, depth)

    def key(self, key: object) -> str:
        if type(key) is str:
            return clean(key)
        try:
            simple = self.scalar(key)
        except Exception:  # noqa: BLE001 - as above
            simple = _NO_SCALAR
        return safe_repr(key) if simple is _NO_SCALAR else str(simple)


def _free(taken: Mapping[str, Json], key: str) -> str:
    """The key, numbered where another one has the same text: 1 and "1" have."""
    free, n = key, len(taken) + 1
    while free in taken:
        free, n = f"{key}#{n}", n + 1
    return free


def _integer(value: int) -> int | str:
    return value if value.bit_length() <= MAX_INT_BITS else hex(value)


def _finite(value: float) -> float | str:
    if math.isfinite(value):
        return value
    return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"


def _plain(attributes: dict[Any, object]) -> str | None:
    """The whole object in one go where every value is a finite scalar and all is small: the usual case."""
    if len(attributes) > MAX_ATTRIBUTES:
        return None
    for name, value in attributes.items():
        if type(name) is not str or type(value) not in _SCALARS:
            return None
    try:
        text = _strict(attributes)
        return text if len(text.encode()) <= MAX_VALUE_BYTES else None
    except ValueError:  # NaN, infinity or a lone surrogate (UnicodeEncodeError is a ValueError)
        return None


def _put(out: dict[str, Json], key: str, value: object, limit: int) -> int:
    """Writes one attribute with its marks; returns the bytes it takes."""
    simplifier = _Simplifier()
    simple = simplifier.of(value, 0)
    if not isinstance(simple, (str, list, dict)):
        out[key] = simple
        return len(key) + 24
    text = simple if isinstance(simple, str) else canonical(simple)
    flat = isinstance(simple, list) and isinstance(value, _SEQUENCES) and _is_flat(cast("list[Json]", simple))
    if flat and len(text.encode()) <= limit:
        out[key], size = simple, len(text)
    else:
        size = _put_text(out, key, text, limit, kind=None if text is simple else "json")
    if simplifier.lossy:
        _mark(out, key + semconv.LOSSY, True)
    return len(key) + size


def _put_text(out: dict[str, Json], key: str, text: str, limit: int, *, kind: str | None) -> int:
    whole = text.encode()
    if len(whole) > limit:
        out[key] = whole[:limit].decode("utf-8", "ignore")
        _mark(out, key + semconv.TRUNCATED, True)
        _mark(out, key + semconv.LENGTH, len(whole))
        _mark(out, key + semconv.SHA256, hashlib.sha256(whole).hexdigest())
    else:
        out[key] = text
        if kind is not None:
            _mark(out, key + semconv.TYPE, kind)
    return min(len(whole), limit)


def _mark(out: dict[str, Json], name: str, value: Json) -> None:
    """Writes a mark beside an attribute that bears its name."""
    out[_free(out, name)] = value


def _is_flat(items: list[Json]) -> bool:
    """True for what OpenTelemetry allows as an array: scalars of one type."""
    kinds = set(map(type, items))
    if kinds == {float, str} and all(type(item) is float or item in _NOT_FINITE for item in items):
        return True
    return len(kinds) <= 1 and kinds <= {str, int, float, bool}
