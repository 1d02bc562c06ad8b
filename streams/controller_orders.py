"""Orders that people give: about one rollout, about all of a run, about workers. What stands is kept in `rollouts`.

cancel, pause, resume          a rollout, by its id
cancel, pause, resume, limit   a run, where the rollout id is the run's id
drain, undrain                 a worker, by its id or name, or all of them: *

An order that stands is a Rollout of status `order` under a key that no rollout may have; `final` once it is lifted.
"""

from __future__ import annotations

from collections import deque
from dataclasses import replace

from ..schemas.orders import ALL_WORKERS, ORDER_KEY
from ..schemas.records import Rollout, Task
from .controller_queue import Run
from .controller_state import CHANGES_A_TICK, Cancelling, ControllerState, WorkerView
from .controller_table import apply
from .texts import why_long, why_no_key

RUN_KEY = f"{ORDER_KEY}run/"
WORKER_KEY = f"{ORDER_KEY}worker/"


def why_refused(task: Task) -> str | None:
    """Why a task can be neither run nor obeyed and has no rollout to fail; None if it can. For dead letters."""
    if task.rollout_id.startswith(ORDER_KEY):
        return f"rollout_id {task.rollout_id!r}: ids that begin with {ORDER_KEY!r} are kept for orders that stand"
    wrong = why_no_key("rollout_id", task.rollout_id)
    wrong = wrong or why_long("run_id", task.run_id) or why_long("group_id", task.group_id)
    if wrong is not None:
        return wrong
    if task.action != "limit":
        return None
    if task.rollout_id != task.run_id:
        return f"limit is for a whole run: rollout_id must be the run's id {task.run_id!r}, got {task.rollout_id!r}"
    bound = task.limits.run_concurrency
    if bound is not None and bound < 1:
        return f"limits.run_concurrency is {bound}, expected null (no bound) or at least 1; pause stops a run"
    return None


def obey(state: ControllerState, order: Task, now_ns: int) -> None:
    """Takes an order; one about what is not there changes nothing."""
    if order.action in ("drain", "undrain"):
        _drain(state, order)
    elif order.rollout_id == order.run_id:
        _order_run(state, order)
    elif order.rollout_id in state.live:
        apply(state, state.live[order.rollout_id], order.action, order, now_ns)
    else:
        state.ignored += 1


def bound_run(state: ControllerState, task: Task) -> None:
    """A task that bounds its run does so from now on, until another says otherwise."""
    bound = task.limits.run_concurrency
    run = state.run_of(task.run_id)
    if bound is not None and bound != run.limit:
        run.limit = bound
        _write_run(state, run, replace(task, rollout_id=task.run_id, action="limit", input="null"))


def _order_run(state: ControllerState, order: Task) -> None:
    run = state.run_of(order.run_id)
    before = (run.paused, run.limit, run.cancel_ns)
    match order.action:
        case "pause":
            run.paused = True
        case "resume":
            run.paused = False
        case "limit":
            run.limit = order.limits.run_concurrency
        case _:
            if run.open:
                run.cancel_ns = max(1, state.taken_ns)
                state.cancelling[order.run_id] = Cancelling(order, deque(run.open))
    if before != (run.paused, run.limit, run.cancel_ns):
        _write_run(state, run, order)
    else:
        state.ignored += 1
    state.forget_run(order.run_id)


def cancel_some(state: ControllerState, now_ns: int) -> None:
    """Goes on with runs that are being cancelled, so far as one tick should."""
    left = CHANGES_A_TICK
    for run_id, cancelling in list(state.cancelling.items()):
        while cancelling.waiting and left:
            live = state.live.get(cancelling.waiting.popleft())
            if live is not None:
                left -= 1
                apply(state, live, "cancel", cancelling.order, now_ns)
        if not cancelling.waiting:
            _cancelled(state, run_id)


def _cancelled(state: ControllerState, run_id: str) -> None:
    run, order = state.run_of(run_id), state.cancelling.pop(run_id).order
    run.cancel_ns = 0
    _write_run(state, run, order)
    state.forget_run(run_id)


def _write_run(state: ControllerState, run: Run, order: Task) -> None:
    state.out.append(
        Rollout(
            rollout_id=RUN_KEY + order.run_id,
            status="order",
            task=replace(order, limits=replace(order.limits, run_concurrency=run.limit)),
            final=not run.ordered,
            paused=run.paused,
            closing="cancelled" if run.cancel_ns else None,
            taken_ns=run.cancel_ns,
            epoch=state.epoch,
        )
    )


# --- workers


def _drain(state: ControllerState, order: Task) -> None:
    drains = order.action == "drain"
    if drains == (order.rollout_id in state.drained):
        state.ignored += 1
        return
    if drains:
        state.drained.add(order.rollout_id)
    else:
        state.drained.discard(order.rollout_id)
    _write_drain(state, order, stands=drains)
    for view in state.workers.values():
        see_drain(state, view)


def see_drain(state: ControllerState, view: WorkerView) -> None:
    """Brings a worker's view up to date with the orders that stand."""
    view.drained = not state.drained.isdisjoint({view.beat.worker_id, view.beat.name, ALL_WORKERS})
    state.refresh(view.beat.worker_id)


def forget_worker(state: ControllerState, worker_id: str) -> None:
    """Drops a worker; its id never comes again, so an order about it is over."""
    state.workers.pop(worker_id, None)
    state.refresh(worker_id)
    if worker_id in state.drained:
        state.drained.discard(worker_id)
        _write_drain(state, Task(worker_id, "", action="undrain", reason="the worker has left"), stands=False)


def _write_drain(state: ControllerState, order: Task, *, stands: bool) -> None:
    key = WORKER_KEY + order.rollout_id
    state.out.append(Rollout(key, "order", order, final=not stands, epoch=state.epoch))


# --- after a restart


def load_order(state: ControllerState, record: Rollout) -> None:
    """Takes an order that stands, or stands no more."""
    if record.rollout_id.startswith(WORKER_KEY):
        target = record.rollout_id.removeprefix(WORKER_KEY)
        (state.drained.discard if record.final else state.drained.add)(target)
        return
    run_id = record.rollout_id.removeprefix(RUN_KEY)
    run = state.run_of(run_id)
    run.paused, run.limit, run.cancel_ns = record.paused, record.task.limits.run_concurrency, record.taken_ns
    state.cancelling.pop(run_id, None)
    if run.cancel_ns:
        state.cancelling[run_id] = Cancelling(record.task, deque())
    state.forget_run(run_id)


def recover_cancels(state: ControllerState) -> None:
    """Goes on cancelling what had been taken in when the order came, once all open rollouts are known."""
    for run_id, cancelling in state.cancelling.items():
        run = state.run_of(run_id)
        left = (state.live[r] for r in run.open)
        cancelling.waiting.extend(x.id for x in left if x.taken_ns <= run.cancel_ns and x.closing != "cancelled")
