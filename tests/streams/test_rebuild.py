"""A rollout made anew from the log, and compared with what the topic holds."""

from __future__ import annotations

from contextlib import closing
from dataclasses import replace

from events import Bench, batch, end, llm, rew, span

from spanloop.infra.producer import Producer
from spanloop.infra.settings import Settings
from spanloop.schemas.records import Reward, SpanBatch, Trajectory
from spanloop.streams.messages import Message
from spanloop.streams.rebuild import Compared, compare, differences, from_log, published, rebuild

EVENTS: list[SpanBatch | Reward] = [
    batch(span("root"), begin=True),
    batch(llm("c1", [1, 2], [3], parent="root", seq=1), llm("c2", [1, 2, 3, 4], [5], parent="root", seq=2)),
    rew(0.5, "c1", rid="rw-step"),
    rew(1.0, attempt=None),
    batch(end=end(span_count=3, reward_count=0)),
    batch(llm("late", [9], [8], parent="root", seq=3)),
]


def messages() -> list[Message]:
    bench = Bench()
    return [bench.message(event) for event in EVENTS]


def lived() -> Trajectory:
    """What an assembler emitted last that took the same events as they came."""
    bench = Bench()
    for event in EVENTS:
        bench.give(event)
        bench.wait(1)
    bench.wait(100_000)
    return bench.last()


def test_the_log_yields_the_revision_that_was_emitted_last() -> None:
    out = rebuild(messages())
    assert out.records == len(EVENTS)
    assert out.trajectories == {"at-1": lived()}
    assert out.trajectories["at-1"].revision == 6
    assert compare(out.trajectories, {"at-1": lived()}) == [Compared("at-1", lived(), lived(), ())]


def test_an_attempt_without_an_end_is_closed_as_it_stands() -> None:
    (trajectory,) = rebuild(messages()[:2]).trajectories.values()
    assert "no_end" in trajectory.flags


def test_what_is_in_no_trajectory_is_told() -> None:
    nan = rebuild([*messages(), Message("rewards", 0, 7, rew(float("nan"), rid="rw-nan"))])
    assert nan.remarks == ["rewards[0]@7 is refused: " + nan.remarks[0].split("refused: ")[1]]
    assert "nonfinite_reward" in nan.remarks[0]
    floating = rebuild([Message("rewards", 0, 0, rew(1.0, attempt=None))])
    assert floating.trajectories == {}
    assert floating.remarks == ["1 events of no attempt are in no trajectory: no attempt of the rollout was final"]


def test_differences_are_told_by_their_path() -> None:
    ours = lived()
    theirs = replace(ours, final_reward=0.0, calls=[replace(ours.calls[0], credit=2.0), *ours.calls[1:]], rewards=[])
    (found,) = compare({"at-1": ours}, {"at-1": theirs})
    assert found.differences == (
        f"calls[0].credit: {ours.calls[0].credit!r} here, 2.0 in the topic",
        "rewards: 2 here, 0 in the topic",
        "final_reward: 1.0 here, 0.0 in the topic",
    )
    assert compare({}, {"at-1": ours})[0].differences == ("the log yields none",)
    assert compare({"at-1": ours}, {})[0].differences == ("the topic holds none (yet)",)
    assert list(differences(float("nan"), float("nan"))) == []
    assert list(differences({"a": b"\1"}, {"a": b"\2"})) == ["a: 1 bytes 01… here, 1 bytes 02… in the topic"]


def test_a_rollout_is_read_from_the_topics_whoever_else_is_in_them(embedded_settings: Settings) -> None:
    trajectory = lived()
    with closing(Producer(embedded_settings, "test")) as producer:
        for event in EVENTS:
            producer.send_wait(event)
            producer.send_wait(replace(event, rollout_id="ro-other", attempt_id="at-other"))
        producer.send_wait(replace(trajectory, revision=2, final_reward=None))
        producer.send_wait(trajectory)
        producer.send_wait(replace(trajectory, flags=["no_end"], final=False))  # one without its end is the earlier
        producer.send_wait(replace(trajectory, rollout_id="ro-other", attempt_id="at-other"))
    out = from_log(embedded_settings, "ro-1")
    there = published(embedded_settings, "ro-1", {t.context.group_id for t in out.trajectories.values()})
    assert there == {"at-1": trajectory}
    (found,) = compare(out.trajectories, there)
    assert all(".partition" in d or ".offset" in d for d in found.differences)  # the bench counts its own offsets
    assert from_log(embedded_settings, "ro-none").records == 0
