"""Which checkpoints are kept."""

from __future__ import annotations

from pathlib import Path

from trainer_rig import ToyTrainer

from spanloop.trainer.checkpoint import Manifest, newest, save
from spanloop.trainer.groups import GroupState


def test_the_newest_are_kept_and_what_a_kill_left_half_written_goes(tmp_path: Path) -> None:
    (tmp_path / "step-000001.tmp").mkdir()
    (tmp_path / "other").mkdir()
    for step in (999_998, 999_999, 1_000_000):
        save(tmp_path, Manifest(step, policy_version=None), GroupState(), [], ToyTrainer(), keep=2)
    assert {p.name for p in tmp_path.iterdir()} == {"step-999999", "step-1000000", "other"}
    assert newest(tmp_path) == tmp_path / "step-1000000"
