"""Tasks that repeat others."""

from __future__ import annotations

from dataclasses import replace

from spanloop.schemas.orders import requeue
from spanloop.schemas.records import Task


def test_a_rollout_queued_again_is_a_new_one_that_says_what_it_repeats() -> None:
    old = Task("ro-1", "run", input='{"q": 1}', pins={"prompt": 3}, created_ns=5, priority=2)
    (new,) = requeue([old], "the judge was down")
    assert new.rollout_id != "ro-1"
    changed = {"rollout_id": new.rollout_id, "requeued_from": "ro-1", "reason": "the judge was down", "created_ns": 0}
    assert new == replace(old, **changed)  # pyright: ignore[reportArgumentType]  # names checked by replace


def test_members_of_a_group_queued_again_make_a_new_whole_group() -> None:
    members = [Task(f"ro-{i}", "run", group_id="gr-1", sample=i, group_size=4) for i in (1, 3)]
    first, second, alone = requeue([*members, Task("ro-9", "run", group_id="gr-2", group_size=4)])
    assert first.group_id == second.group_id not in ("gr-1", alone.group_id)
    assert [(t.sample, t.group_size) for t in (first, second, alone)] == [(0, 2), (1, 2), (0, 1)]
