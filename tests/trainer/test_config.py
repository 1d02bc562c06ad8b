"""What a trainer refuses to start with."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from spanloop.schemas.errors import ConfigError
from spanloop.trainer.advantage import ADVANTAGES
from spanloop.trainer.config import COUNTS, TrainerConfig, load_config, named
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


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -1.0, "1"])
@pytest.mark.parametrize("name", ["lr", "max_grad_norm", "group_deadline_s", "no_engine_s", "beat_s"])
def test_figures_that_are_no_finite_numbers_are_refused_with_what_was_given(
    config: TrainerConfig, name: str, value: object
) -> None:
    with pytest.raises(ConfigError, match=f"^{name} must be a finite number, .*; got {value!r}$"):
        replace(config, **{name: value})  # pyright: ignore[reportArgumentType] wrong on purpose


@pytest.mark.parametrize(
    ("name", "value"),
    [("lr", 0.0), ("max_grad_norm", 0.0), ("beat_s", 0.0), ("beat_s", 1e10), ("group_deadline_s", 1e10)],
)
def test_figures_that_stop_the_work_or_no_clock_can_hold_are_refused(
    config: TrainerConfig, name: str, value: float
) -> None:
    with pytest.raises(ConfigError, match=name):
        replace(config, **{name: value})  # pyright: ignore[reportArgumentType] wrong on purpose


@pytest.mark.parametrize("value", [-1, 0.5, 10**19, "4"])
@pytest.mark.parametrize("name", sorted(COUNTS))
def test_counts_are_whole_numbers_within_bounds(config: TrainerConfig, name: str, value: object) -> None:
    with pytest.raises(ConfigError, match=f"^{name} must be a whole number .*; got {value!r}$"):
        replace(config, **{name: value})  # pyright: ignore[reportArgumentType] wrong on purpose


def test_a_seed_that_no_record_can_hold_is_refused(config: TrainerConfig) -> None:
    with pytest.raises(ConfigError, match="seed must be a whole number"):
        replace(config, seed=2**63)


@pytest.mark.parametrize(
    "clip", [(0.0, float("inf")), (float("nan"), 5.0), (0.0, float("nan")), (-1.0, 5.0), (1.0,), (0.0, 1.0, 2.0)]
)
def test_a_clip_is_two_finite_numbers_in_order(config: TrainerConfig, clip: tuple[float, float]) -> None:
    with pytest.raises(ConfigError, match="clip must be two finite numbers"):
        replace(config, clip=clip)


def test_waiting_for_ever_and_the_default_credit_are_said_by_none(config: TrainerConfig) -> None:
    found = replace(config, no_engine_s=None, credit=None, group_deadline_s=1e9, total_steps=0)
    assert found.credit_rollouts == 5 * 2 * 8


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


@pytest.mark.parametrize(
    "line", ["clip = 5.0", "clip = [1.0]", 'clip = "ab"', "lr = nan", "lr = -inf", "beat_s = 1e300"]
)
def test_figures_in_a_file_are_held_to_the_same_bounds(tmp_path: Path, line: str) -> None:
    with pytest.raises(ConfigError, match=f"^{line.split()[0]} must be"):
        load_config(written(tmp_path, GIVEN + line))


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
