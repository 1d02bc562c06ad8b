"""The context of an attempt, copied from its task so that no reader of trajectories has to join."""

from __future__ import annotations

from collections.abc import Mapping

from .records import AttemptContext, Task


def context_of(task: Task, *, pins: Mapping[str, int | None], attempt_number: int, worker_id: str) -> AttemptContext:
    """What goes into an end marker, whoever writes it. pins: as resolved at dispatch; worker_id: "" = nobody ran it."""
    return AttemptContext(
        run_id=task.run_id,
        group_id=task.group_id,
        sample=task.sample,
        group_size=task.group_size,
        mode=task.mode,
        pins=dict(pins),
        credit=task.credit,
        failure_reward=task.limits.failure_reward,
        await_rewards=task.await_rewards,
        reward_deadline_s=task.reward_deadline_s,
        data_id=task.data_id,
        data_source=task.data_source,
        attempt_number=attempt_number,
        worker_id=worker_id,
    )
