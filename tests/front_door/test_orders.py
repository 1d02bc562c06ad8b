"""Orders by id: whom they are about, and that the controller would take them so."""

from __future__ import annotations

from dataclasses import replace

import pytest

from spanloop.orders import Subject, again, find, order
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


FINISHED = [
    *LOG,
    rollout("ro-4", status="failed", final=True),
    rollout("ro-5", "other", status="failed", final=True),
]


def test_finished_rollouts_are_done_again_by_name_and_a_runs_failed_ones_by_the_run() -> None:
    assert [t.rollout_id for t in again(["ro-2"], FINISHED)] == ["ro-2"]
    assert [t.rollout_id for t in again(["run"], FINISHED)] == ["ro-4"]
    assert [t.rollout_id for t in again(["ro-4", "other", "run"], FINISHED)] == ["ro-4", "ro-5"]


@pytest.mark.parametrize(
    ("name", "said"),
    [("ro-1", "ro-1 is running: only what is over"), ("next", "nothing is known"), ("calm", "has no failed rollout")],
)
def test_what_is_open_unknown_or_well_is_not_done_again(name: str, said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        again([name], [*FINISHED, rollout("ro-6", "calm", status="succeeded", final=True)])
