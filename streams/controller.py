"""The controller's core: `step(state, event, now)` gives the records to write. Start reading here.

tasks ──▶ Task ────────┐                     ┌─▶ Rollout, Attempt, Assignment   in one transaction with the offsets
attempts ▶ Attempt ────┤                     │
workers ─▶ Worker ─────┼─▶ step ─▶ records ──┤
decisions▶ Decision ───┤                     └─▶ SpanBatch with an end marker   after the transaction, so that a fenced
resources▶ Resource ───┘                         controller never closes an attempt
Placed, Refused, Tick (the shell)

A Tick closes a batch of events: it fires what is due, gives out what it can, and writes each changed rollout once.
"""

from __future__ import annotations

import heapq
from dataclasses import dataclass

from ..schemas.records import Attempt, Decision, Resource, Task, Worker
from . import controller_records as make
from .controller_actions import fail_empty, open_group, register
from .controller_dispatch import dispatch
from .controller_limits import why_invalid
from .controller_orders import bound_run, cancel_some, forget_worker, obey, see_drain
from .controller_queue import Trainer
from .controller_state import CHANGES_A_TICK, ControllerPolicy, ControllerState, Out, WorkerView, after
from .controller_table import apply

__all__ = [
    "ControllerPolicy", "ControllerState", "Event", "Out", "Placed", "Refused", "Tick", "step",
]  # fmt: skip
ORDERS = frozenset({"cancel", "pause", "resume", "limit", "drain", "undrain"})
ATTEMPT_EVENTS = {"running": "begun", "ended": "ended"}


@dataclass(frozen=True, slots=True)
class Placed:
    """The broker put an assignment at `offset` of its worker's partition."""

    worker_id: str
    attempt_id: str
    offset: int


@dataclass(frozen=True, slots=True)
class Refused:
    """A task that the shell found impossible, such as one too large to be handed on."""

    task: Task
    reason: str


@dataclass(frozen=True, slots=True)
class Tick:
    """A batch of events is over, or time has passed."""


Event = Task | Attempt | Worker | Decision | Resource | Placed | Refused | Tick


def step(state: ControllerState, event: Event, now_ns: int) -> list[Out]:
    """Takes one event; gives the records to write, in order. Changes `state` in place."""
    match event:
        case Tick():
            _tick(state, now_ns)
        case Attempt():
            _attempt(state, event, now_ns)
        case Task():
            _task(state, event, now_ns)
        case Worker():
            _worker(state, event, now_ns)
        case Refused():
            _refuse(state, event.task, event.reason, now_ns)
        case Decision():
            _decision(state, event, now_ns)
        case Resource():
            _resource(state, event)
        case Placed():
            view = state.workers.get(event.worker_id)
            if view is not None and event.attempt_id in view.given:
                view.given[event.attempt_id] = event.offset
    out, state.out = state.out, []
    return out


def _task(state: ControllerState, task: Task, now_ns: int) -> None:
    live = state.live.get(task.rollout_id)
    if task.action in ORDERS:
        obey(state, task, now_ns)
    elif live is None and task.rollout_id not in state.finished:
        new = state.take(task, now_ns)
        apply(state, new, "run", task, now_ns, phase="new")
        if why_invalid(task) is None:
            bound_run(state, task)
    else:
        state.ignored += 1


def _refuse(state: ControllerState, task: Task, reason: str, now_ns: int) -> None:
    if task.rollout_id in state.live or task.rollout_id in state.finished:
        state.ignored += 1
        return
    live = state.take(task, now_ns)
    register(state, live)
    fail_empty(state, live, reason, now_ns)


def _decision(state: ControllerState, decision: Decision, now_ns: int) -> None:
    state.decide(decision.run_id, decision.group_id, min(now_ns, decision.at_ns or now_ns))
    open_group(state, state.run_of(decision.run_id), decision.group_id)
    state.forget_decisions(now_ns)


