"""Killed anywhere, any number of times, a trainer ends with the weights of an undisturbed run."""

from __future__ import annotations

import contextlib
import threading
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from trainer_rig import POINTS, Killed, Make, MemoryLog, Run, ToyTrainer, chain_of, filled, killer, undisturbed

from spanloop.schemas.errors import ConfigError, DataLost, NoLiveEngine
from spanloop.trainer.config import TrainerConfig
from spanloop.trainer.loop import Point


@pytest.mark.parametrize("point", POINTS)
@pytest.mark.parametrize("every", [1, 2, 4])
def test_killed_at_any_point_it_ends_with_the_weights_of_an_undisturbed_run(
    config: TrainerConfig, make_trajectory: Make, point: Point, every: int
) -> None:
    run = Run(replace(config, checkpoint_every=every), filled(make_trajectory, 8))  # case TN-6
    with pytest.raises(Killed):
        run.start(killer(point, 3))
    run.start()
    assert [b.step for b in run.batches] == [1, 2, 3, 4]
    assert chain_of(run.resources) == [(1, None), (2, 1), (3, 2), (4, 3), (5, 4)]
    assert {d.group_id for d in run.decisions} == {f"g{i}" for i in range(8)}
    witness = undisturbed(run.config, run.log)
    assert np.array_equal(run.trainer.values, witness.values)
    assert run.trainer.values.tolist() != ToyTrainer().values.tolist()


@settings(max_examples=20, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    kills=st.lists(st.tuples(st.sampled_from(POINTS), st.integers(1, 6)), max_size=5),
    every=st.integers(1, 4),
    seed=st.integers(0, 1000),
)
def test_killed_any_number_of_times_also_while_it_catches_up(
    config: TrainerConfig,
    make_trajectory: Make,
    tmp_path_factory: pytest.TempPathFactory,
    kills: list[tuple[Point, int]],
    every: int,
    seed: int,
) -> None:
    """The log grows between lives, with late revisions of what may have been trained on."""
    folder = tmp_path_factory.mktemp("run")
    whole = filled(make_trajectory, 12).trajectories
    run = Run(
        replace(config, folder=folder / "t", total_steps=6, checkpoint_every=every, max_staleness=9),
        MemoryLog([[], [], []]),
        seed=seed,
    )
    for life, (point, step) in enumerate([*kills, ("decided", 99)]):
        last = life == len(kills)
        for own, rest in zip(run.log.trajectories, whole, strict=True):
            own += [replace(t, revision=9) for t in own[-2:]] + rest[: 99 if last else 4]
            del rest[: 99 if last else 4]
        with contextlib.suppress(Killed, NoLiveEngine):  # NoLiveEngine: the log ran dry
            run.start(killer(point, step))
    assert [b.step for b in run.batches] == [1, 2, 3, 4, 5, 6]
    assert chain_of(run.resources) == [(1, None), *((v + 1, v) for v in range(1, 7))]
    attempts = [m.attempt_id for b in run.batches for m in b.members]
    assert len(attempts) == len(set(attempts))
    assert {d.group_id for d in run.decisions} == {f"g{i}" for i in range(12)}
    assert np.array_equal(run.trainer.values, undisturbed(run.config, run.log).values)


@pytest.mark.parametrize("point", POINTS)
def test_killed_while_it_catches_up_with_a_checkpoint_made_meanwhile(
    config: TrainerConfig, make_trajectory: Make, point: Point
) -> None:
    """Members of batches still to be applied were read before that checkpoint's offsets: it must hold them."""
    run = Run(replace(config, checkpoint_every=4), filled(make_trajectory, 8))
    with pytest.raises(Killed):
        run.start(killer("stepped", 4))
    run.config = replace(config, checkpoint_every=1)
    for step in (1, 2, 3):
        with pytest.raises(Killed):
            run.start(killer(point, step))
    run.start()
    assert chain_of(run.resources) == [(1, None), (2, 1), (3, 2), (4, 3), (5, 4)]
    assert np.array_equal(run.trainer.values, undisturbed(run.config, run.log).values)


def test_recorded_batches_give_identical_batches_and_losses_again(config: TrainerConfig, make_trajectory: Make) -> None:
    run = Run(config, filled(make_trajectory, 8))  # case TN-11
    run.start()
    follower = replace(config, follow="tr", trainer_id="again", publish_every=0, folder=config.folder.with_name("b"))
    again = Run(follower, run.log, seed=50)
    again.start()
    assert [r.loss for r in again.reports] == [r.loss for r in run.reports]
    assert [r.tokens for r in again.reports] == [r.tokens for r in run.reports]
    assert len(run.batches) == 4  # a follower records nothing of its own


def test_recorded_batches_whose_trajectories_are_gone_are_an_error(
    config: TrainerConfig, make_trajectory: Make
) -> None:
    run = Run(config, filled(make_trajectory, 8))
    with pytest.raises(Killed):
        run.start(killer("recorded", 1))
    run.log.trajectories = [[], [], []]
    with pytest.raises(DataLost, match="step 1 trained on attempt"):
        run.start()


def test_a_changed_configuration_or_a_lost_folder_is_refused_where_batches_were_recorded(
    config: TrainerConfig, make_trajectory: Make
) -> None:
    run = Run(config, filled(make_trajectory, 8))
    with pytest.raises(Killed):
        run.start(killer("recorded", 1))
    run.config = replace(config, lr=0.5)
    with pytest.raises(ConfigError, match="another configuration"):
        run.start()
    run.config = replace(config, folder=config.folder.with_name("empty"))
    with pytest.raises(ConfigError, match="no checkpoint"):
        run.start()


def test_a_stop_is_heeded_while_recorded_trajectories_do_not_come_and_nothing_is_lost(
    config: TrainerConfig, make_trajectory: Make, caplog: pytest.LogCaptureFixture
) -> None:
    run = Run(replace(config, checkpoint_every=4), filled(make_trajectory, 8))
    with pytest.raises(Killed):
        run.start(killer("recorded", 3))
    loop = run.start(stopped_in_outage=threading.Event())
    assert loop.state.step == 0
    (told,) = (r.getMessage() for r in caplog.records if r.levelname == "WARNING")
    assert told.startswith("step 1 waits for 6 of its 6 trajectories from topic 'trajectories', first attempt at-g")
    run.start()
    assert [b.step for b in run.batches] == [1, 2, 3, 4]
    assert np.array_equal(run.trainer.values, undisturbed(run.config, run.log).values)
