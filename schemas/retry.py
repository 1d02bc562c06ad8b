"""Whether an attempt is its rollout's last: one rule for the worker that writes an end marker and for the controller.

unclaimed, returned     never a try: the rollout is given out anew
succeeded, cancelled    always the last
failed, timeout, ...    the last unless `max_attempts` leaves a try and `retry_on` allows it
"""

from __future__ import annotations

from .records import Task
from .spans import EndStatus, FailureClass

CLASS_OF: dict[EndStatus, FailureClass | None] = {
    "succeeded": None,
    "failed": "agent",
    "timeout": "agent",
    "unresponsive": "infra",
    "unclaimed": "infra",
    "returned": "infra",
    "cancelled": "infra",
    "unknown": "infra",
}
NOT_A_TRY: frozenset[EndStatus] = frozenset({"unclaimed", "returned"})
NEVER_RETRIED: frozenset[EndStatus] = frozenset({"succeeded", "cancelled"})


def is_final(
    task: Task,
    attempt_number: int,
    status: EndStatus,
    *,
    failure_class: FailureClass | None = None,
    error_type: str | None = None,
) -> bool:
    """True if no attempt follows one that ended like this; goes into the end marker.

    `failure_class` defaults to the status's own. With an empty `retry_on`, mode train retries only class infra: else
    retries would be best-of-k and the policy would never learn from its failures.
    """
    if status in NOT_A_TRY:
        return False
    if status in NEVER_RETRIED or attempt_number >= task.limits.max_attempts:
        return True
    kind = failure_class or CLASS_OF[status]
    if task.limits.retry_on:
        return not {status, kind, error_type} & set(task.limits.retry_on)
    return task.mode == "train" and kind != "infra"
