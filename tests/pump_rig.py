"""A group member for a Pump, that hands out what it is told to."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from spanloop.consumers.pump import OnAssign, OnRevoke, Process, Pump, PumpPolicy
from spanloop.infra.clock import ManualClock
from spanloop.infra.kafka import Message, Position
from spanloop.schemas.errors import Unavailable


@dataclass
class Script:
    """A group member that hands out what it is told to, then stops the pump; keeps a diary."""

    polls: list[list[Message] | Exception]
    stop: threading.Event
    clock: ManualClock = field(default_factory=ManualClock)
    diary: list[str] = field(default_factory=list[str])
    refuse_commit: bool = False
    poll_s: float = 0.0  # what each poll takes of the clock
    revoke_at: dict[int, list[Position]] = field(default_factory=dict[int, "list[Position]"])
    assign_at: dict[int, list[Position]] = field(default_factory=dict[int, "list[Position]"])
    on_assign: OnAssign = lambda _: None
    on_revoke: OnRevoke = lambda _: None
    count: int = 0
    positions: dict[Position, int] = field(default_factory=dict[Position, int])
    group: dict[Position, int] = field(default_factory=dict[Position, int])
    since: list[dict[int, int]] = field(default_factory=list["dict[int, int]"])
    read: list[dict[int, range]] = field(default_factory=list["dict[int, range]"])

    def poll(self, max_records: int = 0, timeout_s: float = 0.0) -> list[Message]:
        del max_records, timeout_s
        self.count += 1
        if gone := self.revoke_at.get(self.count):
            self.on_revoke(gone)
        if given := self.assign_at.get(self.count, [("spans", 0), ("spans", 1)] if self.count == 1 else []):
            self.on_assign(given)
        self.clock.advance(self.poll_s)
        if not self.polls:
            self.stop.set()
            return []
        found = self.polls.pop(0)
        if isinstance(found, Exception):
            raise found
        return found

    def commit(self, offsets: Mapping[Position, int]) -> None:
        if self.refuse_commit:
            raise Unavailable("rebalanced")
        self.diary.append("commit " + " ".join(f"{p}:{o}" for (_, p), o in sorted(offsets.items())))

    def committed(self) -> dict[Position, int]:
        return self.group

    def assignment(self) -> list[Position]:
        return [("spans", 0)]

    def pause(self, positions: Iterable[Position]) -> None:
        self.diary.append(f"pause {[p for _, p in positions]}")

    def resume(self, positions: Iterable[Position]) -> None:
        self.diary.append(f"resume {[p for _, p in positions]}")

    def close(self) -> None:
        self.diary.append("close")


def pump(script: Script, process: Process, policy: PumpPolicy) -> None:
    """Pumps until the script has no more."""

    def open_source(on_assign: OnAssign, on_revoke: OnRevoke) -> Script:
        script.on_assign, script.on_revoke = on_assign, on_revoke
        return script

    Pump(open_source, process, policy, script.clock).run(script.stop)
