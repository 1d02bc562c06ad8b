"""What the transition table does to a rollout, one action a transition. Actions change state and add to `state.out`."""

from __future__ import annotations

from ..schemas.records import Attempt, EndStatus, RolloutStatus, Task
from ..schemas.retry import NOT_A_TRY, is_final
from . import controller_records as make
from .controller_limits import INVALID_TASK, doubled, why_invalid
from .controller_queue import Run, group_of
from .controller_state import ControllerState, Live, after
from .texts import short

Cause = Task | Attempt | None  # None: a timer
STATUS_OF: dict[EndStatus, RolloutStatus] = {"succeeded": "succeeded", "cancelled": "cancelled"}  # else failed


def enqueue(state: ControllerState, live: Live, cause: Cause, now_ns: int) -> None:
    """Puts a rollout where dispatch finds it, unless it is paused, backing off or waits for a resource."""
    del cause
    state.dirty[live.id] = live
    if live.paused or live.not_before_ns > now_ns:
        dequeue(state, live)
        return
    if not live.ticket:
        _push(state, live)


def _push(state: ControllerState, live: Live) -> None:
    task, run = live.task, state.run_of(live.task.run_id)
    live.ticket = state.next()
    age = run.groups[group_of(task)].age
    run.push(task, (-task.priority, age, task.sample, live.ticket, live.id))


def open_group(state: ControllerState, run: Run, name: str) -> None:
    """The other members of a group that is started or decided no longer wait for credit."""
    group = run.groups.get(name)
    for rollout_id in group.open if group is not None else ():
        live = state.live[rollout_id]
        if live.ticket:
            dequeue(state, live)
            _push(state, live)


def dequeue(state: ControllerState, live: Live) -> None:
    """Takes a rollout out of its queue; the entry left in the heap is stale."""
    if live.ticket:
        live.ticket = 0
        state.run_of(live.task.run_id).queued -= 1


def admit(state: ControllerState, live: Live, cause: Cause, now_ns: int) -> None:
    register(state, live)
    wrong = why_invalid(live.task)
    if wrong is None:
        set_expiry(state, live)
        enqueue(state, live, cause, now_ns)
    else:
        fail_empty(state, live, wrong, now_ns)


def register(state: ControllerState, live: Live) -> None:
    """Notes an open rollout."""
    state.live[live.id] = live
    state.run_of(live.task.run_id).enter(live.task, state.next())


def set_expiry(state: ControllerState, live: Live) -> None:
    """Sets the timer of the whole rollout, if it has one."""
    expires_ns = live.expires_ns
    if expires_ns is not None:
        state.timer(expires_ns, "expire_due", live.id)


def fail_empty(state: ControllerState, live: Live, reason: str, now_ns: int) -> None:
    """Fails a rollout that can never be run."""
    live.error_type = INVALID_TASK
    close_empty(state, live, "failed", reason, now_ns)


def begin(state: ControllerState, live: Live, cause: Cause, now_ns: int) -> None:
    del cause
    limits = live.task.limits
    live.attempt_status = "running"
    live.started_ns = now_ns
    live.named_ns = now_ns
    live.deadline_ns = _deadline(live, after(now_ns, limits.timeout_s))
    watch(state, live)
    state.dirty[live.id] = live


def watch(state: ControllerState, live: Live) -> None:
    """Sets the one timer of a running attempt, so that few timers outlive short attempts."""
    due = min(live.deadline_ns, after(live.named_ns, live.task.limits.unresponsive_s))
    state.timer(due, "watch_due", live.id, live.attempt_id)


def claim_due(state: ControllerState, live: Live, cause: Cause, now_ns: int) -> None:
    del cause
    claim_s = live.task.limits.claim_s
    again = after(live.named_ns, claim_s)
    if again > now_ns:  # a heartbeat names it: its begin batch is still on its way
        state.timer(again, "claim_due", live.id, live.attempt_id)
    else:
        _close(state, live, "unclaimed", f"not begun within {claim_s:g} s", now_ns)


