"""A controller's core at a time that moves only when told to, and the task that its tests are about."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from typing import TypeVar

from spanloop.schemas.records import Attempt, Decision, EndStatus, Limits, Rollout, Task, Worker
from spanloop.streams.controller import ControllerState, Event, Out, Tick, step
from spanloop.streams.controller_recover import load, recover, settle

T0 = 1_760_000_000_000_000_000
SECOND = 1_000_000_000
R = TypeVar("R", bound=Out)
TASK = Task(rollout_id="ro-1", run_id="run", mode="train", group_id="gr-1", sample=2, group_size=4, data_id="d7")


def fresh(epoch: int = 7, since: int = 0) -> ControllerState:
    """A controller that mints at-1, at-2, ...; from at-`since` + 1."""
    numbers = iter(range(since + 1, 10_000))
    return ControllerState(epoch=epoch, mint=lambda: f"at-{next(numbers)}")


@dataclass
class Play:
    """A controller with one worker of four slots, at a time that moves only when told to."""

    state: ControllerState = field(default_factory=fresh)
    now: int = T0
    out: list[Out] = field(default_factory=list[Out])
    rollouts: dict[str, Rollout] = field(default_factory=dict[str, Rollout])

    def __post_init__(self) -> None:
        self.do(Worker("wo-1", slots=4))

    def do(self, *events: Event) -> list[Out]:
        """One batch of events and the tick that closes it."""
        self.out = [r for e in (*events, Tick()) for r in step(self.state, e, self.now)]
        self.rollouts |= {r.rollout_id: r for r in self.get(Rollout)}
        return self.out

    def wait(self, seconds: float) -> list[Out]:
        self.now += int(seconds * SECOND)
        return self.do()

    def beat(self, *running: str) -> list[Out]:
        return self.do(Worker("wo-1", slots=4, running=list(running), last_assignment_offset=10**6))

    def begin(self, attempt_id: str) -> list[Out]:
        return self.do(Attempt("ro-1", attempt_id, "running"))

    def end(self, attempt_id: str, outcome: EndStatus = "succeeded", *, final: bool = True) -> list[Out]:
        return self.do(Attempt("ro-1", attempt_id, "ended", outcome=outcome, final=final))

    def get(self, kind: type[R]) -> list[R]:
        return [r for r in self.out if isinstance(r, kind)]

    @property
    def rollout(self) -> Rollout:
        return self.rollouts["ro-1"]

    def restart(self) -> None:
        """A new controller that knows only what was written."""
        self.state = restarted(self.rollouts.values(), self.now, Worker("wo-1", slots=4))


def restarted(rollouts: Iterable[Rollout], now: int, *again: Worker | Decision) -> ControllerState:
    """A new controller that has read `rollouts` and these heartbeats and decisions."""
    state = fresh(0, since=100)
    for record in rollouts:
        load(state, record, now)
    recover(state, 5, now)
    for record in again:
        step(state, record, now)
    settle(state)
    return state


def limits(**changes: object) -> Task:
    """TASK under other limits."""
    return replace(TASK, limits=replace(Limits(), **changes))  # pyright: ignore[reportArgumentType]  # names checked by replace
