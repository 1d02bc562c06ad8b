"""Retried rollouts and their rewards, as controller, assembler and trainer see them: their pure cores chained."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import pytest
from events import Bench, batch, end, llm, rew
from gateway_rig import Rig
from openai import BadRequestError

from spanloop.infra.scripted_engine import Whole
from spanloop.producers import outcome
from spanloop.producers.gateway import GatewayPolicy
from spanloop.schemas.packed import unpack_ids
from spanloop.schemas.records import (
    Assignment,
    Attempt,
    AttemptContext,
    Limits,
    Rollout,
    SpanBatch,
    Task,
    Trajectory,
    Worker,
)
from spanloop.streams.controller import ControllerState, Event, Out, Tick, step
from spanloop.trainer.advantage import group_mean
from spanloop.trainer.groups import ClosedGroup, Groups

OVERFLOW = b'{"error":{"message":"maximum context length 4608, requested 6859","type":"BadRequestError","code":400}}'


def ids(found: Trajectory) -> list[list[int]]:
    return [unpack_ids(row.token_ids) for row in found.rows]


@dataclass
class Loop:
    """Controller, assembler and a trainer's groups; `play` is what a worker sends for an assignment."""

    play: Callable[[Assignment], list[SpanBatch]]
    tasks: Sequence[Task]
    state: ControllerState = field(init=False)
    made: Bench = field(default_factory=Bench)
    rollouts: dict[str, Rollout] = field(default_factory=dict[str, Rollout])
    given: list[Assignment] = field(default_factory=list[Assignment])
    seen: int = 0

    def __post_init__(self) -> None:
        numbers = iter(range(1, 1000))
        self.state = ControllerState(epoch=1, mint=lambda: f"at-{next(numbers)}")
        self.control(Worker("wo-1", slots=64), *self.tasks)

    def control(self, *events: Event) -> None:
        """One tick of the controller; workers answer, the assembler reads, and so on until nothing is left."""
        out: list[Out] = [r for e in (*events, Tick()) for r in step(self.state, e, self.made.now)]
        self.rollouts |= {r.rollout_id: r for r in out if isinstance(r, Rollout)}
        given = [r for r in out if isinstance(r, Assignment) and r.action == "run"]
        self.given += given
        markers = [r for r in out if isinstance(r, SpanBatch)]
        self.spans(*markers, *(record for order in given for record in self.play(order)))

    def spans(self, *records: SpanBatch) -> None:
        self.made.give(*records)
        new = [o for o in self.made.out[self.seen :] if isinstance(o, Attempt)]
        self.seen = len(self.made.out)
        if new:
            self.control(*new)

    def wait(self, seconds: float) -> None:
        """Time passes, and the worker still stands by what it was given."""
        self.made.wait(seconds)
        self.control(self._beat())

    def _beat(self) -> Worker:
        running = [o.attempt_id for o in self.given if not self.rollouts[o.task.rollout_id if o.task else ""].final]
        return Worker("wo-1", slots=64, running=running, last_assignment_offset=10**6)


def tasks(count: int, limits: Limits) -> list[Task]:
    return [Task(f"ro-{i}", "run", group_id="gr", sample=i, group_size=count, limits=limits) for i in range(count)]


def overflow() -> Exception:
    """What the client raises for the gateway's 400."""
    made = Rig(GatewayPolicy(), Whole(OVERFLOW, 400))
    try:
        with made.openai() as client, pytest.raises(BadRequestError) as caught:
            client.chat.completions.create(model="policy", messages=[{"role": "user", "content": "hi"}])
    finally:
        made.close()
    return caught.value


def member_ids(group: ClosedGroup) -> list[str]:
    return [t.rollout_id for t in group.members]


