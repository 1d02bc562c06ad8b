"""The trainer's configuration on its way into a process of its own."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spanloop.demo_parts import as_toml
from spanloop.schemas.errors import ConfigError
from spanloop.trainer.config import TrainerConfig, load_config

CONFIG = TrainerConfig(
    run_id="run",
    trainer_id="tr",
    policy="policy",
    model_dir=Path("/models/π 'quoted' \\"),
    folder=Path("/runs/😀"),
    correction="mu",
    total_steps=4,
)
names = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\x7f"), min_size=1)
configs = st.builds(
    TrainerConfig,
    run_id=names,
    trainer_id=names,
    policy=names,
    model_dir=st.just(CONFIG.model_dir),
    folder=st.just(CONFIG.folder),
    correction=st.sampled_from(["mu", "none"]),
    total_steps=st.integers(0, 10**9),
    lr=st.floats(1e-12, 1e20),
    clip=st.tuples(st.floats(0, 1), st.floats(1.5, 100)),
    std=st.booleans(),
    credit=st.none() | st.integers(1, 10**6),
    publish_every=st.just(0),
    follow=st.none() | names,
)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "trainer.toml"


def test_a_configuration_comes_back_from_its_file(path: Path) -> None:
    for config in (CONFIG, replace(CONFIG, credit=192, follow="other", publish_every=0, clip=(0.5, 1e-5 + 1))):
        path.write_text(as_toml(config), "utf-8")
        assert load_config(path) == config


@given(configs)
def test_any_configuration_comes_back(tmp_path_factory: pytest.TempPathFactory, config: TrainerConfig) -> None:
    path = tmp_path_factory.getbasetemp() / "any.toml"
    path.write_text(as_toml(config), "utf-8")
    assert load_config(path) == config


def test_none_where_the_default_is_another_value_is_refused_not_lost() -> None:
    with pytest.raises(ConfigError, match="no_engine_s is None"):
        as_toml(replace(CONFIG, no_engine_s=None))
