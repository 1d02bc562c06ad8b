"""Credit assignment: what each call of an attempt gets of its rewards. Pure; assembler and trainer share it.

With two calls, own (step) rewards [0.3, null] and a final reward of 1.0:

    identical   [1.0, 1.0]       the final reward to every call
    last        [null, 1.0]      the final reward to the last call
    discounted  [γ, 1.0]         the final reward times γ per later call
    step        [0.3, null]      own rewards only
    sum         [1.3, 1.0]       own plus final
    unknown     as identical     a newer writer's mode

Missing is null, never 0. Where an attempt has rewards of one kind only, that kind counts whatever the mode: without
a final reward every mode gives own rewards; without any own reward `step` gives the final one to the last call.
"""

from __future__ import annotations

from collections.abc import Sequence

from .records import Credit

# Far past every reward that is meant as a figure, and as far from where sums and squares are no numbers any more.
REWARD_MAX = 1e30
# Modes in which own rewards count beside a final one.
OWN_COUNTS = frozenset({"step", "sum"})
# Calls whose answer never reached the agent, that it did not use, or that are told by another span as well.
UNUSED = frozenset({"undelivered", "client_retry", "unused_choice", "same_call"})


def valid(value: float | None) -> float | None:
    """A reward's value; None for what is no reward: NaN, infinity and what is past ±REWARD_MAX."""
    return value if value is not None and abs(value) <= REWARD_MAX else None


def spread(
    credit: Credit, own: Sequence[float | None], final: float | None, excluded: Sequence[str | None]
) -> list[float | None]:
    """Credit per call of a whole attempt, (K,): own rewards stay where they are, the final one goes to calls in rows.

    excluded: (K,) why each call is in no row, None = it is in one; `bounded` = it would be in one, were there room.
    Where none is, the final reward goes to the calls that the agent used, so that an attempt without any token ids
    still has credit to learn prompts from.
    """
    counts = final is None or credit.mode in OWN_COUNTS
    out: list[float | None] = list(own) if counts else [None] * len(own)
    if credit.mode == "step" and any(x is not None for x in own):
        return out
    kept = [k for k, why in enumerate(excluded) if why in (None, "bounded")]
    takers = kept or [k for k, why in enumerate(excluded) if why not in UNUSED]
    for k, value in zip(takers, assign(credit, [own[k] for k in takers], final), strict=True):
        out[k] = value
    return out


def assign(credit: Credit, own: Sequence[float | None], final: float | None) -> list[float | None]:
    """Credit per call, all of which may take the final reward.

    own: (K,) step reward of each call in order, None = none. final: the attempt's final reward, None = none.
    Returns (K,); None too where a discount above 1 grows past ±REWARD_MAX.
    """
    last = len(own) - 1
    if final is None:
        return list(own)
    if credit.mode in ("identical", "unknown"):
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
    """value · γ^later; None where that is past ±REWARD_MAX or NaN: a foreign producer's γ may be anything."""
    try:
        return valid(value * gamma**later)
    except (OverflowError, ZeroDivisionError):
        return None