def watch_due(state: ControllerState, live: Live, cause: Cause, now_ns: int) -> None:
    """A running attempt is past its deadline, or silent, or heard of since: then it is looked at again."""
    del cause
    limits, expires_ns = live.task.limits, live.expires_ns
    if live.deadline_ns <= now_ns and live.deadline_ns == expires_ns:
        expire_open(state, live, None, now_ns)
    elif live.deadline_ns <= now_ns:
        _close(state, live, "timeout", f"not ended within {limits.timeout_s:g} s", now_ns)
    elif after(live.named_ns, limits.unresponsive_s) <= now_ns:
        _close(state, live, "unresponsive", f"no heartbeat named it for {limits.unresponsive_s:g} s", now_ns)
    else:
        watch(state, live)


def expire_queued(state: ControllerState, live: Live, cause: Cause, now_ns: int) -> None:
    del cause
    live.error_type = make.ROLLOUT_TIMEOUT
    close_empty(state, live, "timeout", _too_long(live), now_ns)


def expire_open(state: ControllerState, live: Live, cause: Cause, now_ns: int) -> None:
    del cause
    live.deadline_ns = live.expires_ns or now_ns
    _close(state, live, "timeout", _too_long(live), now_ns)


def stay(state: ControllerState, live: Live, cause: Cause, now_ns: int) -> None:
    """Nothing: the end that is on its way sees to it."""
    del state, live, cause, now_ns


def _too_long(live: Live) -> str:
    limit_s = live.task.limits.rollout_timeout_s
    return f"the rollout was not over within rollout_timeout_s = {limit_s:g} s, its queueing and every try counted"


def _deadline(live: Live, own_ns: int) -> int:
    """An attempt's deadline: its own, or the rollout's where that comes first."""
    expires_ns = live.expires_ns
    return own_ns if expires_ns is None else min(own_ns, expires_ns)


def _close(state: ControllerState, live: Live, status: EndStatus, reason: str, now_ns: int) -> None:
    """The attempt goes to closing; its end marker follows the transaction."""
    live.attempt_status = "closing"
    live.closing, live.reason, live.closed_ns, live.marks = status, short(reason), now_ns, 0
    state.dirty[live.id] = live
    state.out.append(make.attempt(live, state.epoch, now_ns))
    if live.worker_id is not None:
        state.out.append(make.cancel_order(live, state.epoch, now_ns))
    mark(state, live, now_ns)


def close_empty(state: ControllerState, live: Live, status: EndStatus, reason: str, now_ns: int) -> None:
    """Mints an attempt that nobody runs, so that the rollout still has one final trajectory."""
    dequeue(state, live)
    live.status, live.worker_id, live.attempt_id = "running", None, state.mint()
    state.attempts[live.attempt_id] = live
    _close(state, live, status, reason, now_ns)


def mark(state: ControllerState, live: Live, now_ns: int) -> None:
    """Writes the end marker and sets the timer that writes it again."""
    policy = state.policy
    pause_s = doubled(policy.repeat_s, live.marks, policy.repeat_max_s)
    live.marks += 1
    state.out.append(make.end_marker(live))
    state.timer(after(now_ns, pause_s), "repeat_due", live.id, live.attempt_id)


def repeat(state: ControllerState, live: Live, cause: Cause, now_ns: int) -> None:
    del cause
    mark(state, live, now_ns)


def cancel_queued(state: ControllerState, live: Live, cause: Cause, now_ns: int) -> None:
    close_empty(state, live, "cancelled", _why(cause, "cancelled in the queue"), now_ns)


def cancel_open(state: ControllerState, live: Live, cause: Cause, now_ns: int) -> None:
    if live.closing != "cancelled":
        _close(state, live, "cancelled", _why(cause, "cancelled"), now_ns)


def _why(cause: Cause, otherwise: str) -> str:
    return (cause.reason if cause is not None else None) or otherwise


def pause(state: ControllerState, live: Live, cause: Cause, now_ns: int) -> None:
    del cause, now_ns
    live.paused = True
    dequeue(state, live)
    state.dirty[live.id] = live


