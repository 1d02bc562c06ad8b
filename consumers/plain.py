"""A value as JSON has it, for people: what JSON cannot say is said otherwise."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from datetime import date
from typing import Any, cast

from ..schemas.packed import unpack_ids, unpack_logprobs

IDS = frozenset({"prompt_ids", "response_ids", "token_ids"})


def plain(value: Any, name: str = "") -> Any:
    """Times as ISO text, packed fields (by `name`) unpacked, other bytes as hex, numbers that are none as null.

    What JSON has no type for (Decimal, UUID, an IP address) is its text.
    """
    if isinstance(value, Mapping):
        return {str(key): plain(item, str(key)) for key, item in cast("Mapping[object, object]", value).items()}
    if isinstance(value, list | tuple):
        return [plain(item) for item in cast("Sequence[object]", value)]
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, bytes):
        return _unpacked(value, name)
    if isinstance(value, date):  # or its subclass datetime
        return value.isoformat()
    return value if value is None or isinstance(value, str | int) else str(value)


def _unpacked(value: bytes, name: str) -> object:
    if name in IDS:
        return unpack_ids(value)
    if name == "logprobs":
        return [plain(x) for x in unpack_logprobs(value)]
    return list(value) if name == "mask" else value.hex()
