"""Folders that appear whole or not at all."""

from __future__ import annotations

from pathlib import Path

import pytest
from trainer_rig import Killed

from spanloop.trainer.weights import install_folder, stage_folder

FILES = ("manifest.json", "model.pt")


def staged(target: Path, text: str) -> Path:
    def fill(folder: Path) -> None:
        for name in FILES:
            (folder / name).write_text(text)

    return stage_folder(target, fill)


def contents(folder: Path) -> list[str]:
    return [(folder / name).read_text() for name in FILES]


def test_a_kill_while_a_folder_is_replaced_leaves_a_whole_one_of_its_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    target = tmp_path / "step-000003"
    install_folder(staged(target, "old"), target)
    new = staged(target, "new")

    def half(path: Path, *, ignore_errors: bool) -> None:
        del ignore_errors
        for file in path.glob("*.pt"):
            file.unlink()
            raise Killed

    with monkeypatch.context() as patched:
        patched.setattr("spanloop.trainer.weights.shutil.rmtree", half)
        with pytest.raises(Killed):
            install_folder(new, target)
    assert contents(target) == ["new", "new"]
    install_folder(staged(target, "newest"), target)
    assert contents(target) == ["newest", "newest"]
    assert list(tmp_path.iterdir()) == [target]
