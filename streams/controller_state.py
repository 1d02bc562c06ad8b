"""What the controller knows: open rollouts, workers, timers. Plain data with its indexes; no decisions.

What must survive is in `Rollout` records; the rest is rebuilt from them and from workers, resources and decisions.
"""

from __future__ import annotations

import heapq
from collections import OrderedDict, deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Literal

from ..infra.clock import NS_PER_S
from ..schemas import ids
from ..schemas.records import (
    Assignment,
    Attempt,
    AttemptStatus,
    EndStatus,
    Rollout,
    RolloutStatus,
    SpanBatch,
    Task,
    Worker,
)
from .controller_queue import Run

Phase = Literal["new", "queuing", "preparing", "running", "closing", "done"]
TimerKind = Literal["wake", "claim_due", "watch_due", "repeat_due", "expire_due", "worker_due"]
Timer = tuple[int, int, TimerKind, str, "str | None"]  # (due, tie-break, kind, rollout or worker id, attempt id)
Out = Attempt | Assignment | Rollout | SpanBatch
# Longer waits are refused: in nanoseconds after now they must fit 64 bits, and 30 years are as good as for ever.
LONGEST_S = 1e9
# Timers that no longer apply are swept once they outnumber what is open by so much.
TIMERS_SPARE = 1000
TIMERS_EACH = 4
# Decisions are kept for 7 days; older groups can no longer be told open from closed, and hold no credit.
DECISIONS_KEPT_S = 7 * 24 * 3600.0
# Decisions remembered, a third of a kilobyte each: a member that comes after a million other groups is not waited for.
MAX_DECIDED = 1_000_000
# What one order, resource or outage changes in 100,000 rollouts takes as many ticks as keep transactions short.
CHANGES_A_TICK = 1000


@dataclass(frozen=True, slots=True)
class ControllerPolicy:
    """Times and bounds of the controller itself; those of a rollout are in its task. Seconds."""

    worker_silent_s: float = 10.0  # nothing is given to a worker not heard of for so long
    worker_forgotten_s: float = 600.0  # and then it is forgotten
    trainer_silent_s: float = 60.0  # a trainer's credit binds for so long after its last heartbeat
    claim_slack_s: float = 0.5  # a begin batch needs time to come back through the assembler
    repeat_s: float = 1.0  # until an end marker is written again; doubles each time
    repeat_max_s: float = 30.0
    backoff_s: float = 0.25  # before a rollout handed back is given out anew; doubles each time
    backoff_max_s: float = 30.0
    max_handbacks: int = 20  # unclaimed or returned so often, a rollout fails: no worker can run it


@dataclass(slots=True)
class Live:
    """An open rollout."""

    task: Task
    created_ns: int
    status: RolloutStatus = "queuing"
    tries: int = 0
    dispatches: int = 0
    attempt_id: str | None = None
    attempt_status: AttemptStatus | None = None
    closing: EndStatus | None = None
    worker_id: str | None = None  # null while an attempt is open: it is an empty one
    counting_attempt: str | None = None
    paused: bool = False
    final: bool = False
    dispatched_ns: int = 0
    started_ns: int = 0
    ended_ns: int = 0
    deadline_ns: int = 0
    not_before_ns: int = 0
    taken_ns: int = 0
    reason: str | None = None
    error_type: str | None = None
    pins: dict[str, int | None] = field(default_factory=dict[str, "int | None"])
    named_ns: int = 0  # last heartbeat that named the attempt
    closed_ns: int = 0  # when it went to closing
    marks: int = 0  # end markers written
    ticket: int = 0  # its valid entry in a queue; 0 = in none

    @property
    def id(self) -> str:
        return self.task.rollout_id

    @property
    def phase(self) -> Phase:
        """Where it stands in the transition table."""
        if self.final:
            return "done"
        if self.attempt_status in ("preparing", "running", "closing"):
            return self.attempt_status
        return "queuing"

    @property
    def expires_ns(self) -> int | None:
        """When all of it must be over; null = never."""
        limit_s = self.task.limits.rollout_timeout_s
        if limit_s is None or not limit_s <= LONGEST_S:
            return None
        return after(self.taken_ns or self.created_ns, limit_s)

    @property
    def cut(self) -> bool:
        """True where its attempt is closed by the rollout's time-out rather than by its own."""
        expires_ns = self.expires_ns
        return self.closing == "timeout" and expires_ns is not None and self.deadline_ns >= expires_ns

    @property
    def handbacks(self) -> int:
        """Attempts that ended without being tries; valid between attempts."""
        return self.dispatches - self.tries


@dataclass(slots=True)
class WorkerView:
    """What a worker said and what it was given since.

    A slot is taken by what its heartbeat names and by what it was given but cannot have told of yet. An attempt that
    the worker ended itself frees its slot at once; one that the controller ended does when a heartbeat drops it.
    """

    beat: Worker
    heard_ns: int
    asleep: bool = False
    drained: bool = False  # by an order
    given: dict[str, int | None] = field(default_factory=dict[str, "int | None"])  # attempt -> assignment's offset
    closed: set[str] = field(default_factory=set[str])  # given, and ended by the controller
    done: set[str] = field(default_factory=set[str])  # ended by the worker, perhaps still named by an old heartbeat

    @property
    def free(self) -> int:
        """Slots that can be given out now."""
        if self.asleep or self.drained or self.beat.draining:
            return 0
        stray = sum(1 for a in self.beat.running if a not in self.given and a not in self.done)
        return self.beat.slots - len(self.given) - stray

    def hear(self, beat: Worker, now_ns: int) -> None:
        """Takes over a heartbeat and lets go of what it settles."""
        self.beat, self.heard_ns, self.asleep = beat, now_ns, False
        running = set(beat.running)
        for attempt_id, offset in list(self.given.items()):
            seen = attempt_id in self.closed if offset is None else offset <= beat.last_assignment_offset
            if seen and attempt_id not in running:
                del self.given[attempt_id]
        self.closed &= self.given.keys()
        self.done &= running

    def release(self, attempt_id: str, by_worker: bool) -> None:
        """Notes that an attempt has ended."""
        if by_worker:
            self.given.pop(attempt_id, None)
            self.closed.discard(attempt_id)
            self.done.add(attempt_id)
        elif attempt_id in self.given:
            self.closed.add(attempt_id)


