"""Orders by id: whom they are about, and that the controller would take them so."""

from __future__ import annotations

from dataclasses import replace

import pytest
from spanloop.orders import Subject, find, order

from spanloop.schemas.errors import ConfigError
from spanloop.schemas.records import Rollout, Task


def rollout(name: str, run: str = "run", **fields: object) -> Rollout:
    return replace(Rollout(name, "running", Task(name, run)), **fields)  # pyright: ignore[reportArgumentType]  # by name


LOG = [
    rollout("ro-1", status="queuing"),
    rollout("ro-1"),
    rollout("ro-2", status="succeeded", final=True),
    rollout("ro-3", "other"),
    rollout("order/run/run", status="order"),
]


def test_a_rollout_is_found_by_its_last_state_and_ordered_under_its_run() -> None:
    found = find("ro-1", LOG)
    assert found == Subject("ro-1", "run", 1, "running")
    assert str(found) == "rollout ro-1 of run 'run' (running)"
    task = order("cancel", found, "wrong prompt")
    assert (task.rollout_id, task.run_id, task.action, task.reason) == ("ro-1", "run", "cancel", "wrong prompt")


@pytest.mark.parametrize("action", ["pause", "resume", "cancel"])
def test_a_run_is_ordered_as_a_whole(action: str) -> None:
    found = find("run", LOG)
    assert found == Subject(None, "run", 1)
    task = order(action, found)
    assert (task.rollout_id, task.run_id, task.action) == ("run", "run", action)


def test_a_rollout_that_is_over_takes_no_order() -> None:
    with pytest.raises(ConfigError, match=r"rollout ro-2 is over \(succeeded\)"):
        find("ro-2", LOG)


def test_a_name_that_nobody_has_is_refused_unless_it_is_said_to_be_a_run() -> None:
    with pytest.raises(ConfigError, match=r"nothing is known of a rollout or a run 'next'; .* --run gives the order"):
        find("next", LOG)
    assert find("next", LOG, run=True) == Subject(None, "next", 0)
