"""Credit assignment: what each call of an attempt gets of its rewards. Pure; assembler and trainer share it.

With two calls, own (step) rewards [0.3, null] and a final reward of 1.0:

    identical   [1.0, 1.0]       the final reward to every call
    last        [null, 1.0]      the final reward to the last call
    discounted  [γ, 1.0]         the final reward times γ per later call
    step        [0.3, null]      own rewards only
    sum         [1.3, 1.0]       own plus final

Missing is null, never 0. Where an attempt has rewards of one kind only, that kind counts whatever the mode: without
a final reward every mode gives own rewards; without any own reward `step` gives the final one to the last call.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from .records import Credit


def assign(credit: Credit, own: Sequence[float | None], final: float | None) -> list[float | None]:
    """Credit per call.

    own: (K,) step reward of each call in order, None = none. final: the attempt's final reward, None = none.
    Returns (K,); None too where a discount above 1 grows past every number. Raises ValueError for mode unknown.
    """
    last = len(own) - 1
    if credit.mode == "unknown":
        raise ValueError("credit mode is unknown: written by a newer version; expected identical, last, ...")
    if final is None:
        return list(own)
    if credit.mode == "identical":
        return [final for _ in own]
    if credit.mode == "last":
        return [final if k == last else None for k in range(len(own))]
    if credit.mode == "discounted":
        return [discounted(final, credit.gamma, last - k) for k in range(len(own))]
    if credit.mode == "sum":
        return [final if x is None else x + final for x in own]
    if all(x is None for x in own):
        return [final if k == last else None for k in range(len(own))]
    return list(own)


def discounted(value: float, gamma: float, later: int) -> float | None:
    """value · γ^later; None where that is no finite number: a foreign producer's γ may be anything."""
    try:
        out = value * gamma**later
    except (OverflowError, ZeroDivisionError):
        return None
    return out if math.isfinite(out) else None
