from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence

import pytest
from pump_rig import Script, pump

from spanloop.consumers.pump import PumpPolicy
from spanloop.infra.clock import NS_PER_S, ManualClock
from spanloop.infra.kafka import Message, Position
from spanloop.schemas.errors import DataLost, Unavailable

FAST = PumpPolicy(max_records=3, max_bytes=100, max_wait_s=1.0, retry_s=0.0)


T0 = ManualClock().now_ns()


def messages(*offsets: int, partition: int = 0, value: bytes = b"v") -> list[Message]:
    return [Message("spans", partition, offset, b"k", value) for offset in offsets]


def run(script: Script, failures: Sequence[Exception] = (), policy: PumpPolicy = FAST) -> list[str]:
    errors = list(failures)

    def process(batch: Sequence[Message], read: Mapping[Position, range], since: Mapping[Position, int]) -> None:
        if errors:
            raise errors.pop(0)
        script.diary.append("process " + ",".join(str(m.offset) for m in batch))
        script.read.append({partition: offsets for (_, partition), offsets in read.items()})
        script.since.append({partition: (ns - T0) // NS_PER_S for (_, partition), ns in since.items()})

    pump(script, process, policy)
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
    s.poll_s = 0.5
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
    marker_comes_later(s)
    policy = PumpPolicy(max_records=1, max_wait_s=0.0)
    assert run(s, policy=policy) == ["process 0", "commit 0:1", "process ", "commit 0:2", "close"]
    assert s.read == [{0: range(1)}, {0: range(1, 2)}]


def marker_comes_later(s: Script) -> None:
    def poll(max_records: int = 0, timeout_s: float = 0.0) -> list[Message]:
        if s.count:
            s.positions["spans", 0] = 2  # offset 1 is a marker
        return Script.poll(s, max_records, timeout_s)

    s.poll = poll  # pyright: ignore[reportAttributeAccessIssue]  # the marker is seen after the record


def test_offsets_without_a_record_are_told_with_the_records_around_them() -> None:
    s = script(messages(0, 1, 4), messages(6, 7, 8))  # 2, 3 and 5 are markers
    run(s)
    assert s.read == [{0: range(5)}, {0: range(5, 9)}]


def test_what_was_processed_is_not_told_again_where_only_its_commit_was_refused() -> None:
    s = script(messages(0, 1, 2), messages(3, 4, 5))
    s.refuse_commit = True
    run(s)
    assert s.read == [{0: range(3)}, {0: range(3, 6)}]


def test_a_new_member_reads_on_where_the_group_had_committed() -> None:
    s = script(messages(7, 8, 9) + messages(3, partition=1))
    s.group = {("spans", 0): 5, ("spans", 1): -1001}
    assert run(s)[0] == "process 7,8,9,3"
    assert s.read == [{0: range(5, 10), 1: range(3, 4)}]


def test_a_partition_that_comes_back_is_read_from_what_is_committed_by_then() -> None:
    s = script(messages(0, 1, 2), [], messages(5, 6, 7))
    s.revoke_at[2] = [("spans", 0)]
    s.group = {("spans", 0): 0}

    def poll(max_records: int = 0, timeout_s: float = 0.0) -> list[Message]:
        if s.count == 1:
            s.group = {("spans", 0): 5}  # another member got that far
        return Script.poll(s, max_records, timeout_s)

    s.poll = poll  # pyright: ignore[reportAttributeAccessIssue]  # the group goes on without it
    run(s)
    assert s.read == [{0: range(3)}, {0: range(5, 8)}]


def test_since_when_a_partition_is_held_does_not_depend_on_when_a_batch_is_read_or_processed() -> None:
    s = script([], messages(0, 1, 2), [], messages(3), messages(7, partition=1), [])
    s.poll_s = 60.0  # as where the member was stopped in mid-poll
    s.assign_at = {1: [("spans", 0)], 4: [("spans", 1)]}
    run(s)
    assert s.since == [{0: 0}, {0: 0, 1: 180}]


def test_a_partition_that_comes_back_is_held_since_then() -> None:
    s = script(messages(0, 1, 2), [], messages(5, 6, 7))
    s.poll_s = 60.0
    s.revoke_at, s.assign_at = {2: [("spans", 0)]}, {1: [("spans", 0)], 3: [("spans", 0)]}
    run(s)
    assert s.since == [{0: 0}, {0: 120}]


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
