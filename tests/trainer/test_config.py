"""What a trainer refuses to start with."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from spanloop.schemas.errors import ConfigError
from spanloop.trainer.advantage import ADVANTAGES
from spanloop.trainer.config import TrainerConfig, load_config, named
from spanloop.trainer.loss import LOSSES


def test_an_asynchronous_trainer_needs_an_explicit_correction(config: TrainerConfig) -> None:
    with pytest.raises(ConfigError, match="explicit `correction`"):
        replace(config, correction=None)
    with pytest.raises(ConfigError, match=r"explicit `correction`.*got 'mü'"):
        replace(config, correction="mü")  # pyright: ignore[reportArgumentType] wrong on purpose


def test_a_loss_that_cannot_correct_is_refused_where_correction_is_asked_for(config: TrainerConfig) -> None:
    with pytest.raises(ConfigError, match="'reinforce' weighs no token"):
        replace(config, loss="reinforce")
    assert replace(config, loss="reinforce", correction="none").loss == "reinforce"


@pytest.mark.parametrize(
    ("name", "value"),
    [("groups_per_batch", 0), ("clip", (2.0, 1.0)), ("publish_every", -1), ("keep_weights", 1), ("mini_batches", 0)],
)
def test_contradicting_settings_are_refused_by_name(config: TrainerConfig, name: str, value: object) -> None:
    with pytest.raises(ConfigError, match=name):
        replace(config, **{name: value})  # pyright: ignore[reportArgumentType] wrong on purpose


def test_a_follower_must_not_publish(config: TrainerConfig) -> None:
    with pytest.raises(ConfigError, match="publish_every to 0"):
        replace(config, follow="other")


def test_the_digest_changes_with_what_the_weights_depend_on_only(config: TrainerConfig) -> None:
    assert replace(config, folder=Path("elsewhere"), total_steps=99).digest() == config.digest()
    for changed in (replace(config, lr=1.0), replace(config, std=True), replace(config, clip=(0.0, 2.0))):
        assert changed.digest() != config.digest()


def test_an_unknown_algorithm_is_refused_with_the_names_there_are() -> None:
    with pytest.raises(ConfigError, match="cispo, ppo, reinforce"):
        named("loss", LOSSES, "gspo")
    with pytest.raises(ConfigError, match="group_mean"):
        named("advantage", ADVANTAGES, "gae")


GIVEN = """
run_id = "run"
trainer_id = "tr"
policy = "policy"
model_dir = "/models/toy"
folder = "/runs/tr"
correction = "mu"
total_steps = 4
"""


def written(folder: Path, text: str) -> Path:
    path = folder / "trainer.toml"
    path.write_text(text, "utf-8")
    return path


def test_a_file_is_read_with_paths_and_pairs_of_their_own_types(tmp_path: Path) -> None:
    config = load_config(written(tmp_path, GIVEN + "clip = [0.0, 2.0]\nlr = 3e-4\n"))
    assert (config.model_dir, config.folder) == (Path("/models/toy"), Path("/runs/tr"))
    assert (config.clip, config.lr, config.total_steps) == ((0.0, 2.0), 3e-4, 4)
    assert config.max_staleness == 4  # not given: its default


def test_a_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"nowhere\.toml"):
        load_config(tmp_path / "nowhere.toml")


def test_a_file_that_is_no_toml_is_named_with_the_line(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"trainer\.toml: .*line 1"):
        load_config(written(tmp_path, "run_id = run"))


def test_an_unknown_key_is_named_with_the_keys_there_are(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"no setting is called learning_rate, stpes; there are: run_id, .*lr"):
        load_config(written(tmp_path, GIVEN + "stpes = 4\nlearning_rate = 1.0\n"))


@pytest.mark.parametrize("line", [line for line in GIVEN.splitlines() if line])
def test_a_missing_key_is_named(tmp_path: Path, line: str) -> None:
    with pytest.raises(ConfigError, match=f"{line.split()[0]} must be set"):
        load_config(written(tmp_path, GIVEN.replace(line, "")))


def test_several_missing_keys_are_named_at_once(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="correction, folder, model_dir, policy, total_steps, trainer_id must be set"):
        load_config(written(tmp_path, 'run_id = "run"'))
