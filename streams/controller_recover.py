"""How a new controller comes to know what the one before knew: from the records alone.

every Rollout in the log's order ─▶ load … ─▶ recover ─▶ workers, resources, decisions up to the committed offsets
─▶ settle ─▶ new events
"""

from __future__ import annotations

from ..schemas.records import Rollout
from . import controller_records as make
from .controller_actions import mark, set_expiry, watch
from .controller_orders import load_order, recover_cancels
from .controller_state import DECISIONS_KEPT_S, ControllerState, Live, after
from .controller_table import apply


def load(state: ControllerState, record: Rollout, now_ns: int) -> None:
    """Takes one record of `rollouts`; a later one of the same rollout replaces it."""
    state.epoch = max(state.epoch, record.epoch)
    state.taken_ns = max(state.taken_ns, record.taken_ns)
    if record.status == "order":
        load_order(state, record)
        return
    if not record.final:
        state.live[record.rollout_id] = make.live_from(record)
        return
    state.live.pop(record.rollout_id, None)
    state.finished.add(record.rollout_id)
    if after(record.ended_ns, DECISIONS_KEPT_S) > now_ns:
        _hold_credit(state, record)


def _hold_credit(state: ControllerState, record: Rollout) -> None:
    if record.dispatches and record.mode == "train":
        state.run_of(record.task.run_id).start(record.task)


def recover(state: ControllerState, epoch: int, now_ns: int) -> None:
    """Rebuilds every index from the open rollouts and takes an epoch above all earlier ones."""
    state.epoch = max(epoch, state.epoch + 1)
    for live in sorted(state.live.values(), key=lambda x: x.taken_ns or x.created_ns):
        run = state.run_of(live.task.run_id)
        run.enter(live.task, state.next())
        if live.dispatches and live.task.mode == "train":
            run.start(live.task)
    for live in state.live.values():
        set_expiry(state, live)
        _RECOVER[live.phase](state, live, now_ns)
    recover_cancels(state)


def settle(state: ControllerState) -> None:
    """Counts the attempts that were out against the workers' slots, once their heartbeats have been read again."""
    for attempt_id, live in state.attempts.items():
        view = state.workers.get(live.worker_id or "")
        if view is not None:
            view.given[attempt_id] = None
            if live.phase == "closing":
                view.closed.add(attempt_id)
            state.refresh(view.beat.worker_id)


def _recover_queuing(state: ControllerState, live: Live, now_ns: int) -> None:
    if live.not_before_ns > now_ns:
        state.timer(live.not_before_ns, "wake", live.id)
    apply(state, live, "wake", None, now_ns)
    state.dirty.pop(live.id, None)


def _recover_open(state: ControllerState, live: Live, now_ns: int) -> None:
    """Silence is counted from now: while no controller ran, nobody heard the heartbeats."""
    live.named_ns = now_ns
    state.attempts[live.attempt_id or ""] = live
    if live.worker_id is not None:
        state.run_of(live.task.run_id).given += 1
    if live.phase == "preparing":
        state.timer(after(now_ns, live.task.limits.claim_s), "claim_due", live.id, live.attempt_id)
    elif live.phase == "running":
        watch(state, live)
    else:
        live.closed_ns = now_ns
        mark(state, live, now_ns)


_RECOVER = {
    "queuing": _recover_queuing, "preparing": _recover_open, "running": _recover_open, "closing": _recover_open,
}  # fmt: skip
