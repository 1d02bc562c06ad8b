"""What a task may ask for, and how waits grow."""

from __future__ import annotations

from dataclasses import fields, replace
from typing import Any

from ..schemas.credit import REWARD_MAX, valid
from ..schemas.records import Limits, Task
from ..schemas.topics import ASSIGNMENTS
from .controller_state import LONGEST_S
from .texts import TEXT_MAX

# Action or mode of a task that this version does not know, or limits that allow nothing.
INVALID_TASK = "invalid_task"
POSITIVE = ("timeout_s", "unresponsive_s", "claim_s", "rollout_timeout_s")
NOT_NEGATIVE = ("backoff_s", "backoff_max_s")
# 2 to this power is past every maximum; more would overflow a float after a day of repeats.
MOST_DOUBLINGS = 40
# A task travels on inside an assignment and a rollout, each with ids and texts of its own, and with its pins resolved.
TASK_MAX_BYTES = ASSIGNMENTS.max_bytes - 64 * 1024
PIN_BYTES = 16  # of one pin beside its name
_PLAIN = Task("", "")


def doubled(first_s: float, times: int, most_s: float) -> float:
    """A wait of `first_s` after it was doubled so often, at most `most_s`. Seconds."""
    return min(first_s * 2.0 ** min(times, MOST_DOUBLINGS), most_s)


def why_invalid(task: Task) -> str | None:
    """Why a task can never be run; None if it can."""
    if task.action != "run":
        return f"action {task.action!r} is not known to this version of the controller"
    if task.mode == "unknown":
        return "mode is not known to this version of the controller; expected train, val or test"
    if not 0 <= task.credit.gamma <= 1:
        return f"credit.gamma is {task.credit.gamma}, expected 0 to 1"
    if not 0 <= task.reward_deadline_s <= LONGEST_S:
        return f"reward_deadline_s is {task.reward_deadline_s}, expected seconds up to {LONGEST_S:g}, 0 or more"
    if "" in task.pins:
        return "pins names a resource '', which nothing can be called"
    return why_no_member(task) or why_impossible(task.limits)


def why_no_member(task: Task) -> str | None:
    """Why a task has no place in its group; None if it has. A group closes once `group_size` members are there."""
    if task.group_size < 1:
        return f"group_size is {task.group_size}, expected at least 1"
    if task.group_size > 1 and task.group_id is None:
        return f"group_size is {task.group_size} and group_id null: without its name no member is found"
    if 0 <= task.sample < task.group_size:
        return None
    return (
        f"sample is {task.sample} in a group of group_size {task.group_size}, expected 0 to {task.group_size - 1}; "
        "group_size is how many rollouts the group has, and every one of them must say so"
    )


def why_too_large(task: Task, size: int) -> str | None:
    """Why a task of so many bytes cannot be handed on; None if it can."""
    carried = size + sum(len(name.encode()) + PIN_BYTES for name in task.pins)
    if carried <= TASK_MAX_BYTES:
        return None
    return (
        f"the task has {carried} bytes with its pins resolved, at most {TASK_MAX_BYTES} can be handed on; off-load its "
        "input"
    )


def without_long(task: Task) -> Task:
    """A task that is too large, without what makes it so; its ids are bounded by `why_long`."""
    task = replace(task, limits=replace(task.limits, retry_on=[]))
    found: dict[str, Any] = {f.name: getattr(_PLAIN, f.name) for f in fields(Task)}
    return replace(task, **{n: v for n, v in found.items() if len(str(getattr(task, n))) > TEXT_MAX})


def why_impossible(limits: Limits) -> str | None:
    """Why no rollout can be run under these limits; None if one can. Guards all arithmetic on times: NaN fails it."""
    if limits.max_attempts < 1:
        return f"limits.max_attempts is {limits.max_attempts}, expected at least 1"
    if limits.run_concurrency is not None and limits.run_concurrency < 1:
        return f"limits.run_concurrency is {limits.run_concurrency}, expected null or at least 1; an order pauses a run"
    for name in POSITIVE + NOT_NEGATIVE:
        value: float | None = getattr(limits, name)
        enough = value is None or (value > 0 if name in POSITIVE else value >= 0)
        if not enough or (value is not None and not value <= LONGEST_S):
            return f"limits.{name} is {value}, expected seconds up to {LONGEST_S:g}" + (
                ", more than 0" if name in POSITIVE else ", 0 or more"
            )
    if limits.failure_reward is not None and valid(limits.failure_reward) is None:
        return f"limits.failure_reward is {limits.failure_reward}, expected null or -{REWARD_MAX:g} to {REWARD_MAX:g}"
    return None
