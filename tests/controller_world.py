"""What a controller meets: a log, an assembler and workers, driven one action at a time. `n` picks among what there is.

The first end marker of an attempt decides; each further one is answered by what the first one decided. What the
assembler says may come in any order, twice or never; assignments and heartbeats may be lost; the controller may start
anew from what it wrote.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from controller_rig import SECOND, T0

from spanloop.schemas.records import Assignment, Attempt, AttemptEnd, Decision, Rollout, SpanBatch, Worker
from spanloop.schemas.retry import is_final
from spanloop.schemas.spans import EndStatus
from spanloop.streams.controller import ControllerPolicy, ControllerState, Event, Out, Placed, Tick, step
from spanloop.streams.controller_recover import load, recover, settle

ENDS: tuple[EndStatus, ...] = ("succeeded", "failed", "returned", "cancelled", "failed")
ERRORS = (None, "ValueError", "KeyError")
SLOTS = 3
POLICY = ControllerPolicy(max_handbacks=3)


@dataclass
class World:
    """Everything around the core; `watch` sees each event before and each record after the core does."""

    watch: Callable[[Event | Out], None]
    state: ControllerState = field(default_factory=lambda: ControllerState(policy=POLICY))
    now: int = T0
    rollouts: dict[str, Rollout] = field(default_factory=dict[str, Rollout])  # the compacted topic
    inbox: list[tuple[int, Assignment]] = field(default_factory=list[tuple[int, Assignment]])
    running: dict[str, Assignment] = field(default_factory=dict[str, Assignment])
    told: list[str] = field(default_factory=list[str])  # attempts that their worker was told to stop
    decided: dict[str, Attempt] = field(default_factory=dict[str, Attempt])  # what each first marker says
    events: list[Attempt] = field(default_factory=list[Attempt])  # said by the assembler, not yet delivered
    decisions: list[Decision] = field(default_factory=list[Decision])
    placed: list[Placed] = field(default_factory=list[Placed])
    offset: int = -1
    seen: int = -1
    draining: bool = False

    def send(self, *events: Event) -> None:
        """A batch of events and the tick that closes it."""
        placed, self.placed = self.placed, []
        for event in (*placed, *events, Tick()):
            self.watch(event)
            for record in step(self.state, event, self.now):
                self.watch(record)
                self._take(record)

    def _take(self, record: Out) -> None:
        match record:
            case Rollout():
                self.rollouts[record.rollout_id] = record
            case Assignment(action="run"):
                self.offset += 1
                self.inbox.append((self.offset, record))
                self.placed.append(Placed(record.worker_id, record.attempt_id, self.offset))
            case Assignment():
                self.told.append(record.attempt_id)
            case SpanBatch(end=AttemptEnd() as end):
                self._mark(record.rollout_id, record.attempt_id, end)
            case _:
                pass

    def _mark(self, rollout_id: str, attempt_id: str, end: AttemptEnd) -> None:
        said = Attempt(
            rollout_id, attempt_id, "ended", outcome=end.status, final=end.final, error_type=end.error_type,
            failure_class=end.failure_class,
        )  # fmt: skip
        self.events.append(self.decided.setdefault(attempt_id, said))

    # --- the worker

    def beat(self) -> None:
        """A heartbeat that names what runs."""
        self.send(self._heartbeat())

    def _heartbeat(self) -> Worker:
        return Worker(
            "wo-1", "desk", slots=SLOTS, running=list(self.running), last_assignment_offset=self.seen,
            draining=self.draining,
        )  # fmt: skip

    def begin(self) -> None:
        """The worker starts the next thing that it was given, unless it is too late for that."""
        if self.inbox:
            self.seen, order = self.inbox.pop(0)
            if order.task is None or self._late(order):
                return
            self.running[order.attempt_id] = order
            self.events.append(Attempt(order.task.rollout_id, order.attempt_id, "running"))

    def held(self) -> int:
        """What the worker runs or may still start; what it reads an order to stop behind does not count."""
        waiting = [order for _, order in self.inbox if order.attempt_id not in self.told]
        return len(self.running) + sum(not self._late(order) for order in waiting)

    def _late(self, order: Assignment) -> bool:
        return self.now - order.at_ns > order.claim_s * SECOND

    def end(self, n: int) -> None:
        """An attempt ends; one in seven is marked against its task's limits."""
        if self.running:
            self._end(sorted(self.running)[n % len(self.running)], ENDS[n % len(ENDS)], ERRORS[n % 3], wrong=n % 7 == 6)

    def stop(self) -> None:
        """The worker does as it was told."""
        found = next((a for a in self.told if a in self.running), None)
        if found is not None:
            self._end(found, "cancelled", None)

    def _end(self, attempt_id: str, status: EndStatus, error: str | None, *, wrong: bool = False) -> None:
        order = self.running.pop(attempt_id)
        assert order.task is not None
        error = error if status == "failed" else None
        final = is_final(order.task, order.attempt_number, status, error_type=error) != wrong
        end = AttemptEnd(status, self.now, final=final, error_type=error)
        self._mark(order.task.rollout_id, order.attempt_id, end)

    def lose(self, n: int) -> None:
        """An assignment is never claimed, or a worker dies with an attempt."""
        if n % 2 and self.inbox:
            self.seen, _ = self.inbox.pop(0)
        elif self.running:
            del self.running[sorted(self.running)[n % len(self.running)]]

    # --- the trainer

    def decide(self, run_id: str, group_id: str) -> None:
        """A group is closed, whatever of it is still to come."""
        self.decisions.append(Decision("tr-1", 1, run_id, group_id, at_ns=self.now))
        self.send(self.decisions[-1])

    # --- the log and time

    def deliver(self, n: int) -> None:
        """One of the assembler's events, in any order; one in three stays to come again."""
        if self.events:
            event = self.events[n % len(self.events)]
            if n % 3:
                self.events.remove(event)
            self.send(event)

    def tell_all(self) -> None:
        """All that the assembler said comes, in order."""
        events, self.events = self.events, []
        self.send(*events)

    def drop(self, n: int) -> None:
        """One of the assembler's events is lost."""
        if self.events:
            self.events.pop(n % len(self.events))

    def wait(self, seconds: float) -> None:
        """Time passes."""
        self.now += int(seconds * SECOND)
        self.send()

    def restart(self) -> None:
        """A new controller that knows what was written."""
        self.state, self.placed = ControllerState(policy=POLICY), []
        for record in self.rollouts.values():
            load(self.state, record, self.now)
        recover(self.state, self.now, self.now)
        beat = self._heartbeat()
        self.watch(beat)
        for record in (beat, *self.decisions):
            step(self.state, record, self.now)
        settle(self.state)
        self.send()

    def settle_down(self) -> None:
        """From here on nothing is lost; raises where something does not end all the same."""
        self.draining = False
        for n in range(600):
            self.beat()
            self.begin()
            self.end(n * 7)
            self.tell_all()
            self.wait(1)
            if not self.state.live:
                return
        raise AssertionError(f"still open: {self.state.live}")
