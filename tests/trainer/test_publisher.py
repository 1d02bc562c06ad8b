"""Versions are published once, in one line, and never half."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from trainer_rig import Killed, Make, Run, chain_of, filled, killer

from spanloop.schemas.errors import DeliveryFailed, Fenced
from spanloop.schemas.records import Resource
from spanloop.trainer.config import TrainerConfig
from spanloop.trainer.loop import Point


def test_a_version_already_published_is_found_again_and_not_given_out_twice(
    config: TrainerConfig, make_trajectory: Make
) -> None:
    run = Run(replace(config, checkpoint_every=4), filled(make_trajectory, 8))
    with pytest.raises(Killed):
        run.start(killer("published", 3))
    before = list(run.resources)
    run.start()
    assert run.resources[: len(before)] == before
    assert chain_of(run.resources) == [(1, None), (2, 1), (3, 2), (4, 3), (5, 4)]


def test_a_publish_that_fails_half_way_leaves_the_version_where_it_was(
    config: TrainerConfig, make_trajectory: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = Run(replace(config, total_steps=2), filled(make_trajectory, 4))  # case TN-8

    def full(weights: object, path: Path, metadata: object) -> None:
        del weights, metadata
        path.write_bytes(b"half")
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patched:

        def hook(point: Point, step: int) -> None:
            if (point, step) == ("recorded", 1):
                patched.setattr("spanloop.trainer.weights.save_file", full)

        with pytest.raises(OSError, match="No space"):
            run.start(hook)
    assert chain_of(run.resources) == [(1, None)]
    assert not (run.config.weights_dir / "v000002").exists()
    run.start()
    assert chain_of(run.resources) == [(1, None), (2, 1), (3, 2)]


def test_a_version_without_an_acknowledged_record_does_not_exist(config: TrainerConfig, make_trajectory: Make) -> None:
    run = Run(replace(config, total_steps=2), filled(make_trajectory, 4))

    def hook(point: Point, step: int) -> None:
        if (point, step) == ("recorded", 1):
            run.log.fail_on = Resource

    with pytest.raises(DeliveryFailed):
        run.start(hook)
    assert chain_of(run.resources) == [(1, None)]
    run.log.fail_on = None
    run.start()
    assert chain_of(run.resources) == [(1, None), (2, 1), (3, 2)]


def test_a_new_trainer_of_an_old_policy_takes_a_new_number_and_abandons_the_old_line(
    config: TrainerConfig, make_trajectory: Make
) -> None:
    run = Run(replace(config, total_steps=2), filled(make_trajectory, 4))
    run.start()
    other = Run(
        replace(run.config, trainer_id="second", folder=config.folder.with_name("second"), total_steps=1), run.log
    )
    other.start()
    assert chain_of(other.resources) == [(1, None), (2, 1), (3, 2), (4, None)]
    assert other.reports[0].rows_dropped == {"abandoned_version": 6}
    assert other.resources[-1].epoch == 2


def test_a_trainer_whose_place_was_taken_stops(config: TrainerConfig, make_trajectory: Make) -> None:
    run = Run(config, filled(make_trajectory, 8))

    def usurp(point: Point, step: int) -> None:
        if (point, step) == ("recorded", 2):
            run.log.records.append(Resource("policy", 9, "policy", epoch=5))

    with pytest.raises(Fenced, match="epoch 5"):
        run.start(usurp)
