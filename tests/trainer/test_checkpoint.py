"""Which checkpoints are kept, and what of groups is in them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from trainer_rig import Make, ToyTrainer

from spanloop.trainer.checkpoint import MANIFEST, Manifest, newest, read, save
from spanloop.trainer.groups import Groups, GroupState


def test_the_newest_are_kept_and_what_a_kill_left_half_written_goes(tmp_path: Path) -> None:
    (tmp_path / "step-000001.tmp").mkdir()
    (tmp_path / "other").mkdir()
    for step in (999_998, 999_999, 1_000_000):
        save(tmp_path, Manifest(step, policy_version=None), GroupState(), [], ToyTrainer(), keep=2)
    assert {p.name for p in tmp_path.iterdir()} == {"step-999999", "step-1000000", "other"}
    assert newest(tmp_path) == tmp_path / "step-1000000"


@pytest.mark.parametrize("older", [False, True])
def test_a_group_that_waits_for_a_reward_waits_no_longer_after_a_restart(
    tmp_path: Path, make_trajectory: Make, older: bool
) -> None:
    groups, first_seen_ns = Groups(600.0), 7
    groups.offer(make_trajectory(None, size=1, awaits=["judge"]), first_seen_ns, 5)
    save(tmp_path, Manifest(1, policy_version=None), groups.state, [], ToyTrainer(), keep=2)
    if older:  # it kept no times of records
        path = tmp_path / "step-000001" / MANIFEST
        said = json.loads(path.read_text())
        del said["groups"]["written"]
        path.write_text(json.dumps(said))
    _, state, _ = read(tmp_path / "step-000001")
    assert (state.open == groups.state.open) is not older
    since = first_seen_ns if older else 5
    assert [bool(Groups(600.0, state).due(since + 10 * 10**9 - x)) for x in (1, 0)] == [False, True]
