"""What a trainer refuses to start with."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from spanloop.schemas.errors import ConfigError
from spanloop.trainer.advantage import ADVANTAGES
from spanloop.trainer.config import TrainerConfig, named
from spanloop.trainer.loss import LOSSES


def test_an_asynchronous_trainer_needs_an_explicit_correction(config: TrainerConfig) -> None:
    with pytest.raises(ConfigError, match="explicit `correction`"):
        replace(config, correction=None)


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
