"""An attempt that a bound closed is owed the answer to its end marker, and its rollout a trajectory that is final."""

from __future__ import annotations

import pytest
from events import Bench, batch, end, llm, rew, span

from spanloop.schemas.records import Attempt, AttemptContext, AttemptEnd, SpanBatch, Trajectory
from spanloop.schemas.topics import key_of
from spanloop.streams.messages import Emitted, Late, Output, Policy, Reread

TIGHT = (Policy(max_events=1), Policy(max_bytes=10_000), Policy(max_open=1), Policy(max_total_bytes=30_000))
NAMES = ("events", "bytes", "open", "total_bytes")
MEMBER = AttemptContext(run_id="run", group_id="gr-1", group_size=2, sample=1)

AT_1 = (0, "ro-1", "at-1")


def closed(policy: Policy) -> Bench:
    """An assembler that has just closed at-1, which runs."""
    bench = Bench(policy)
    bench.give(batch(span("s0"), llm("s1", range(5_000), [1], parent="s0"), begin=True))
    bench.give(batch(llm("s1", range(5_000), [1]), attempt="at-2", begin=True))
    assert (bench.last().flags[0], bench.last().final, AT_1 in bench.assembler.attempts) == ("no_end", False, False)
    return bench


def marker(status: str = "succeeded", *, final: bool = True) -> SpanBatch:
    given = end("timeout", failure_class="infra", final=final, context=MEMBER, span_count=9)
    return batch(end=given if status == "timeout" else end(context=MEMBER, final=final), producer=status)


def ends(outputs: list[Output]) -> list[str | None]:
    """Outcomes told of ends."""
    return [o.outcome for o in outputs if isinstance(o, Attempt) and o.status == "ended"]


def revisions(bench: Bench) -> list[Trajectory]:
    return [t for t in bench.trajectories() if t.attempt_id == "at-1"]


@pytest.mark.parametrize("policy", TIGHT, ids=NAMES)
def test_every_end_marker_is_answered_and_the_first_one_makes_a_last_revision(policy: Policy) -> None:
    bench = closed(policy)
    new = bench.give(marker("timeout"), marker("succeeded"))
    assert ends(new + bench.reread(*new)) == ["timeout", "timeout"]
    first, last = revisions(bench)
    assert (last.revision, last.status, last.final, last.context) == (first.revision, "timeout", True, MEMBER)
    assert (last.calls, last.rows, last.flags) == ([], [], ["missing_spans", "unrewarded", "bounded", "failed"])
    assert key_of(last) == "gr-1"  # so its group has all its members
    (assembly,) = [o.assembly for o in bench.out if isinstance(o, Emitted) and o.trajectory is last]
    assert (assembly.status, assembly.final, assembly.spans_offset, assembly.spans_next) == ("dropped", True, 0, 3)


@pytest.mark.parametrize("restarted", [False, True])
def test_what_the_first_end_marker_decided_stands_when_nobody_remembers_it(restarted: bool) -> None:
    bench = closed(Policy(max_events=1))
    bench.give(marker("timeout", final=False))
    before = revisions(bench)
    bench.wait(60)
    if restarted:
        bench.restart()
    wanted = bench.give(marker("succeeded"))
    assert [type(o) for o in wanted] == [Reread]
    assert ends(bench.reread(*wanted)) == ["timeout"]
    assert revisions(bench) == before
    bench.give(batch(attempt="at-2", end=end()))
    assert bench.committable()["spans"] == 5


def test_the_first_end_marker_makes_the_same_revision_in_every_life() -> None:
    lives = [closed(Policy(max_events=1)) for _ in range(3)]
    for bench in lives[1:]:
        bench.restart()
    lives[0].give(marker())
    for bench, lost in zip(lives[1:], (False, True), strict=True):  # lost: retention took what came before it
        new = bench.reread(*bench.give(marker()), lost=lost)
        assert ends(new) == ["succeeded"]
    assert len({repr(revisions(bench)) for bench in lives}) == 1
    assert len(revisions(lives[0])) == 2


def test_an_attempt_that_is_over_when_a_bound_closes_it_keeps_the_revision_that_has_its_calls() -> None:
    bench = Bench(Policy(max_events=1))
    bench.give(batch(span("s0"), llm("s1", [1], [2], parent="s0"), begin=True, end=end()))
    assert (len(bench.last().calls), bench.last().final, "bounded" in bench.last().flags) == (1, True, True)
    for again in (lambda: bench.give(marker("timeout")), bench.restart):  # nothing was committed
        assert ends(bench.reread(*again())) == ["succeeded"]
        bench.wait(60)
    assert len(revisions(bench)) == 1
    assert bench.committable()["spans"] == 2


def test_a_begin_behind_the_closing_is_told_and_spans_and_rewards_are_late() -> None:
    bench = closed(Policy(max_events=1))
    assert [o.status for o in bench.give(batch(begin=True)) if isinstance(o, Attempt)] == ["running"]
    bench.give(rew(1.0, attempt=None), marker())
    late = bench.give(rew(1.0, rid="rw-2", attempt=None), rew(1.0, rid="rw-3"), batch(span("a"), span("b", seq=1)))
    assert [(type(o), o.events) for o in late if isinstance(o, Late)] == [(Late, 1), (Late, 1), (Late, 2)]
    assert (bench.last().rewards, bench.assembler.counts["late"]) == ([], 5)
    assert bench.committable()["rewards"] == 3


def test_an_end_marker_is_answered_though_what_came_before_it_is_gone_or_finds_no_room() -> None:
    for policy, lost in ((Policy(), True), (Policy(max_open=1), False)):
        bench = Bench(policy)
        bench.give(batch(llm("s1", [1], [2])))
        bench.wait(60)  # a plain trace, over and forgotten
        new = bench.give(batch(end=end()))
        new += bench.reread(*new, lost=True) if lost else bench.give(batch(span("s0"), attempt="at-2", begin=True))
        assert (ends(new), [o.attempt_id for o in new if isinstance(o, Late)]) == (["succeeded"], ["at-1"])
        assert AT_1 not in bench.assembler.attempts


def test_a_closed_attempt_whose_end_marker_finds_no_room_is_final_all_the_same() -> None:
    bench = closed(Policy(max_open=1, max_events=1))
    bench.restart()
    bench.give(marker())  # its first end may lie before: that is being read
    bench.give(batch(span("s0"), attempt="at-3", begin=True))
    assert ends(bench.out) == ["succeeded"]
    assert (bench.last().final, {a.attempt_id for a in bench.assembler.attempts.values()}) == (True, {"at-3"})


def test_a_failure_of_the_agents_own_doing_gets_its_failure_reward_though_a_bound_closed_it() -> None:
    bench = closed(Policy(max_events=1))
    context = AttemptContext(run_id="run", failure_reward=-1.0)
    failed: AttemptEnd = end("failed", failure_class="agent", error_type="ValueError", context=context)
    bench.give(batch(end=failed))
    assert (bench.last().final_reward, bench.last().failure_class) == (-1.0, "agent")