def resume(state: ControllerState, live: Live, cause: Cause, now_ns: int) -> None:
    live.paused = False
    state.dirty[live.id] = live
    if live.phase == "queuing":
        enqueue(state, live, cause, now_ns)


def ended(state: ControllerState, live: Live, cause: Cause, now_ns: int) -> None:
    """The marker that came first decides, whoever wrote it; only if it was not final may anything follow."""
    if not isinstance(cause, Attempt):
        return
    outcome: EndStatus = cause.outcome or "failed"
    number, cancelled = live.tries + 1, live.closing == "cancelled"
    _release(state, live, by_worker=outcome != live.closing)
    live.error_type, live.reason = short(cause.error_type), short(cause.reason)
    live.tries += outcome not in NOT_A_TRY and live.worker_id is not None
    if cause.final:
        _finish(state, live, outcome, now_ns)
        return
    _reset(live)
    if cancelled:
        close_empty(state, live, "cancelled", "cancelled while its attempt ended", now_ns)
    elif is_final(live.task, number, outcome, failure_class=cause.failure_class, error_type=cause.error_type):
        close_empty(state, live, outcome, "its last try ended without being marked final", now_ns)
    elif live.handbacks >= state.policy.max_handbacks:
        close_empty(state, live, "failed", f"handed back {live.handbacks} times: can any worker run it?", now_ns)
    elif live.expires_ns is not None and live.expires_ns <= now_ns:
        expire_queued(state, live, None, now_ns)
    else:
        _again(state, live, outcome, now_ns)


def _again(state: ControllerState, live: Live, outcome: EndStatus, now_ns: int) -> None:
    policy, limits = state.policy, live.task.limits
    if outcome in NOT_A_TRY:
        pause_s = doubled(policy.backoff_s, live.handbacks - 1, policy.backoff_max_s)
    else:
        pause_s = doubled(limits.backoff_s, live.tries - 1, limits.backoff_max_s)
    if pause_s > 0:
        live.not_before_ns = after(now_ns, pause_s)
        state.timer(live.not_before_ns, "wake", live.id)
    enqueue(state, live, None, now_ns)


def _reset(live: Live) -> None:
    live.status = "queuing"
    live.attempt_id = live.attempt_status = live.closing = live.worker_id = None
    live.started_ns = live.deadline_ns = live.named_ns = 0
    live.pins = {}


def give(state: ControllerState, live: Live, cause: Cause, now_ns: int) -> None:
    """Mints the attempt for the worker and pins that dispatch has chosen."""
    del cause
    limits = live.task.limits
    dequeue(state, live)
    live.status, live.attempt_status, live.attempt_id = "running", "preparing", state.mint()
    live.dispatches += 1
    live.dispatched_ns, live.started_ns, live.named_ns, live.reason = now_ns, 0, 0, None
    live.deadline_ns = _deadline(live, after(now_ns, limits.claim_s + limits.timeout_s))
    state.attempts[live.attempt_id] = live
    state.dirty[live.id] = live
    state.timer(after(now_ns, limits.claim_s + state.policy.claim_slack_s), "claim_due", live.id, live.attempt_id)
    state.out.append(make.attempt(live, state.epoch, now_ns))
    state.out.append(make.run_order(live, state.epoch, now_ns))


def _release(state: ControllerState, live: Live, *, by_worker: bool) -> None:
    attempt_id = live.attempt_id or ""
    state.attempts.pop(attempt_id, None)
    if live.worker_id is None:
        return
    state.run_of(live.task.run_id).given -= 1
    view = state.workers.get(live.worker_id)
    if view is not None:
        view.release(attempt_id, by_worker)
        state.refresh(live.worker_id)


def _finish(state: ControllerState, live: Live, outcome: EndStatus, now_ns: int) -> None:
    live.status = STATUS_OF.get(outcome, "failed")
    live.attempt_status = "ended"
    live.final = True
    live.counting_attempt = live.attempt_id
    live.ended_ns = now_ns
    state.dirty[live.id] = live
    del state.live[live.id]
    state.finished.add(live.id)
    state.run_of(live.task.run_id).leave(live.task)
    state.forget_run(live.task.run_id)
