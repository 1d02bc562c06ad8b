"""Whatever comes late, twice, out of order or never: every rollout ends, with exactly one final attempt."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from hypothesis import given, settings
from hypothesis import strategies as st

from spanloop.schemas.records import (
    Assignment,
    Attempt,
    AttemptEnd,
    Limits,
    Rollout,
    SpanBatch,
    Task,
    TaskAction,
    Worker,
)
from spanloop.schemas.retry import is_final
from spanloop.schemas.spans import EndStatus, Mode
from spanloop.streams.controller import ControllerState, Event, Out, Tick, step
from spanloop.streams.controller_recover import load, recover, settle

SECOND = 1_000_000_000
MODES: tuple[Mode, ...] = ("train", "val")
ENDS: tuple[EndStatus, ...] = ("succeeded", "failed", "returned", "cancelled")
ORDERS: tuple[TaskAction, ...] = ("cancel", "pause", "resume")


@dataclass
class World:
    """Controller, worker and assembler around a log, driven one action at a time."""

    state: ControllerState = field(default_factory=ControllerState)
    now: int = 1_760_000_000 * SECOND
    rollouts: dict[str, Rollout] = field(default_factory=dict[str, Rollout])  # the compacted topic
    finals: list[str] = field(default_factory=list[str])  # each final Rollout record written
    inbox: list[Assignment] = field(default_factory=list[Assignment])
    running: dict[str, Assignment] = field(default_factory=dict[str, Assignment])
    minted: list[str] = field(default_factory=list[str])
    decided: dict[str, tuple[str, AttemptEnd]] = field(default_factory=dict[str, tuple[str, AttemptEnd]])
    events: list[Attempt] = field(default_factory=list[Attempt])  # written by the assembler, not yet delivered
    tasks: dict[str, Task] = field(default_factory=dict[str, Task])

    def send(self, *events: Event) -> None:
        for event in (*events, Tick()):
            for record in step(self.state, event, self.now):
                self.take(record)

    def take(self, record: Out) -> None:
        match record:
            case Rollout():
                self.rollouts[record.rollout_id] = record
                self.finals += [record.rollout_id] if record.final else []
            case Assignment(action="run"):
                self.minted.append(record.attempt_id)
                self.inbox.append(record)
            case SpanBatch(end=AttemptEnd() as end):
                self.mark(record.rollout_id, record.attempt_id, end)
            case _:
                pass

    def mark(self, rollout_id: str, attempt_id: str, end: AttemptEnd) -> None:
        """The first marker decides; the assembler tells of it."""
        if attempt_id not in self.decided:
            self.decided[attempt_id] = (rollout_id, end)
            self.events.append(
                Attempt(
                    rollout_id, attempt_id, "ended", outcome=end.status, final=end.final, error_type=end.error_type,
                    failure_class=end.failure_class,
                )
            )  # fmt: skip

    # --- actions; n picks among what there is

    def enqueue(self, n: int) -> None:
        name = f"ro-{n % 5}"
        limits = Limits(1 + n % 3, timeout_s=20, unresponsive_s=10, claim_s=5, retry_on=["failed"] if n % 2 else [])
        task = self.tasks.setdefault(name, Task(name, "run", mode=MODES[n % 2], limits=limits))
        self.send(task)

    def order(self, n: int) -> None:
        self.send(Task(f"ro-{n % 5}", "run", action=ORDERS[n % 3]))

    def begin(self, n: int) -> None:
        if self.inbox:
            order = self.inbox.pop(n % len(self.inbox))
            assert order.task is not None
            self.running[order.attempt_id] = order
            self.events.append(Attempt(order.task.rollout_id, order.attempt_id, "running"))

    def end(self, n: int) -> None:
        if self.running:
            order = self.running.pop(sorted(self.running)[n % len(self.running)])
            assert order.task is not None
            status = ENDS[n % len(ENDS)]
            final = is_final(order.task, order.attempt_number, status)
            self.mark(order.task.rollout_id, order.attempt_id, AttemptEnd(status, self.now, final=final))

    def lose(self, n: int) -> None:
        """An assignment that is never claimed, or an attempt whose worker died."""
        if n % 2 and self.inbox:
            self.inbox.pop(n % len(self.inbox))
        elif self.running:
            del self.running[sorted(self.running)[n % len(self.running)]]

    def deliver(self, n: int) -> None:
        """One of the assembler's events, in any order; sometimes it stays to come again."""
        if self.events:
            event = self.events[n % len(self.events)]
            if n % 3:
                self.events.remove(event)
            self.send(event)

    def wait(self, n: int) -> None:
        self.now += (n % 12) * SECOND
        self.send()

    def beat(self, n: int) -> None:
        del n
        self.send(Worker("wo-1", slots=3, running=list(self.running), last_assignment_offset=10**9))

    def restart(self, n: int) -> None:
        del n
        self.state = ControllerState()
        for record in self.rollouts.values():
            load(self.state, record, self.now)
        recover(self.state, self.now, self.now)
        step(self.state, Worker("wo-1", slots=3, running=list(self.running)), self.now)
        settle(self.state)
        self.send()

    def settle_down(self) -> None:
        """From here on nothing is lost: everything asked for must end."""
        for name in self.tasks:
            self.send(Task(name, "run", action="resume"))
        for n in range(400):
            self.beat(0)
            self.begin(0)
            self.end(n)
            for _ in range(len(self.events)):
                self.deliver(1)
            self.wait(1)
            if not self.state.live:
                return
        raise AssertionError(f"still open: {self.state.live}")


ACTIONS: dict[str, Callable[[World, int], None]] = {
    "enqueue": World.enqueue,
    "order": World.order,
    "begin": World.begin,
    "end": World.end,
    "lose": World.lose,
    "deliver": World.deliver,
    "wait": World.wait,
    "beat": World.beat,
    "restart": World.restart,
}
Played = list[tuple[str, int]]


@settings(max_examples=300, deadline=None)
@given(st.lists(st.tuples(st.sampled_from(sorted(ACTIONS)), st.integers(0, 59)), min_size=15, max_size=80))
def test_every_rollout_ends_with_exactly_one_final_attempt(played: Played) -> None:
    world = World()
    world.beat(0)
    for name, n in played:
        ACTIONS[name](world, n)
    world.settle_down()
    assert sorted(world.finals) == sorted(world.tasks)
    assert len(set(world.minted)) == len(world.minted)
    for rollout_id, task in world.tasks.items():
        final = [a for a, (r, end) in world.decided.items() if r == rollout_id and end.final]
        assert final == [world.rollouts[rollout_id].counting_attempt]
        assert world.rollouts[rollout_id].tries <= task.limits.max_attempts
    assert not world.state.attempts
    assert not any(run.open or run.given or run.queued for run in world.state.runs.values())


@settings(max_examples=100, deadline=None)
@given(st.lists(st.tuples(st.sampled_from(sorted(ACTIONS)), st.integers(0, 59)), min_size=15, max_size=80))
def test_no_more_attempts_are_out_than_the_worker_has_slots(played: Played) -> None:
    world = World()
    world.beat(0)
    for name, n in played:
        ACTIONS[name](world, n)
        out = [x for x in world.state.attempts.values() if x.worker_id is not None and x.phase != "closing"]
        assert len(out) <= 3
