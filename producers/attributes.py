"""Attribute values as one JSON object; whatever an agent hands over, a string comes out and nothing is raised.

null            stays null                    {"k": null}
nested values   canonical JSON in a string    {"k": "{\"a\":1}", "k.type": "json"}
too large       cut                           {"k": "xxx…", "k.truncated": true, "k.length": 5242880, "k.sha256": …}
bytes           UTF-8, U+FFFD where it is not {"k": "\ufffdabc", "k.lossy": true}
NaN, infinity   strings, as in OTLP's JSON    {"k": "NaN"}
other objects   their repr in a string        {"k": "<Tool search>"}
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import math
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
MAX_DEPTH = 32  # containers nested deeper than this are only named
MAX_NODES = 100_000  # containers looked at in one value; a hundred thousand take a tenth of a second

_strict = json.JSONEncoder(ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode
_SCALARS = frozenset({str, int, float, bool, type(None)})
_SEQUENCES = (list, tuple)


def encode(attributes: Mapping[Any, object] | None, budget: int = MAX_SPAN_BYTES) -> tuple[str, int]:
    """(JSON object, attributes left out). `budget`: bytes that the values may take together."""
    if not attributes:
        return "{}", 0
    if (text := _plain(attributes)) is not None:
        return text, 0
    out: dict[str, Json] = {}
    for name, value in list(attributes.items())[:MAX_ATTRIBUTES]:
        key = clean(name if isinstance(name, str) else safe_repr(name))
        budget -= _put(out, key, value, max(0, min(MAX_VALUE_BYTES, budget)))
    return dump(out), max(0, len(attributes) - MAX_ATTRIBUTES)


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


def canonical(value: object) -> str:
    """Canonical JSON of any value: sorted keys, no white space, no NaN, no lone surrogates."""
    return json.dumps(simplify(value), ensure_ascii=False, separators=(",", ":"), sort_keys=True)


def clean(text: str) -> str:
    """Text that UTF-8 can carry: lone surrogates become U+FFFD. A subclass of str becomes a plain one."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    return str(text)


def safe_repr(value: object) -> str:
    """A repr that never raises."""
    try:
        return clean(repr(value))
    except Exception:  # noqa: BLE001 - __repr__ is the agent's code and may raise anything; the span must arrive
        return object.__repr__(value)


def simplify(value: object) -> Json:
    """A value as what JSON knows; sets become lists, dataclasses and models their fields, anything else its repr."""
    return _Simplifier().of(value, 0)


class _Simplifier:
    """One value's conversion, with a bound on how much is looked at: circles and shared parts may unfold for ever."""

    def __init__(self) -> None:
        self.left = MAX_NODES

    def of(self, value: object, depth: int) -> Json:
        kind = type(value)
        if kind is float:
            return _finite(cast("float", value))
        if kind in (bool, int, type(None)):
            return value
        if isinstance(value, str):
            return clean(value)
        if isinstance(value, (bytes, bytearray)):
            return bytes(value).decode("utf-8", "replace")
        if isinstance(value, int):
            return int(value)
        if isinstance(value, float):
            return _finite(float(value))
        self.left -= 1
        if depth >= MAX_DEPTH or self.left < 0:
            return f"<{kind.__name__} nested too deep>"
        return self.container(value, depth + 1)

    def container(self, value: object, depth: int) -> Json:
        if isinstance(value, Mapping):
            # list(): another thread may change a dict meanwhile
            items = list(cast("Mapping[object, object]", value).items())
            return {self.key(k): self.of(v, depth) for k, v in items}
        if isinstance(value, (list, tuple, set, frozenset)):
            return [self.of(v, depth) for v in cast("Iterable[object]", value)]
        if dataclasses.is_dataclass(value) and not isinstance(value, type):
            return {f.name: self.of(getattr(value, f.name, None), depth) for f in dataclasses.fields(value)}
        fields = getattr(type(value), "model_fields", None)  # pydantic, without importing it
        if isinstance(fields, dict):
            names = map(str, cast("dict[object, object]", fields))
            return {name: self.of(getattr(value, name, None), depth) for name in names}
        return safe_repr(value)

    def key(self, key: object) -> str:
        return clean(key) if isinstance(key, str) else str(self.of(key, MAX_DEPTH))


def _finite(value: float) -> float | str:
    if math.isfinite(value):
        return value
    return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"


def _plain(attributes: Mapping[Any, object]) -> str | None:
    """The whole object in one go where every value is a finite scalar and all is small: the usual case."""
    if len(attributes) > MAX_ATTRIBUTES:
        return None
    for name, value in attributes.items():
        if type(name) is not str or type(value) not in _SCALARS:
            return None
    try:
        text = _strict(dict(attributes))
        return text if len(text.encode()) <= MAX_VALUE_BYTES else None
    except ValueError:  # NaN, infinity or a lone surrogate (UnicodeEncodeError is a ValueError)
        return None


def _put(out: dict[str, Json], key: str, value: object, limit: int) -> int:
    """Writes one attribute with its marks; returns the bytes it takes."""
    kind: str | None = None
    lossy = False
    if isinstance(value, (bytes, bytearray)):
        text = bytes(value).decode("utf-8", "replace")
        lossy = text.encode() != bytes(value)
    elif isinstance(value, str):
        text = clean(value)
        lossy = text != value
    elif type(value) in _SCALARS:
        out[key] = simplify(value)
        return len(key) + 24
    elif _is_flat(value):
        text = canonical(value)
        if len(text.encode()) <= limit:
            out[key] = simplify(value)
            return len(key) + len(text)
    else:
        text, kind = canonical(value), "json"
    return len(key) + _put_text(out, key, text, limit, kind=kind, lossy=lossy)


def _put_text(out: dict[str, Json], key: str, text: str, limit: int, *, kind: str | None, lossy: bool) -> int:
    whole = text.encode()
    if len(whole) > limit:
        out[key] = whole[:limit].decode("utf-8", "ignore")
        out[key + semconv.TRUNCATED] = True
        out[key + semconv.LENGTH] = len(whole)
        out[key + semconv.SHA256] = hashlib.sha256(whole).hexdigest()
    else:
        out[key] = text
        if kind is not None:
            out[key + semconv.TYPE] = kind
    if lossy:
        out[key + semconv.LOSSY] = True
    return min(len(whole), limit)


def _is_flat(value: object) -> bool:
    """True for what OpenTelemetry allows as an array: scalars of one type."""
    if not isinstance(value, _SEQUENCES):
        return False
    kinds = {type(item) for item in cast("Iterable[object]", value)}
    return len(kinds) <= 1 and kinds <= {str, int, float, bool}
