"""Token ids, masks and log-probs as packed bytes: little-endian int32, one byte, little-endian float32.

Packed, a thousand ids cost one copy instead of a thousand objects, and NaN (= missing) survives every hop.
"""

from __future__ import annotations

import sys
from array import array
from collections.abc import Iterable

from .errors import InvalidRecord

NAN = float("nan")


def _pack(code: str, values: Iterable[int] | Iterable[float]) -> bytes:
    packed = array(code, values)
    if sys.byteorder == "big":
        packed.byteswap()
    return packed.tobytes()


def _unpack(code: str, data: bytes) -> array[int] | array[float]:
    packed: array[int] | array[float] = array(code)
    if len(data) % packed.itemsize:
        raise InvalidRecord("bad_packing", f"{len(data)} bytes are no multiple of {packed.itemsize}")
    packed.frombytes(data)
    if sys.byteorder == "big":
        packed.byteswap()
    return packed


def pack_ids(ids: Iterable[int]) -> bytes:
    """Token ids as little-endian int32."""
    return _pack("i", ids)


def unpack_ids(data: bytes) -> list[int]:
    """Raises InvalidRecord where the length is no multiple of 4."""
    return [int(x) for x in _unpack("i", data)]


def pack_logprobs(values: Iterable[float | None]) -> bytes:
    """Natural-log probabilities as little-endian float32; None becomes NaN."""
    return _pack("f", [NAN if v is None else v for v in values])


def unpack_logprobs(data: bytes) -> list[float]:
    """Raises InvalidRecord where the length is no multiple of 4."""
    return [float(x) for x in _unpack("f", data)]
