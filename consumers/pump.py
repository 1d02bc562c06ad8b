"""Consume, batch, process, commit: the loop under every consumer.

Offsets are committed only after `process` has returned, so that a record may be processed twice but never not at all.
`process` is told which offsets were read, without a gap from call to call and from member to member: offsets that held
no record (transaction markers, what was compacted) are named in it like the others. It is told as well since when this
member has had each partition: of two members that read the same offsets, the one that was given them later goes on.
While the destination is away (Unavailable) the partitions are paused and polled on, which keeps the group's membership.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from ..infra.clock import Clock, SystemClock
from ..infra.kafka import Message, Position
from ..schemas.errors import Unavailable

log = logging.getLogger(__name__)

POLL_S = 0.1


@dataclass(frozen=True, slots=True)
class PumpPolicy:
    """When a batch is full: by records, by bytes of their values, or by the age of its first record."""

    max_records: int = 50_000
    max_bytes: int = 64 << 20
    max_wait_s: float = 1.0
    retry_s: float = 0.5  # between tries while the destination is away


class Source(Protocol):
    """The part of infra.kafka.Member that a pump uses."""

    @property
    def positions(self) -> Mapping[Position, int]: ...
    def poll(self, max_records: int = ..., timeout_s: float = ...) -> list[Message]: ...
    def commit(self, offsets: Mapping[Position, int]) -> None: ...
    def committed(self) -> dict[Position, int]: ...
    def assignment(self) -> list[Position]: ...
    def pause(self, positions: Iterable[Position]) -> None: ...
    def resume(self, positions: Iterable[Position]) -> None: ...
    def close(self) -> None: ...


OnAssign = Callable[[list[Position]], None]
OnRevoke = Callable[[list[Position]], None]
Read = Mapping[Position, range]
"""Offsets of each partition that were read, those that held no record among them."""
Since = Mapping[Position, int]
"""Unix time in nanoseconds by partition."""
Process = Callable[[Sequence[Message], Read, Since], None]


class Pump:
    """Moves what a group member reads into `process`, batch by batch."""

    def __init__(
        self,
        open_source: Callable[[OnAssign, OnRevoke], Source],
        process: Process,
        policy: PumpPolicy | None = None,
        clock: Clock | None = None,
    ) -> None:
        """open_source is given the callbacks for partitions that come and for those that are taken away."""
        self._policy = policy or PumpPolicy()
        self._clock = clock or SystemClock()
        self._process = process
        self._held: list[Message] = []
        self._bytes = 0
        self._held_since_s = 0.0
        self._since: dict[Position, int] = {}
        self._next: dict[Position, int] = {}  # of what is held, the first offset not yet processed, by partition
        self._committed: dict[Position, int] = {}
        self._idle_since_s = self._clock.steady_s()
        self._source = open_source(self._assigned, self._revoked)

    def run(self, stop: threading.Event) -> None:
        """Until `stop` is set; what is held is then processed and committed if the destination is there."""
        try:
            while not stop.is_set():
                self._take(self._source.poll(1000, POLL_S))
                if self._is_due():
                    self._flush(stop)
                elif not self._held:
                    self._pass_markers()
            self._flush(stop)
        finally:
            self._source.close()

    def _take(self, messages: list[Message]) -> None:
        if messages and not self._held:
            self._held_since_s = self._clock.steady_s()
        self._held += messages
        self._bytes += sum(len(m.value or b"") for m in messages)

    def _is_due(self) -> bool:
        policy = self._policy
        return bool(self._held) and (
            len(self._held) >= policy.max_records
            or self._bytes >= policy.max_bytes
            or self._clock.steady_s() - self._held_since_s >= policy.max_wait_s
        )

    def _flush(self, stop: threading.Event) -> None:
        """Processes what is held, trying until it is taken or the pump is stopped."""
        paused = False
        while self._held:
            try:
                self._hand_on(self._ends())
                break
            except Unavailable as error:
                if not paused:
                    log.warning("paused: %s", error)
                paused = True
            if stop.wait(self._policy.retry_s):
                return  # not committed: the next run reads it again
            # partitions given to this member meanwhile are paused too; what they already fetched is kept
            self._source.pause(self._source.assignment())
            self._take(self._source.poll(1000, 0))
        if paused:
            log.warning("resumed")
            self._source.resume(self._source.assignment())

    def _pass_markers(self) -> None:
        """Commits past transaction markers, which come as no message: else a lag of one would stay for ever."""
        now_s = self._clock.steady_s()
        if now_s - self._idle_since_s < self._policy.max_wait_s:
            return
        self._idle_since_s = now_s
        passed = {p: o for p, o in self._source.positions.items() if o > self._committed.get(p, o)}
        if passed:
            try:
                self._hand_on(passed)
            except Unavailable as error:  # nothing is held, so it can wait
                log.debug("not passed: %s", error)

    def _ends(self) -> dict[Position, int]:
        """The next offset of each partition of which something is held."""
        ends = {(m.topic, m.partition): m.offset + 1 for m in self._held}
        return {p: max(o, self._source.positions.get(p, 0)) for p, o in ends.items()}

    def _hand_on(self, ends: dict[Position, int]) -> None:
        """Processes what is held of partitions, up to their `ends`, then commits them."""
        starts = self._starts(ends)
        read = {p: range(starts[p], end) for p, end in ends.items()}
        self._process(self._held, read, {p: self._since[p] for p in read})
        self._drop(lambda _: False)
        self._next |= ends
        self._send(ends)

    def _starts(self, ends: Mapping[Position, int]) -> dict[Position, int]:
        """Where reading began: behind what this member processed, else at what the group has committed."""
        starts: dict[Position, int] = {}
        for m in reversed(self._held):
            starts[m.topic, m.partition] = m.offset
        known = dict(self._next)
        if ends.keys() - known.keys():
            known = {p: o for p, o in self._source.committed().items() if o >= 0} | known
        # never after the first record: someone may have set the group's offsets meanwhile
        return {p: min(known.get(p, end), starts.get(p, end)) for p, end in ends.items()}

    def _send(self, offsets: Mapping[Position, int]) -> None:
        try:
            self._source.commit(offsets)
            self._committed |= offsets
        except Unavailable as error:  # a rebalance took the partitions: whoever has them reads the batch again
            log.warning("not committed, will be read again: %s", error)

    def _assigned(self, positions: list[Position]) -> None:
        self._since |= dict.fromkeys(positions, self._clock.now_ns())

    def _revoked(self, positions: list[Position]) -> None:
        """What is held of partitions taken away is dropped: their next owner reads it from the committed offset."""
        gone = set(positions)
        self._committed = {p: o for p, o in self._committed.items() if p not in gone}
        self._next = {p: o for p, o in self._next.items() if p not in gone}
        self._drop(lambda m: (m.topic, m.partition) not in gone)

    def _drop(self, keep: Callable[[Message], bool]) -> None:
        self._held = [m for m in self._held if keep(m)]
        self._bytes = sum(len(m.value or b"") for m in self._held)