def _attempt(state: ControllerState, event: Attempt, now_ns: int) -> None:
    """Only of the current attempt: what comes of an earlier one is late and changes nothing."""
    name = ATTEMPT_EVENTS.get(event.status)
    if name is None:  # preparing, closing: our own
        return
    live = state.attempts.get(event.attempt_id)
    if live is None or live.id != event.rollout_id:
        state.ignored += 1
    else:
        apply(state, live, name, event, now_ns)


def _worker(state: ControllerState, beat: Worker, now_ns: int) -> None:
    if beat.role == "trainer":
        _trainer(state, beat, now_ns)
    elif beat.role == "worker":
        _slots(state, beat, now_ns)


def _trainer(state: ControllerState, beat: Worker, now_ns: int) -> None:
    if beat.run_id is None:
        return
    run = state.run_of(beat.run_id)
    if beat.alive:
        run.trainers[beat.worker_id] = Trainer(beat.credit, now_ns)
    else:
        run.trainers.pop(beat.worker_id, None)
        state.forget_run(beat.run_id)


def _slots(state: ControllerState, beat: Worker, now_ns: int) -> None:
    for attempt_id in beat.running:
        live = state.attempts.get(attempt_id)
        if live is not None and live.worker_id == beat.worker_id:
            live.named_ns = now_ns
    view = state.workers.get(beat.worker_id)
    if not beat.alive:
        forget_worker(state, beat.worker_id)
        return
    if view is None:
        view = state.workers[beat.worker_id] = WorkerView(beat, now_ns)
        state.timer(after(now_ns, state.policy.worker_silent_s), "worker_due", beat.worker_id)
    else:
        view.hear(beat, now_ns)
    see_drain(state, view)


def _resource(state: ControllerState, resource: Resource) -> None:
    name = resource.name
    state.versions.setdefault(name, set()).add(resource.version)
    state.newest[name] = max(resource.version, state.newest.get(name, resource.version))
    if resource.kind == "policy":
        state.policies.add(name)
    state.waking.extend(sorted(state.waiting.pop(name, ())))


def _tick(state: ControllerState, now_ns: int) -> None:
    overdue = _fire(state, now_ns)
    state.sweep_timers()
    _wake_some(state, now_ns)
    cancel_some(state, now_ns)
    if not overdue:  # else it may be over for what would be given out
        dispatch(state, now_ns)
    state.out += [make.rollout(live, state.epoch) for live in state.dirty.values()]
    state.dirty = {}


def _fire(state: ControllerState, now_ns: int) -> bool:
    """Does what is due, so far as one tick should; whether more is."""
    left = CHANGES_A_TICK
    while state.timers and state.timers[0][0] <= now_ns:
        if not left:
            return True
        _, _, kind, who, attempt_id = heapq.heappop(state.timers)
        if kind == "worker_due":
            _worker_due(state, who, now_ns)
            continue
        live = state.live.get(who)
        if live is not None and (kind == "expire_due" or live.attempt_id == attempt_id):
            left -= 1
            apply(state, live, kind, None, now_ns)
    return False


def _wake_some(state: ControllerState, now_ns: int) -> None:
    """Queues again what a resource came for, so far as one tick should."""
    for _ in range(min(CHANGES_A_TICK, len(state.waking))):
        live = state.live.get(state.waking.popleft())
        if live is not None:
            apply(state, live, "wake", None, now_ns)


def _worker_due(state: ControllerState, worker_id: str, now_ns: int) -> None:
    view = state.workers.get(worker_id)
    if view is None:
        return
    policy = state.policy
    if after(view.heard_ns, policy.worker_forgotten_s) <= now_ns:
        forget_worker(state, worker_id)
    else:
        due = after(view.heard_ns, policy.worker_silent_s)
        view.asleep = due <= now_ns
        again = after(now_ns, policy.worker_silent_s) if view.asleep else due
        state.timer(again, "worker_due", worker_id)
        state.refresh(worker_id)
