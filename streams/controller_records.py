"""The records the controller writes, made from what it knows of a rollout."""

from __future__ import annotations

from collections.abc import Callable
from operator import attrgetter
from typing import Any, cast

from ..schemas.context import context_of
from ..schemas.records import (
    Assignment,
    Attempt,
    AttemptEnd,
    EndStatus,
    FailureClass,
    Rollout,
    SpanBatch,
)
from ..schemas.retry import CLASS_OF, is_final
from .controller_state import Live

PRODUCER_ID = "controller"
ROLLOUT_TIMEOUT = "rollout_timeout"  # error type where the whole rollout took too long
COPIED = (
    "status", "final", "tries", "dispatches", "attempt_id", "attempt_status", "closing", "worker_id",
    "counting_attempt", "paused", "created_ns", "dispatched_ns", "started_ns", "ended_ns", "deadline_ns",
    "not_before_ns", "taken_ns", "reason", "error_type", "pins",
)  # fmt: skip
_copied = cast("Callable[[Live], tuple[Any, ...]]", attrgetter(*COPIED))  # typeshed loses what attrgetter returns


def rollout(live: Live, epoch: int) -> Rollout:
    """Its whole state."""
    return Rollout(
        rollout_id=live.id,
        task=live.task,
        mode=live.task.mode,
        epoch=epoch,
        **dict(zip(COPIED, _copied(live), strict=True)),
    )


def live_from(record: Rollout) -> Live:
    """The other way round, after a restart."""
    return Live(task=record.task, **{name: getattr(record, name) for name in COPIED})


def attempt(live: Live, epoch: int, now_ns: int) -> Attempt:
    """What happened to its current attempt."""
    closing = live.attempt_status == "closing"
    return Attempt(
        rollout_id=live.id,
        attempt_id=live.attempt_id or "",
        status=live.attempt_status or "unknown",
        attempt_number=live.tries + 1,
        outcome=live.closing if closing else None,
        failure_class=end_class(live) if closing else None,
        error_type=end_error(live) if closing else None,
        final=end_is_final(live, live.closing or "failed"),
        mode=live.task.mode,
        pins=live.pins,
        worker_id=live.worker_id or "",
        epoch=epoch,
        deadline_ns=live.deadline_ns,
        reason=live.reason if closing else None,
        at_ns=now_ns,
    )


def run_order(live: Live, epoch: int, now_ns: int) -> Assignment:
    """Gives its current attempt to its worker."""
    return Assignment(
        worker_id=live.worker_id or "",
        attempt_id=live.attempt_id or "",
        epoch=epoch,
        attempt_number=live.tries + 1,
        final=is_final(live.task, live.tries + 1, "failed"),
        deadline_ns=live.deadline_ns,
        task=live.task,
        pins=live.pins,
        claim_s=live.task.limits.claim_s,
        at_ns=now_ns,
    )


def cancel_order(live: Live, epoch: int, now_ns: int) -> Assignment:
    """Takes its current attempt from its worker."""
    return Assignment(
        worker_id=live.worker_id or "", attempt_id=live.attempt_id or "", action="cancel", epoch=epoch, at_ns=now_ns
    )


def end_class(live: Live) -> FailureClass | None:
    """An attempt nobody ran, or that queueing left too little time for, failed by no fault of the agent."""
    return "infra" if live.worker_id is None or live.cut else CLASS_OF[live.closing or "unknown"]


def end_error(live: Live) -> str | None:
    """As a worker names it: by the status. `live.error_type` is an earlier attempt's, which an empty one stands for."""
    if live.worker_id is None:
        return live.error_type
    return ROLLOUT_TIMEOUT if live.cut else live.closing


def end_is_final(live: Live, status: EndStatus) -> bool:
    """An empty attempt is there to be the last one, and nothing follows a rollout's time-out; else by its limits."""
    return live.worker_id is None or live.cut or is_final(live.task, live.tries + 1, status)


def end_marker(live: Live) -> SpanBatch:
    """Closes its current attempt unless an earlier marker did; counts are the controller's own: it sends no spans."""
    return SpanBatch(
        rollout_id=live.id,
        attempt_id=live.attempt_id or "",
        producer_id=PRODUCER_ID,
        end=AttemptEnd(
            status=live.closing or "failed",
            end_ns=live.closed_ns,
            reason=live.reason,
            error_type=end_error(live),
            failure_class=end_class(live),
            span_count=0,
            reward_count=0,
            context=context_of(
                live.task, pins=live.pins, attempt_number=live.tries + 1, worker_id=live.worker_id or ""
            ),
            final=end_is_final(live, live.closing or "failed"),
        ),
    )
