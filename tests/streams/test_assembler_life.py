"""When an attempt is over, and what becomes of events that come after that."""

from __future__ import annotations

from dataclasses import replace

from events import NOW, Bench, S, at, batch, end, llm, rew, span

from spanloop.schemas.records import Attempt, Reward, SpanBatch
from spanloop.streams.assembler import Assembler
from spanloop.streams.messages import Emitted, Late, Policy, Refused


def test_only_the_first_end_marker_decides_and_every_marker_is_answered() -> None:
    bench = Bench()
    bench.give(batch(begin=True))
    bench.give(batch(end=end("timeout"), producer="controller"), batch(end=end("succeeded")))
    events = [(o.status, o.outcome) for o in bench.out if isinstance(o, Attempt)]
    assert events == [("running", None), ("ended", "timeout"), ("ended", "timeout")]
    assert bench.last().status == "timeout"


def test_a_plain_trace_is_closed_a_grace_after_its_root_ended_or_when_it_idles() -> None:
    bench = Bench(Policy(grace_s=2, idle_s=60))
    bench.give(batch(span("s0"), llm("s1", [1], [2], parent="s0")))
    bench.give(batch(span("s0", end=None), llm("s1", [1], [2], parent="s0"), attempt="at-2"))
    bench.wait(2)
    assert [(t.attempt_id, t.flags) for t in bench.trajectories()] == [("at-1", ["no_end", "unrewarded"])]
    bench.wait(59)
    assert [t.attempt_id for t in bench.trajectories()] == ["at-1", "at-2"]
    assert bench.committable() == {"spans": 2, "rewards": 0}


def test_nothing_is_emitted_from_late_events_alone() -> None:
    bench = Bench(Policy(idle_s=60, absolute_s=61))
    bench.give(batch(llm("s1", [1], [2], parent="s0")), rew(1.0, attempt="at-2", rid="rw-9"))
    assert bench.committable() == {"spans": 0, "rewards": 0}
    new = bench.wait(61)
    assert [type(o) for o in new] == [Late, Late]
    assert bench.committable() == {"spans": 1, "rewards": 1}
    assert bench.now == NOW + 61 * S


def test_a_late_event_whose_attempt_is_gone_is_reported_and_not_emitted() -> None:
    bench = Bench()
    bench.give(batch(llm("s1", [1], [2]), begin=True, end=end()))
    bench.wait(60)
    wanted = bench.give(rew(1.0))
    assert bench.committable() == {"spans": 1, "rewards": 0}
    new = bench.reread(*wanted, lost=True)
    assert [type(o) for o in new] == [Late]
    assert bench.committable() == {"spans": 1, "rewards": 1}
    assert bench.assembler.counts["late"] == 1


def test_a_reward_of_a_rollout_goes_to_its_final_attempt_before_or_after_it_ended() -> None:
    early, late = rew(0.5, attempt=None, name="early"), rew(1.0, attempt=None, rid="rw-2", created=950)
    bench = Bench()
    bench.give(early, batch(llm("s0", [1], [2]), attempt="at-0", begin=True, end=end("failed", final=False)))
    assert bench.committable() == {"spans": 1, "rewards": 0}
    bench.give(batch(llm("s1", [1], [2]), begin=True, end=end()))
    assert (bench.last("at-0").final_reward, bench.last().final_reward) == (None, 0.5)
    bench.give(late)
    assert bench.last().final_reward == 1.0
    assert bench.committable() == {"spans": 2, "rewards": 2}


def test_a_restarted_assembler_skips_what_assemblies_says_was_emitted() -> None:
    bench = Bench()
    records: list[SpanBatch | Reward] = [batch(llm("s1", [1], [2]), begin=True, end=end()), rew(1.0)]
    messages = [bench.message(r) for r in records]
    for message in messages:
        bench.out += bench.assembler.add(message, bench.now)
    assemblies = [o.assembly for o in bench.out if isinstance(o, Emitted)]
    again = Assembler()
    again.assign(0, spans=0, rewards=0, assemblies=assemblies)
    assert [o for m in messages for o in again.add(m, bench.now)] == []
    assert again.partitions[0].committable() == {"spans": 1, "rewards": 1}
    assert again.attempts == {}
    assert at(0) == NOW


def test_a_refused_reward_of_a_rollout_counts_the_same_before_and_after_its_final_attempt_ended() -> None:
    bad, whole = rew(float("nan"), attempt=None), batch(llm("s1", [1], [2]), begin=True, end=end())
    found: list[tuple[int, str, list[str]]] = []
    for order in ((bad, whole), (whole, bad)):
        bench = Bench()
        bench.give(*order)
        assert len([o for o in bench.out if isinstance(o, Refused)]) == 1
        found.append((bench.last().revision, bench.last().input_digest, bench.last().flags))
    assert found[0] == found[1]
    assert "nonfinite_reward" in found[0][2]


def test_a_parent_of_zeros_is_none() -> None:
    root = replace(span("s0"), parent_span_id="0" * 16)
    bench = Bench()
    bench.give(batch(root, llm("s1", [1], [2], parent="s0")))
    bench.wait(3)
    assert bench.last().flags == ["no_end", "unrewarded"]


def test_rewards_are_counted_by_who_gave_them_whatever_order_they_come_in() -> None:
    ours, theirs = rew(1.0, producer_id="p1"), rew(1.0, producer_id="")
    for given in ([ours, theirs], [theirs, ours]):
        bench = Bench()
        bench.give(batch(llm("s1", [1], [2]), begin=True), *given, batch(end=end(reward_count=1)))
        assert bench.last().flags == []


def test_a_reward_that_was_no_number_and_its_correction_are_one_arrival() -> None:
    wrong, right = rew(float("nan"), producer_id="p1"), rew(1.0, producer_id="p1", sequence=1)
    for given in ([wrong, right], [right, wrong]):
        bench = Bench()
        bench.give(batch(llm("s1", [1], [2]), begin=True), *given, batch(end=end(reward_count=2)))
        assert bench.trajectories() == []
        bench.wait(3)
        assert bench.last().flags == ["missing_rewards", "nonfinite_reward"]


def late_to(size: int) -> Bench:
    """Three records that come one after the other for an attempt of so many spans that was emitted."""
    bench = Bench()
    bench.give(batch(*(span(f"s{i}", seq=i) for i in range(size)), begin=True, end=end()))
    bench.give(*(batch(span(f"late{i}"), producer="gateway") for i in range(3)))
    return bench


def test_a_small_attempt_is_revised_at_once() -> None:
    bench = late_to(10)
    assert [t.revision for t in bench.trajectories()] == [10, 11, 12, 13]


def test_a_burst_for_a_large_attempt_makes_one_revision() -> None:
    bench = late_to(200)
    bench.wait(0.09)
    assert [t.revision for t in bench.trajectories()] == [200]
    assert bench.committable() == {"spans": 1, "rewards": 0}
    bench.wait(0.01)
    assert [t.revision for t in bench.trajectories()] == [200, 203]
    assert bench.committable() == {"spans": 4, "rewards": 0}
    assert bench.assembler.open_attempts == 0
