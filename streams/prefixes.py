"""Finds which earlier token sequences a prompt starts with, without comparing it to each of them.

A sequence is known by its length and the CRC of its bytes. A prompt's CRC is taken once from left to right and looked
up at every known length, so the cost is the prompt's length plus one step per known length; a hit is verified by one
comparison, so a CRC collision costs time and never correctness.
"""

from __future__ import annotations

from bisect import bisect_right, insort
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Generic, TypeVar
from zlib import crc32

TOKEN_BYTES = 4
T = TypeVar("T")


@dataclass(slots=True)
class Work:
    """Tokens looked at, for the test that stitching is linear."""

    hashed: int = 0
    compared: int = 0


class Entry(Generic[T]):
    """A known sequence, head + tail, and what it stands for. crc: of head + tail, where the caller has it at hand."""

    __slots__ = ("crc", "head", "item", "length", "tail")

    def __init__(self, head: bytes, tail: bytes, item: T, crc: int | None = None) -> None:
        self.head = head
        self.tail = tail
        self.item = item
        self.length = len(head) + len(tail)  # bytes
        self.crc = crc32(tail, crc32(head)) if crc is None else crc


class Prefixes(Generic[T]):
    """An index of packed token sequences by what they begin with."""

    def __init__(self, work: Work) -> None:
        self._work = work
        self._lengths: list[int] = []
        self._at: dict[int, dict[int, list[Entry[T]]]] = {}

    def __len__(self) -> int:
        return sum(len(found) for by_crc in self._at.values() for found in by_crc.values())

    def add(self, entry: Entry[T]) -> None:
        """Makes a sequence findable."""
        length = entry.length
        self._work.hashed += length // TOKEN_BYTES
        by_crc = self._at.get(length)
        if by_crc is None:
            by_crc = self._at[length] = {}
            insort(self._lengths, length)
        by_crc.setdefault(entry.crc, []).append(entry)

    def remove(self, entry: Entry[T]) -> None:
        """Forgets a sequence that was added."""
        by_crc = self._at[entry.length]
        by_crc[entry.crc].remove(entry)
        if not by_crc[entry.crc]:
            del by_crc[entry.crc]
        if not by_crc:
            del self._at[entry.length]
            self._lengths.remove(entry.length)

    def starting(self, prompt: bytes) -> Iterator[Entry[T]]:
        """Every known sequence that `prompt` starts with, the longest first."""
        for by_crc, crc in reversed(self._hits(prompt)):
            for entry in by_crc[crc]:
                self._work.compared += entry.length // TOKEN_BYTES
                if prompt.startswith(entry.head) and prompt.startswith(entry.tail, len(entry.head)):
                    yield entry

    def _hits(self, prompt: bytes) -> list[tuple[dict[int, list[Entry[T]]], int]]:
        if not self._lengths:
            return []
        view, crc, at = memoryview(prompt), 0, 0
        hits: list[tuple[dict[int, list[Entry[T]]], int]] = []
        for length in self._lengths[: bisect_right(self._lengths, len(prompt))]:
            crc = crc32(view[at:length], crc)
            at = length
            if crc in (by_crc := self._at[length]):
                hits.append((by_crc, crc))
        self._work.hashed += at // TOKEN_BYTES
        return hits
