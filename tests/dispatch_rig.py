"""A controller's core among workers, groups and a trainer, at a time that moves only when told to."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from controller_rig import T0

from spanloop.schemas.records import Assignment, Attempt, Rollout, Task, Worker
from spanloop.streams.controller import ControllerState, Event, Out, Tick, step


@dataclass
class Play:
    """A controller at a time that moves only when told to."""

    state: ControllerState = field(default_factory=ControllerState)
    now: int = T0
    out: list[Out] = field(default_factory=list[Out])
    rollouts: dict[str, Rollout] = field(default_factory=dict[str, Rollout])
    attempts: dict[str, str] = field(default_factory=dict[str, str])  # rollout -> its latest attempt

    def do(self, *events: Event) -> list[str]:
        """One batch of events; the rollouts given out, in order."""
        self.out = [r for e in (*events, Tick()) for r in step(self.state, e, self.now)]
        self.rollouts |= {r.rollout_id: r for r in self.out if isinstance(r, Rollout)}
        given = [r for r in self.out if isinstance(r, Assignment) and r.action == "run" and r.task]
        self.attempts |= {r.task.rollout_id: r.attempt_id for r in given if r.task}
        return [r.task.rollout_id for r in given if r.task]

    def orders(self) -> list[Assignment]:
        return [r for r in self.out if isinstance(r, Assignment) and r.action == "run"]

    def finish(self, *rollout_ids: str) -> list[str]:
        return self.do(*(Attempt(r, self.attempts[r], "ended", outcome="succeeded", final=True) for r in rollout_ids))


def worker(slots: int, name: str = "wo-1", *, seen: int = -1, running: tuple[str, ...] = ()) -> Worker:
    return Worker(name, slots=slots, last_assignment_offset=seen, running=list(running))


def tasks(count: int, run: str = "run", **changes: object) -> list[Task]:
    plain = Task(rollout_id="", run_id=run, mode="val")
    return [
        replace(plain, **({"rollout_id": f"{run}-{i}"} | changes))  # pyright: ignore[reportArgumentType]  # names checked by replace
        for i in range(count)
    ]


def group(name: str, size: int) -> list[Task]:
    return [Task(f"{name}-{i}", "run", group_id=name, sample=i, group_size=size, mode="train") for i in range(size)]


def trainer(credit: int | None, *, alive: bool = True) -> Worker:
    return Worker("tr-1", role="trainer", run_id="run", credit=credit, alive=alive)
