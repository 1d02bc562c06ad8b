"""What one attempt is: of its own rollout and partition, with a clock that may be off, told as often as it likes."""

from __future__ import annotations

import pytest
from events import NOW, Bench, S, batch, end, llm, rew

from spanloop.schemas.packed import unpack_ids
from spanloop.schemas.records import Reward, SpanBatch, Trajectory
from spanloop.streams.assembler import Assembler
from spanloop.streams.messages import Emitted, Late, Message, Output, Source
from spanloop.streams.nodes import SpanNode

Given = tuple[Source, int, SpanBatch | Reward]
MINE: Given = ("spans", 0, batch(llm("s1", [1], [2]), begin=True, end=end()))
# A judge that took the attempt's id with another rollout's, whose partition is another.
ASTRAY: Given = ("rewards", 1, rew(0.0, rollout="ro-2"))
FAILED: Given = ("spans", 1, batch(rollout="ro-2", end=end("failed")))


def tokens(trajectory: Trajectory) -> list[list[int]]:
    return [unpack_ids(row.token_ids) for row in trajectory.rows]


def run(given: list[Given]) -> tuple[Assembler, list[Output]]:
    """Two partitions in one process, and as much time as anything may take."""
    core, out, offsets = Assembler(), list[Output](), dict[tuple[Source, int], int]()
    for partition in (0, 1):
        core.assign(partition, spans=0, rewards=0)
    for topic, partition, record in given:
        offset = offsets[topic, partition] = offsets.get((topic, partition), -1) + 1
        out += core.add(Message(topic, partition, offset, record), NOW)
    return core, [*out, *core.tick(NOW + 10**6 * S)]


@pytest.mark.parametrize("order", [[MINE, ASTRAY], [ASTRAY, MINE]])
def test_a_reward_that_names_another_rollout_with_an_attempts_id_is_not_that_attempts(order: list[Given]) -> None:
    core, out = run(order)
    emitted = [o for o in out if isinstance(o, Emitted)]
    assert [(o.partition, o.trajectory.rollout_id, o.trajectory.rewards) for o in emitted] == [(0, "ro-1", [])]
    assert [o.rollout_id for o in out if isinstance(o, Late)] == ["ro-2"]
    assert [part.committable() for part in core.partitions.values()] == [
        {"spans": 1, "rewards": 0},
        {"spans": 0, "rewards": 1},
    ]


@pytest.mark.parametrize("order", [[MINE, FAILED], [FAILED, MINE]])
def test_attempts_of_two_rollouts_may_have_one_id(order: list[Given]) -> None:
    core, out = run(order)
    found = {o.trajectory.rollout_id: o.trajectory for o in out if isinstance(o, Emitted)}
    assert {rollout: t.status for rollout, t in found.items()} == {"ro-1": "succeeded", "ro-2": "failed"}
    assert (tokens(found["ro-1"]), found["ro-2"].rows) == ([[1, 2]], [])
    assert [part.committable()["spans"] for part in core.partitions.values()] == [1, 1]


def test_attempts_of_two_rollouts_of_one_partition_may_have_one_id_after_a_restart_too() -> None:
    bench = Bench()
    bench.give(batch(llm("s1", [1], [2]), begin=True, end=end()))
    bench.give(batch(llm("s1", [7], [8]), rollout="ro-2", begin=True, end=end()))
    assert {t.rollout_id: tokens(t) for t in bench.trajectories()} == {"ro-1": [[1, 2]], "ro-2": [[7, 8]]}
    known = [o.assembly for o in bench.out if isinstance(o, Emitted)]
    again = Assembler()
    again.assign(0, spans=0, rewards=0, assemblies=known)
    assert [o for message in bench.log for o in again.add(message, NOW)] == []


def test_a_call_that_goes_on_from_one_that_began_later_tells_of_a_skewed_clock() -> None:  # BR-10 without a parent
    bench = Bench()
    first, later = llm("s1", [1], [2], start=500, end=600), llm("s2", [1, 2, 3], [4], start=100, end=200)
    bench.give(batch(first, begin=True), batch(later, producer="b"), batch(end=end()))
    assert ([c.span_id for c in bench.last().calls], "skew" in bench.last().flags) == (
        [first.span_id, later.span_id],
        True,
    )


def test_a_span_told_ever_anew_is_not_compared_with_all_its_versions(monkeypatch: pytest.MonkeyPatch) -> None:
    looked = [0]
    event = SpanNode.event.fget
    assert event is not None

    def counted(node: SpanNode) -> bytes:
        looked[0] += 1
        return event(node)

    monkeypatch.setattr(SpanNode, "event", property(counted))
    bench, times = Bench(), 500
    bench.give(batch(begin=True))
    for _ in range(2):  # the second time as what it was told before
        bench.give(*(batch(llm("s1", [1], [2], seq=seq)) for seq in range(times)))
    bench.give(batch(end=end()))
    assert bench.last().revision == times
    assert looked[0] < 10 * times
