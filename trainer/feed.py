"""Trajectories of one run from Kafka. The offsets are the trainer's own: they live in its checkpoint."""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

from ..infra.kafka import METADATA_TIMEOUT_S, Message, Position
from ..infra.settings import Settings
from ..infra.taking import Taking
from ..schemas.errors import InvalidRecord, Unavailable
from ..schemas.records import Row, Trajectory
from ..schemas.topics import TRAJECTORIES, Record
from .stoppable import StoppableReader

log = logging.getLogger(__name__)

NS_PER_MS = 1_000_000
MARK_S = 1.0  # of each turn of the loop, while no broker answers


@dataclass(frozen=True, slots=True)
class Logged:
    """A trajectory as it lies in the log."""

    trajectory: Trajectory
    written_ns: int | None  # time stamp of its record, Unix time in nanoseconds; None = the log keeps none


class Feed(Protocol):
    """Where the loop gets trajectories from."""

    def start(self, offsets: Mapping[Position, int] | None) -> None:
        """Reads on from offsets; None = from the beginning of what the log still holds."""
        ...

    def poll(self, timeout_s: float) -> list[Logged]:
        """The next trajectories of the run; [] after `timeout_s` without any."""
        ...

    def offsets(self) -> dict[Position, int]:
        """Where to read on after everything that `poll` has given out."""
        ...

    def mark(self, timeout_s: float = METADATA_TIMEOUT_S) -> None:
        """Remembers the log's end as it is now. Raises Unavailable where no broker tells it in time."""
        ...

    def reached(self) -> bool:
        """True once everything before the mark was given out."""
        ...

    def close(self) -> None:
        """Frees its connections."""
        ...


@dataclass(slots=True)
class Marker:
    """Marks a log's end in an outage too, which a waiting trainer bears; that is told once."""

    feed: Feed
    waits: bool = False

    def marked(self) -> bool:
        """False where the broker does not tell the end."""
        try:
            self.feed.mark(MARK_S)
        except Unavailable as error:
            if not self.waits:
                log.warning("groups that are due wait: %s", error)
            self.waits = True
            return False
        if self.waits:
            log.warning("goes on")
        self.waits = False
        return True


def check(record: Record) -> None:
    """Holds a trajectory's packed fields to each other. Raises InvalidRecord."""
    if isinstance(record, Trajectory):
        for row in record.rows:
            _check_row(row, len(record.calls))


def _check_row(row: Row, calls: int) -> None:
    length = len(row.mask)
    if len(row.token_ids) != 4 * length or len(row.logprobs) != 4 * length:
        raise InvalidRecord(
            "bad_packing",
            f"a row has {len(row.token_ids)} bytes of ids, {length} of mask, {len(row.logprobs)} of log-probs; "
            "expected 4 : 1 : 4",
        )
    if any(not (0 <= s.start <= s.end <= length and 0 <= s.call < calls) for s in row.segments):
        raise InvalidRecord("bad_packing", f"a segment reaches outside its row of {length} tokens or {calls} calls")
    if any(not 0 <= v.start <= v.end <= length for v in row.policy_versions):
        raise InvalidRecord("bad_packing", f"a version run reaches outside its row of {length} tokens")


class KafkaFeed:
    """A Feed over every partition of `trajectories`."""

    def __init__(self, settings: Settings, run_id: str, taking: Taking) -> None:
        self._run_id = run_id
        self._taking = taking
        self._reader = StoppableReader(settings, "trainer-feed", taking.stop)
        self._raw: deque[Message] = deque()
        self._offsets: dict[Position, int] = {}
        self._ends: dict[Position, int] = {}

    def start(self, offsets: Mapping[Position, int] | None) -> None:
        if offsets:
            self._reader.assign(offsets)
        else:
            self._reader.assign_topics([TRAJECTORIES])
        self._offsets = dict(self._reader.positions)

    def poll(self, timeout_s: float) -> list[Logged]:
        if not self._raw:
            self._raw.extend(self._reader.poll(timeout_s=timeout_s))
        out: list[Logged] = []
        while self._raw:
            message = self._raw[0]
            try:
                found = self._taking.within(message, timeout_s, check)
            except Unavailable:  # the record is fine: it is tried again, and nothing is skipped
                break
            self._raw.popleft()
            self._offsets[message.topic, message.partition] = message.offset + 1
            if isinstance(found, Trajectory) and found.context.run_id == self._run_id and found.context.mode == "train":
                out.append(Logged(found, message.timestamp_ms * NS_PER_MS if message.timestamp_ms > 0 else None))
        return out

    def offsets(self) -> dict[Position, int]:
        return dict(self._offsets)

    def mark(self, timeout_s: float = METADATA_TIMEOUT_S) -> None:
        self._ends = self._reader.ends(timeout_s=timeout_s)

    def reached(self) -> bool:
        return not self._raw and self._reader.reached(self._ends)

    def close(self) -> None:
        self._reader.close()
