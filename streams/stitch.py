"""Joins model calls into rows of tokens to train on. Pure; linear in tokens.

    call 0   prompt [1 2]             response [3 9]
    call 1   prompt [1 2 3 9 198 4]   response [5 9]
    row      [1 2 | 3 9 | 198 4 | 5 9]    mask [0 0 1 1 0 0 1 1]

A call whose prompt is an open row plus anything continues it; of several such rows the longest is taken. Calls are
taken by prompt length: a continuation's prompt is always longer than what it continues, so neither clocks nor arrival
matter. Nothing is tokenised here: ids in = ids out. A call that goes on from a point inside a row starts a new row; it
counts as drift where it repeats a whole prompt but not the response that followed, as re-tokenising does:

    row      [1 | 20 21]
    call     [1 77 4]         the prompt [1] is repeated, [20 21] is not: a new row, drift 1
    call     [1]              the same prompt asked again: a new row, no drift
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from zlib import crc32

from ..schemas.records import Row, Sampling, Segment, VersionRun
from .prefixes import TOKEN_BYTES, Entry, Prefixes, Work

NAN_BYTES = struct.pack("<f", float("nan"))


@dataclass(frozen=True, slots=True)
class RowKey:
    """Only calls that agree in all of these may share a row."""

    policy: str | None
    agent_path: str
    sampling: Sampling  # without seed and length limit, which do not change the distribution drawn from


@dataclass(frozen=True, slots=True)
class Drawn:
    """A call whose response is to be trained on. prompt, response: packed int32; logprobs: packed float32 or None."""

    index: int  # how the caller names it
    ident: tuple[str, int]  # (span_id, choice); breaks ties of prompt length
    key: RowKey
    prompt: bytes
    response: bytes
    logprobs: bytes | None = None
    versions: Sequence[VersionRun] = ()
    truncated: bool = False

    @property
    def length(self) -> int:
        """Tokens of prompt and response."""
        return (len(self.prompt) + len(self.response)) // TOKEN_BYTES


@dataclass(slots=True)
class Stitched:
    """rows: calls of each row in order. follows: call -> the call from whose response its prompt goes on."""

    rows: list[list[Drawn]] = field(default_factory=list[list[Drawn]])
    follows: dict[int, int] = field(default_factory=dict[int, int])
    drift: int = 0
    work: Work = field(default_factory=Work)


@lru_cache(maxsize=4096)
def row_key(policy: str | None, agent_path: str, sampling: Sampling) -> RowKey:
    """The key of a call's row."""
    return RowKey(policy, agent_path, replace(sampling, seed=None, max_tokens=None))


def stitch(calls: Iterable[Drawn]) -> Stitched:
    """Joins calls into rows. Every call is in exactly one, so no token is trained twice."""
    out = Stitched()
    families: dict[RowKey, _Family] = {}
    for call in sorted(calls, key=lambda c: (len(c.prompt), c.ident)):
        family = families.get(call.key)
        if family is None:
            family = families[call.key] = _Family(out)
        family.take(call)
    return out


class _Family:
    """The open rows of one key: their ends, and every border inside them."""

    def __init__(self, out: Stitched) -> None:
        self._out = out
        self._ends: Prefixes[list[Drawn]] = Prefixes(out.work)
        self._borders: Prefixes[tuple[Drawn, bool]] = Prefixes(out.work)  # (call, True where its response ends)

    def take(self, call: Drawn) -> None:
        end = next(self._ends.starting(call.prompt), None)
        if end is None:
            row: list[Drawn] = []
            self._out.rows.append(row)
            self._branch(call)
        else:
            row = end.item
            self._ends.remove(end)
            self._out.follows[call.index] = row[-1].index
        row.append(call)
        asked = crc32(call.prompt)
        answered = crc32(call.response, asked)
        self._ends.add(Entry(call.prompt, call.response, row, answered))
        self._borders.add(Entry(call.prompt, b"", (call, False), asked))
        self._borders.add(Entry(call.prompt, call.response, (call, True), answered))

    def _branch(self, call: Drawn) -> None:
        border = next(self._borders.starting(call.prompt), None)
        if border is None:
            return
        earlier, whole = border.item
        if whole:
            self._out.follows[call.index] = earlier.index
        elif border.length < len(call.prompt):
            self._out.drift += 1


def build_row(calls: Sequence[Drawn], position: Mapping[int, int]) -> Row:
    """The record of one row. position: the caller's index of a call -> its index in Trajectory.calls."""
    last = calls[-1]
    length = last.length
    mask, logprobs = bytearray(length), bytearray(NAN_BYTES * length)
    segments: list[Segment] = []
    versions: list[VersionRun] = []
    for call in calls:
        start, end = len(call.prompt) // TOKEN_BYTES, call.length
        mask[start:end] = b"\x01" * (end - start)
        if call.logprobs is not None:
            logprobs[start * TOKEN_BYTES : end * TOKEN_BYTES] = call.logprobs
        segments.append(Segment(start, end, position[call.index]))
        versions += shifted(call.versions, start)
    return Row(
        token_ids=last.prompt + last.response,
        mask=bytes(mask),
        logprobs=bytes(logprobs),
        policy=last.key.policy,
        policy_versions=versions,
        segments=segments,
        agent_path=last.key.agent_path,
        sampling=last.key.sampling,
        truncated=last.truncated,
    )


def shifted(versions: Iterable[VersionRun], start: int) -> list[VersionRun]:
    """Runs over a response as runs over the row it begins in at `start`."""
    return [VersionRun(v.version, v.start + start, v.end + start) for v in versions]


def resolve_prompts(
    prompts: Mapping[str, tuple[bytes | None, bytes | None]], bases: Mapping[str, tuple[str, int]]
) -> dict[str, bytes | None]:
    """Whole prompts of calls that stored only a tail, by span id.

    prompts: span id -> (stored prompt ids, response ids), packed. bases: span id -> (earlier span id, how many leading
    ids come from its prompt and response). None where the earlier call, or enough of its ids, is not there.
    """
    whole: dict[str, bytes | None] = {s: p for s, (p, _) in prompts.items() if s not in bases}
    for span_id in bases:
        chain: dict[str, None] = {}
        at = span_id
        while at not in whole and at not in chain and at in bases and at in prompts:
            chain[at] = None
            at = bases[at][0]
        for link in reversed(chain):
            whole[link] = _joined(link, prompts, bases, whole)
    return whole


def _joined(
    span_id: str,
    prompts: Mapping[str, tuple[bytes | None, bytes | None]],
    bases: Mapping[str, tuple[str, int]],
    whole: Mapping[str, bytes | None],
) -> bytes | None:
    base, length = bases[span_id]
    head, tail = whole.get(base), prompts[span_id][0]
    if head is None or tail is None:
        return None
    earlier = head + (prompts[base][1] or b"")
    size = length * TOKEN_BYTES
    return earlier[:size] + tail if 0 <= size <= len(earlier) else None