def test_thirty_two_tasks_of_which_two_fail_and_run_again_are_thirty_two_members() -> None:  # TN-1
    failure = outcome.of_error(overflow(), "http://g")

    def play(order: Assignment) -> list[SpanBatch]:
        assert order.task is not None
        failed = order.task.sample < 2 and order.attempt_number == 1
        how = failure if failed else outcome.Outcome("succeeded")
        marker = outcome.end_marker(order, order.task, how, "wo-1", 1)
        spans = [] if failed else [llm("s1", [1], [2])]
        return [batch(*spans, rollout=order.task.rollout_id, attempt=order.attempt_id, begin=True, end=marker)]

    loop = Loop(play, tasks(32, Limits(max_attempts=2, retry_on=["failed"])))
    loop.wait(1.0)  # longer than the back-off
    assert len(loop.given) == 34
    assert [r.final for r in loop.rollouts.values()] == [True] * 32
    assert [r.tries for r in loop.rollouts.values()] == [2, 2, *[1] * 30]
    late_last = sorted(loop.made.trajectories(), key=lambda t: t.final, reverse=True)
    assert [t.status for t in late_last] == ["succeeded"] * 32 + ["failed"] * 2
    groups = Groups(600.0)
    assert [groups.offer(t, 0) for t in late_last] == ["taken"] * 32 + ["late"] * 2
    (group,) = groups.state.ready
    assert member_ids(group) == [f"ro-{i}" for i in range(32)]


@pytest.mark.parametrize("late_first", [False, True])
def test_an_attempt_that_was_given_up_never_counts_however_late_it_succeeds(late_first: bool) -> None:  # SP-7
    def play(order: Assignment) -> list[SpanBatch]:
        assert order.task is not None
        rollout_id, attempt_id = order.task.rollout_id, order.attempt_id
        if order.task.sample == 0 and order.attempt_number == 1:
            return [batch(llm("s1", [1], [2]), rollout=rollout_id, attempt=attempt_id, begin=True)]
        marker = outcome.end_marker(order, order.task, outcome.Outcome("succeeded"), "wo-1", 1)
        return [batch(llm("s1", [1], [3]), rollout=rollout_id, attempt=attempt_id, begin=True, end=marker)]

    loop = Loop(play, tasks(32, Limits(max_attempts=2, timeout_s=10.0, retry_on=["timeout"])))
    first = loop.given[0].attempt_id
    loop.wait(11.0)
    loop.wait(1.0)  # longer than the back-off
    second = loop.given[-1].attempt_id
    loop.made.give(rew(1.0, rollout="ro-0", attempt=second), rew(0.0, rid="rw-2", rollout="ro-0", attempt=first))
    loop.spans(batch(rollout="ro-0", attempt=first, end=end()))
    assert (loop.rollouts["ro-0"].counting_attempt, loop.rollouts["ro-0"].tries) == (second, 2)
    assert sum(r.final for r in loop.rollouts.values()) == 32
    newest = {t.attempt_id: t for t in loop.made.trajectories()}
    given_up, counted = newest[first], newest[second]
    assert (given_up.status, given_up.final, given_up.final_reward, ids(given_up)) == ("timeout", False, 0.0, [[1, 2]])
    assert (counted.status, counted.final, counted.final_reward, ids(counted)) == ("succeeded", True, 1.0, [[1, 3]])
    groups = Groups(600.0)
    for t in sorted(newest.values(), key=lambda t: t.attempt_id == first, reverse=late_first):
        groups.offer(t, 0)
    (group,) = groups.state.ready
    assert member_ids(group) == [f"ro-{i}" for i in range(32)]
    assert group.members[0].attempt_id == second


# --- rewards to advantages


@pytest.mark.parametrize(
    ("std", "wanted"), [(True, [1.155, None, -0.577, -0.577]), (False, [0.667, None, -0.333, -0.333])]
)
def test_a_nan_reward_is_out_of_the_baseline_from_ingest_on(std: bool, wanted: list[float | None]) -> None:  # CA-2
    made, groups = Bench(), Groups(600.0)
    for i, value in enumerate((1.0, float("nan"), 0.0, 0.0)):
        names = (f"ro-{i}", f"at-{i}")
        marker = end(context=AttemptContext(run_id="run", group_id="g", sample=i, group_size=4))
        made.give(rew(value, rid=f"rw-{i}", rollout=names[0], attempt=names[1]))
        made.give(batch(llm("s1", [1], [2]), rollout=names[0], attempt=names[1], begin=True, end=marker))
        groups.offer(made.last(names[1]), 0)
    assert made.assembler.counts["refused"] == 1
    found = group_mean(groups.state.ready[0], std)
    rounded = [None if m.advantage is None else round(m.advantage, 3) for m in found.members]
    assert rounded == wanted
    assert found.members[1].calls == (None,)
