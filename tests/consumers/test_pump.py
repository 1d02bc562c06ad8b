from __future__ import annotations

import threading
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import pytest

from spanloop.consumers.pump import OnRevoke, Pump, PumpPolicy
from spanloop.infra.clock import ManualClock
from spanloop.infra.kafka import Message, Position
from spanloop.schemas.errors import DataLost, Unavailable

FAST = PumpPolicy(max_records=3, max_bytes=100, max_wait_s=1.0, retry_s=0.0)


def messages(*offsets: int, partition: int = 0, value: bytes = b"v") -> list[Message]:
    return [Message("spans", partition, offset, b"k", value) for offset in offsets]


@dataclass
class Script:
    """A group member that hands out what it is told to, then stops the pump; keeps a diary."""

    polls: list[list[Message] | Exception]
    stop: threading.Event
    clock: ManualClock = field(default_factory=ManualClock)
    diary: list[str] = field(default_factory=list[str])
    refuse_commit: bool = False
    revoke_at: dict[int, list[Position]] = field(default_factory=dict[int, "list[Position]"])
    on_revoke: OnRevoke = lambda _: None
    count: int = 0
    positions: dict[Position, int] = field(default_factory=dict[Position, int])

    def poll(self, max_records: int = 0, timeout_s: float = 0.0) -> list[Message]:
        del max_records, timeout_s
        self.count += 1
        if gone := self.revoke_at.get(self.count):
            self.on_revoke(gone)
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

    def assignment(self) -> list[Position]:
        return [("spans", 0)]

    def pause(self, positions: Iterable[Position]) -> None:
        self.diary.append(f"pause {[p for _, p in positions]}")

    def resume(self, positions: Iterable[Position]) -> None:
        self.diary.append(f"resume {[p for _, p in positions]}")

    def close(self) -> None:
        self.diary.append("close")


def run(script: Script, failures: Sequence[Exception] = (), policy: PumpPolicy = FAST) -> list[str]:
    errors = list(failures)

    def process(batch: Sequence[Message]) -> None:
        if errors:
            raise errors.pop(0)
        script.diary.append("process " + ",".join(str(m.offset) for m in batch))

    def open_source(on_revoke: OnRevoke) -> Script:
        script.on_revoke = on_revoke
        return script

    Pump(open_source, process, policy, script.clock).run(script.stop)
    return script.diary


def script(*polls: list[Message] | Exception) -> Script:
    return Script(list(polls), threading.Event())


def test_a_batch_is_committed_after_it_was_processed() -> None:
    assert run(script(messages(0, 1, 2))) == ["process 0,1,2", "commit 0:3", "close"]


def test_a_batch_waits_for_records_and_stop_takes_the_rest() -> None:
    assert run(script(messages(0), messages(1, 2), messages(3))) == [
        "process 0,1,2", "commit 0:3", "process 3", "commit 0:4", "close",
    ]  # fmt: skip


def test_a_batch_is_due_by_bytes() -> None:
    assert run(script(messages(0, value=b"x" * 100), messages(1)))[:2] == ["process 0", "commit 0:1"]


def test_a_batch_is_due_by_the_age_of_its_first_record() -> None:
    s = script(messages(0), [], messages(1), [])

    def poll(max_records: int = 0, timeout_s: float = 0.0) -> list[Message]:
        s.clock.advance(0.5)
        return Script.poll(s, max_records, timeout_s)

    s.poll = poll  # pyright: ignore[reportAttributeAccessIssue]  # time passes while polling
    assert run(s) == ["process 0,1", "commit 0:2", "close"]


def test_while_the_destination_is_away_it_pauses_and_polls_and_then_goes_on() -> None:
    s = script(messages(0, 1, 2), [], [], messages(3))
    diary = run(s, [Unavailable("away"), Unavailable("away")])
    assert diary == [
        "pause [0]", "pause [0]", "process 0,1,2", "commit 0:3", "resume [0]", "process 3", "commit 0:4", "close",
    ]  # fmt: skip


def test_a_stop_while_the_destination_is_away_commits_nothing() -> None:
    s = script(messages(0, 1, 2))
    assert "commit" not in " ".join(run(s, [Unavailable("away")] * 100))
    assert s.diary[-1] == "close"


def test_partitions_taken_away_are_neither_processed_nor_committed() -> None:
    s = script(messages(0) + messages(7, partition=1), [])
    s.revoke_at[2] = [("spans", 1)]
    assert run(s) == ["process 0", "commit 0:1", "close"]


def test_partitions_taken_away_while_waiting_are_dropped_too() -> None:
    s = script(messages(0, 1) + messages(7, partition=1), [])
    s.revoke_at[2] = [("spans", 1)]
    assert run(s, [Unavailable("away")]) == ["pause [0]", "process 0,1", "commit 0:2", "resume [0]", "close"]


def test_offsets_move_past_a_transaction_marker_behind_the_last_record() -> None:
    s = script(messages(0), [], [])
    s.positions["spans", 0] = 2  # offset 1 is a marker
    policy = PumpPolicy(max_records=1, max_wait_s=0.0)
    assert run(s, policy=policy) == ["process 0", "commit 0:1", "commit 0:2", "close"]


def test_a_refused_commit_is_left_to_the_next_owner() -> None:
    s = script(messages(0, 1, 2))
    s.refuse_commit = True
    assert run(s) == ["process 0,1,2", "close"]


@pytest.mark.parametrize("error", [DataLost("gone"), ValueError("a bug")])
def test_other_errors_end_the_pump_without_a_commit(error: Exception) -> None:
    s = script(messages(0, 1, 2))
    with pytest.raises(type(error)):
        run(s, [error])
    assert s.diary == ["close"]


def test_an_error_of_the_source_ends_the_pump() -> None:
    s = script(messages(0), DataLost("gone"))
    with pytest.raises(DataLost):
        run(s)
    assert s.diary == ["close"]
