"""What a controller may and must do with a rollout, in plain words: written from docs/lifecycle.md, not from the code.

It is shown every event that the controller gets and every record that it writes, in order, and raises where one is not
allowed, or where a batch is over and something that had to follow has not.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from controller_rig import SECOND

from spanloop.schemas.records import Assignment, Attempt, AttemptEnd, Decision, Rollout, SpanBatch, Task, Worker
from spanloop.streams.controller import Event, Out, Tick

HANDED_BACK = ("unclaimed", "returned")
INFRA = ("unresponsive", "unclaimed", "returned", "cancelled")
NEVER = 1 << 63
SLACK = SECOND // 2  # a begin batch needs time to come back


def may_be_tried_again(task: Task, tries: int, event: Attempt) -> bool:
    """Whether the try that ended so leaves another."""
    if event.outcome in ("succeeded", "cancelled") or tries >= task.limits.max_attempts:
        return False
    kind = event.failure_class or ("infra" if event.outcome in INFRA else "agent")
    if task.limits.retry_on:
        return bool({event.outcome, event.error_type, kind}.intersection(task.limits.retry_on))
    return task.mode != "train" or kind == "infra"


@dataclass
class Case:
    """One rollout as it should be."""

    task: Task
    taken: int
    state: Literal["waits", "out", "closing", "over"] = "waits"
    attempt: str | None = None
    nobody: bool = False  # no worker runs its attempt
    given: int = 0
    begun: int | None = None
    named: int = 0
    tries: int = 0
    handed_back: int = 0
    cancelled: bool = False
    paused: bool = False
    ready_at: int = 0
    owed: str | None = None  # outcome of the empty attempt that must follow
    finals: int = 0

    @property
    def expires(self) -> int:
        limit = self.task.limits.rollout_timeout_s
        return NEVER if limit is None else self.taken + int(limit * SECOND)


@dataclass
class Reference:
    """All rollouts, the orders that stand, and the time."""

    now: int = 0
    taken: int = 0
    max_handed_back: int = 0
    cases: dict[str, Case] = field(default_factory=dict[str, Case])
    minted: set[str] = field(default_factory=set[str])
    paused_runs: set[str] = field(default_factory=set[str])
    bounds: dict[str, int | None] = field(default_factory=dict[str, "int | None"])
    drained: set[str] = field(default_factory=set[str])
    decided: set[tuple[str, str]] = field(default_factory=set[tuple[str, str]])
    draining: bool = False

    def see(self, item: Event | Out) -> None:
        """One event that came, or one record that was written."""
        match item:
            case Task(action="run"):
                self._asked(item)
            case Task():
                self._ordered(item)
            case Worker():
                self._heard(item)
            case Decision():
                self.decided.add((item.run_id, item.group_id))
            case Attempt(status="running"):
                self._begun(item)
            case Attempt(status="ended"):
                self._ended(item)
            case Assignment(action="run"):
                self._given(item)
            case SpanBatch(end=AttemptEnd() as end):
                self._closed(item.rollout_id, item.attempt_id, end)
            case Rollout(final=True) if item.status != "order":
                self.cases[item.rollout_id].finals += 1
            case _:
                assert isinstance(item, (Attempt, Assignment, Rollout, Tick)) or hasattr(item, "offset")

    # --- what comes

    def _asked(self, task: Task) -> None:
        if task.rollout_id not in self.cases:
            self.taken = max(self.now, self.taken + 1)  # no two are taken in at the same time
            self.cases[task.rollout_id] = Case(task, self.taken)
            if task.limits.run_concurrency is not None:
                self.bounds[task.run_id] = task.limits.run_concurrency

    def _ordered(self, order: Task) -> None:
        run = order.rollout_id == order.run_id
        if order.action in ("drain", "undrain"):
            (self.drained.add if order.action == "drain" else self.drained.discard)(order.rollout_id)
        elif order.action == "limit":
            self.bounds[order.run_id] = order.limits.run_concurrency
        elif order.action == "cancel":
            for case in self.cases.values():
                if case.task.rollout_id == order.rollout_id or (run and case.task.run_id == order.run_id):
                    case.cancelled = case.cancelled or case.state != "over"
        elif run:
            (self.paused_runs.add if order.action == "pause" else self.paused_runs.discard)(order.run_id)
        elif order.rollout_id in self.cases:
            self.cases[order.rollout_id].paused = order.action == "pause"

    def _heard(self, beat: Worker) -> None:
        self.draining = beat.draining
        for case in self.cases.values():
            if case.attempt in beat.running:
                case.named = self.now

    def restarted(self) -> None:
        """While no controller ran nobody heard heartbeats: silence is counted from now."""
        for case in self.cases.values():
            case.named = self.now

    def _current(self, event: Attempt) -> Case | None:
        case = self.cases[event.rollout_id]
        return case if case.attempt == event.attempt_id and case.state in ("out", "closing") else None

    def _begun(self, event: Attempt) -> None:
        case = self._current(event)
        if case is not None and case.begun is None and case.state == "out":
            case.begun = case.named = self.now

    def _ended(self, event: Attempt) -> None:
        case = self._current(event)
        if case is None:
            return
        back = event.outcome in HANDED_BACK
        number = case.tries + 1
        if not case.nobody:
            case.tries, case.handed_back = case.tries + (not back), case.handed_back + back
        if event.final:
            case.state = "over"
            return
        case.state, case.attempt = "waits", None
        if case.cancelled:
            case.owed = "cancelled"
        elif not back and not may_be_tried_again(case.task, number, event):
            case.owed = event.outcome
        elif case.handed_back >= self.max_handed_back:
            case.owed = "failed"
        elif self.now >= case.expires:
            case.owed = "timeout"
        else:
            limits = case.task.limits
            wait = min(0.25 * 2 ** (case.handed_back - 1), 30) if back else limits.backoff_s * 2 ** (case.tries - 1)
            case.ready_at = self.now + int((wait if back else min(wait, limits.backoff_max_s)) * SECOND)

    # --- what is written

    def _given(self, order: Assignment) -> None:
        assert order.task is not None
        case = self.cases[order.task.rollout_id]
        assert order.attempt_id not in self.minted
        assert (case.state, case.owed) == ("waits", None)
        assert not case.cancelled
        assert not case.paused
        assert self.now >= case.ready_at
        assert self.now < case.expires
        assert case.task.run_id not in self.paused_runs
        assert not self.draining
        assert not self.drained & {order.worker_id, "desk", "*"}
        assert order.attempt_number == case.tries + 1
        bound = self.bounds.get(case.task.run_id)
        assert bound is None or self.out(case.task.run_id) < bound
        self.minted.add(order.attempt_id)
        case.state, case.attempt, case.nobody = "out", order.attempt_id, False
        case.given, case.begun, case.named = self.now, None, 0

    def out(self, run_id: str) -> int:
        """Attempts of a run that a worker was given and that have not ended."""
        cases = [c for c in self.cases.values() if c.task.run_id == run_id and not c.nobody]
        return sum(c.state in ("out", "closing") for c in cases)

    def holding_credit(self, run_id: str) -> int:
        """Groups of one that a worker was given something of to train on, and that no trainer has decided."""
        tasks = [c.task for c in self.cases.values() if c.given and c.task.mode == "train" and c.task.run_id == run_id]
        return len({(run_id, task.group_id or task.rollout_id) for task in tasks} - self.decided)

    def _closed(self, rollout_id: str, attempt_id: str, end: AttemptEnd) -> None:
        case = self.cases[rollout_id]
        assert case.state != "over"
        if attempt_id != case.attempt:
            assert attempt_id not in self.minted
            assert case.state == "waits"
            assert end.final
            assert end.context.worker_id == ""
            assert end.status == (case.owed or ("cancelled" if case.cancelled else "timeout"))
            case.owed, case.attempt, case.nobody = None, attempt_id, True
            self.minted.add(attempt_id)
        if case.state != "closing" and not case.nobody:
            assert end.status in self._reasons(case)
        case.state = "closing"

    def _reasons(self, case: Case) -> set[str]:
        """With what its attempt may be closed now."""
        limits, begun, given = case.task.limits, case.begun, case.given
        found: set[str] = set()
        if case.cancelled:
            found.add("cancelled")
        if self.now >= case.expires or (begun is not None and self.now >= begun + int(limits.timeout_s * SECOND)):
            found.add("timeout")
        if begun is not None and self.now >= case.named + int(limits.unresponsive_s * SECOND):
            found.add("unresponsive")
        if begun is None and self.now >= max(given, case.named) + int(limits.claim_s * SECOND):
            found.add("unclaimed")
        return found

    # --- what must hold when a batch is over

    def check(self, rollouts: dict[str, Rollout]) -> None:
        """Nothing is owed, nothing is overdue, and the records say what should be."""
        for rollout_id, case in self.cases.items():
            assert case.owed is None, (rollout_id, case)
            assert not (case.cancelled and case.state in ("waits", "out")), (rollout_id, case)
            assert not (case.state == "waits" and self.now >= case.expires), (rollout_id, case)
            assert not (case.state == "out" and self._overdue(case)), (rollout_id, case)
            assert case.finals == (case.state == "over")
            record = rollouts[rollout_id]
            assert (record.final, record.tries) == (case.state == "over", case.tries), (record, case)
            assert (record.counting_attempt is not None) == record.final
            if case.state != "waits":
                assert record.attempt_id == case.attempt

    def _overdue(self, case: Case) -> bool:
        late = self._reasons(case)
        if late == {"unclaimed"}:
            return self.now >= case.given + int(case.task.limits.claim_s * SECOND) + SLACK
        return bool(late)