@dataclass(slots=True)
class Cancelling:
    """A run that is being cancelled: by which order, and which rollouts are still to be."""

    order: Task
    waiting: deque[str]


@dataclass(slots=True)
class ControllerState:
    """Everything the controller knows."""

    epoch: int = 0
    policy: ControllerPolicy = ControllerPolicy()
    mint: Callable[[], str] = ids.attempt_id  # never gives the same id twice
    live: dict[str, Live] = field(default_factory=dict[str, Live])
    finished: set[str] = field(default_factory=set[str])  # only so that a duplicate task is known
    attempts: dict[str, Live] = field(default_factory=dict[str, Live])  # open attempt -> its rollout
    workers: dict[str, WorkerView] = field(default_factory=dict[str, WorkerView])
    free: dict[str, int] = field(default_factory=dict[str, int])  # workers with free slots
    runs: dict[str, Run] = field(default_factory=dict[str, Run])
    versions: dict[str, set[int]] = field(default_factory=dict[str, set[int]])  # of each resource
    newest: dict[str, int] = field(default_factory=dict[str, int])
    policies: set[str] = field(default_factory=set[str])  # resources of kind policy
    waiting: dict[str, set[str]] = field(default_factory=dict[str, set[str]])  # resource -> rollouts that wait for it
    waking: deque[str] = field(default_factory=deque[str])  # those whose resource has come, not yet queued again
    decided: OrderedDict[tuple[str, str], int] = field(  # (run, group) -> when; oldest first
        default_factory=OrderedDict[tuple[str, str], int]
    )
    drained: set[str] = field(default_factory=set[str])  # workers' ids and names by order; "*" is all of them
    cancelling: dict[str, Cancelling] = field(default_factory=dict[str, "Cancelling"])  # runs
    timers: list[Timer] = field(default_factory=list[Timer])
    dirty: dict[str, Live] = field(default_factory=dict[str, Live])  # changed since the last Tick
    out: list[Out] = field(default_factory=list[Out])  # to be handed out by the current step
    taken_ns: int = 0  # of the newest rollout
    count: int = 0  # tie-breaks and queue tickets
    ignored: int = 0  # events that changed nothing: late, duplicate, unknown

    def next(self) -> int:
        """A number higher than every one before."""
        self.count += 1
        return self.count

    def timer(self, due_ns: int, kind: TimerKind, who: str, attempt_id: str | None = None) -> None:
        """Sets a timer; one that no longer applies when due is dropped then."""
        heapq.heappush(self.timers, (due_ns, self.next(), kind, who, attempt_id))

    def applies(self, timer: Timer) -> bool:
        """Whether a timer still stands for anything."""
        _, _, kind, who, attempt_id = timer
        if kind == "worker_due":
            return who in self.workers
        live = self.live.get(who)
        return live is not None and (kind == "expire_due" or live.attempt_id == attempt_id)

    def sweep_timers(self) -> None:
        """Drops timers of what is over, so that long ones of short rollouts do not pile up."""
        if len(self.timers) > TIMERS_SPARE + TIMERS_EACH * (len(self.live) + len(self.workers)):
            self.timers = [timer for timer in self.timers if self.applies(timer)]
            heapq.heapify(self.timers)

    def take(self, task: Task, now_ns: int) -> Live:
        """A new rollout. No two are taken in at the same time, so that the times tell the order."""
        self.taken_ns = max(now_ns, self.taken_ns + 1)
        return Live(task, created_ns=task.created_ns or now_ns, taken_ns=self.taken_ns)

    def run_of(self, run_id: str) -> Run:
        """A run, made on first sight."""
        found = self.runs.get(run_id)
        if found is None:
            found = self.runs[run_id] = Run()
        return found

    def decide(self, run_id: str, group_id: str, at_ns: int) -> None:
        """Notes that a group is closed, known or not: members of it may still come."""
        self.run_of(run_id).decide(group_id)
        self.decided.pop((run_id, group_id), None)
        self.decided[run_id, group_id] = at_ns

    def forget_decisions(self, now_ns: int) -> None:
        """Drops those that a restart would no longer find, and the oldest of too many."""
        while self.decided:
            (run_id, group_id), at_ns = next(iter(self.decided.items()))
            if after(at_ns, DECISIONS_KEPT_S) > now_ns and len(self.decided) <= MAX_DECIDED:
                return
            del self.decided[run_id, group_id]
            self.run_of(run_id).closed.discard(group_id)
            self.forget_run(run_id)

    def forget_run(self, run_id: str) -> None:
        """Drops a run that holds nothing any more."""
        run = self.runs.get(run_id)
        if run is not None and run.idle:
            del self.runs[run_id]

    def refresh(self, worker_id: str) -> None:
        """Brings the index of free slots up to date for one worker."""
        view = self.workers.get(worker_id)
        if view is not None and view.free > 0:
            self.free[worker_id] = view.free
        else:
            self.free.pop(worker_id, None)


def after(now_ns: int, seconds: float) -> int:
    """A time some seconds after `now_ns`."""
    return now_ns + int(seconds * NS_PER_S)
