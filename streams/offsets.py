"""How far a partition may be committed: in order, up to the oldest record that something still needs. Pure.

read      0 1 2 3 4 5 6        position 7
held          ^     ^          attempts begun at 2 and 5 are open
commit        2                the next start reads from there
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from heapq import heapify, heappop, heappush

from .messages import SOURCES, Source


class Held:
    """One partition's position and the first record of everything that is open in it."""

    def __init__(self, position: int) -> None:
        """position: the next offset to be read."""
        self.position = position
        self._first: dict[Hashable, int] = {}
        self._heap: list[int] = []
        self._count: dict[int, int] = {}

    def read(self, offset: int) -> None:
        """A record was taken; what is held of it must be said before the next commit."""
        self.position = max(self.position, offset + 1)

    def hold(self, key: Hashable, offset: int) -> None:
        """Keeps `offset` uncommitted until the key is released; only a key's lowest offset counts."""
        known = self._first.get(key)
        if known is not None and known <= offset:
            return
        self.release(key)
        self._first[key] = offset
        if offset not in self._count:
            self._count[offset] = 0
            heappush(self._heap, offset)
        self._count[offset] += 1

    def release(self, key: Hashable) -> None:
        """Lets a key's records be committed."""
        offset = self._first.pop(key, None)
        if offset is None:
            return
        self._count[offset] -= 1
        if len(self._heap) > 2 * len(self._first) + 16:
            self._compact()

    def committable(self) -> int:
        """The next offset a restart would have to read: nothing at or after it is done for certain."""
        while self._heap and not self._count[self._heap[0]]:
            del self._count[heappop(self._heap)]
        return self._heap[0] if self._heap else self.position

    @property
    def lag(self) -> int:
        """Records read and not committable: the commit lag."""
        return self.position - self.committable()

    def __len__(self) -> int:
        return len(self._first)

    def _compact(self) -> None:
        self._count = {offset: n for offset, n in self._count.items() if n}
        self._heap = list(self._count)
        heapify(self._heap)


def overtaken(committed: Mapping[Source, int], positions: Mapping[Source, int]) -> bool:
    """Whether another member has had a partition meanwhile and got further, as happens to one that stood still.

    Faust goes on from where the group is: what lies between was never seen here, and what it ended would stay open.
    """
    return any(committed[source] > positions[source] for source in SOURCES)
