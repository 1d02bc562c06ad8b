"""What one life of the loop does, in which order, and what it reports."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from trainer_rig import Make, MemoryFeed, MemoryLog, Run, ToyTrainer, chain_of, filled

from spanloop.infra.clock import NS_PER_S
from spanloop.infra.kafka import METADATA_TIMEOUT_S
from spanloop.schemas.errors import DeliveryFailed, NoLiveEngine, Unavailable
from spanloop.schemas.packed import pack_ids
from spanloop.schemas.records import Batch, RewardRef, Worker
from spanloop.trainer.config import TrainerConfig


def test_a_run_publishes_a_version_per_step_each_on_top_of_the_one_before(
    config: TrainerConfig, make_trajectory: Make
) -> None:
    run = Run(config, filled(make_trajectory, 8))
    run.start()
    assert [b.step for b in run.batches] == [1, 2, 3, 4]
    assert [b.policy_version for b in run.batches] == [1, 2, 3, 4]
    assert chain_of(run.resources) == [(1, None), (2, 1), (3, 2), (4, 3), (5, 4)]
    assert [r.parent_sha256 for r in run.resources[1:]] == [r.sha256 for r in run.resources[:-1]]
    assert all(Path(r.uri or "").joinpath("model.safetensors").exists() for r in run.resources)
    assert sorted(d.group_id for d in run.decisions) == [f"g{i}" for i in range(8)]
    assert {d.outcome for d in run.decisions} == {"used"}


def test_records_come_in_the_order_that_makes_a_kill_harmless(config: TrainerConfig, make_trajectory: Make) -> None:
    run = Run(config, filled(make_trajectory, 4))
    run.config = replace(config, total_steps=2)
    run.start()
    kinds = [type(r).__name__ for r in run.log.records]
    assert kinds == ["Resource", *["Batch", "Resource", "Decision", "Decision"] * 2]


def test_a_batch_that_is_not_acknowledged_is_not_stepped_on(config: TrainerConfig, make_trajectory: Make) -> None:
    run = Run(config, filled(make_trajectory, 8))
    run.log.fail_on = Batch
    with pytest.raises(DeliveryFailed):
        run.start()
    assert np.array_equal(run.trainer.values, ToyTrainer().values)


def test_a_batch_with_nothing_to_train_on_is_skipped_decided_and_not_published(
    config: TrainerConfig, make_trajectory: Make
) -> None:
    log = filled(make_trajectory, 2, rewards=(1.0, 1.0))  # case TN-2
    for g in range(2, 4):
        log.trajectories[0] += [make_trajectory(float(i), group=f"g{g}", sample=i, size=2) for i in range(2)]
    run = Run(replace(config, total_steps=2), log)
    run.start()
    assert [r.skipped for r in run.reports] == ["2 groups zero_spread, 4 rows or rollouts zero_spread", None]
    assert [r.groups_used for r in run.reports] == [0, 2]
    assert run.reports[0].groups_dropped == {"zero_spread": 2}
    assert chain_of(run.resources) == [(1, None), (2, 1)]
    assert [d.outcome for d in run.decisions] == ["dropped", "dropped", "used", "used"]


def test_eight_rollouts_without_any_row_are_skipped_with_the_cause_and_never_read_again(
    config: TrainerConfig, make_trajectory: Make, caplog: pytest.LogCaptureFixture
) -> None:
    empty = [replace(make_trajectory(float(i), sample=i, size=8), rows=[], calls=[]) for i in range(8)]  # case TN-2
    run = Run(replace(config, total_steps=1, groups_per_batch=1), MemoryLog([empty]))
    first = np.array(ToyTrainer().values)
    cause = "1 groups no_trainable_tokens, 8 rows or rollouts no_llm_calls"
    loop = run.start()
    assert [(r.members, r.rows, r.skipped, r.loss) for r in run.reports] == [(8, 0, cause, None)]
    assert f"nothing in it can be trained on ({cause})" in caplog.text
    assert np.array_equal(run.trainer.values, first)
    assert chain_of(run.resources) == [(1, None)]
    assert [(d.group_id, d.outcome, d.reason) for d in run.decisions] == [("g", "dropped", "no_trainable_tokens")]
    assert loop.state.step == 1
    run.log.trajectories[0] += [make_trajectory(float(i), group="h", sample=i, size=2) for i in range(2)]
    run.config = replace(run.config, total_steps=2)
    run.start()  # from the offsets of its checkpoint: the eight are neither trained nor counted as late
    assert [[m.attempt_id for m in b.members] for b in run.batches][1:] == [["at-h-0-1", "at-h-1-1"]]
    assert (run.reports[-1].late, run.reports[-1].skipped) == (0, None)


def test_a_gradient_that_is_not_finite_is_counted_and_publishes_nothing(
    config: TrainerConfig, make_trajectory: Make
) -> None:
    run = Run(replace(config, total_steps=1), filled(make_trajectory, 2))  # case TN-7
    run.start(broken=True)
    assert [r.skipped for r in run.reports] == ["nonfinite_gradient"]
    assert chain_of(run.resources) == [(1, None)]


def test_no_engine_fresh_enough_stops_the_trainer_by_name(config: TrainerConfig) -> None:
    run = Run(replace(config, max_staleness=0), MemoryLog([[]]))
    run.log.beats.append(
        Worker("w1", name="engine-1", role="engine", policy="policy", policy_version=99, beat_ns=run.clock.now_ns() * 2)
    )
    with pytest.raises(NoLiveEngine, match="engine-1 serves 99"):
        run.start()


def test_a_broker_that_is_away_when_a_group_is_due_is_waited_for(
    config: TrainerConfig, make_trajectory: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    mark, calls = MemoryFeed.mark, iter(range(1000))

    def away(feed: MemoryFeed, timeout_s: float = METADATA_TIMEOUT_S) -> None:
        if 1 <= next(calls) <= 3:  # the first is of the start
            raise Unavailable("all brokers are down")
        mark(feed, timeout_s)

    monkeypatch.setattr(MemoryFeed, "mark", away)
    config = replace(config, total_steps=1, groups_per_batch=1, no_engine_s=None)
    run = Run(config, MemoryLog([[make_trajectory(1.0)]]))
    run.start()
    assert run.reports[0].groups == 1
    assert next(calls) > 4


def test_an_engine_that_keeps_up_lets_the_trainer_wait(config: TrainerConfig, make_trajectory: Make) -> None:
    run = Run(replace(config, total_steps=1, group_deadline_s=1000.0), MemoryLog([[]]))
    run.log.beats.append(Worker("w1", role="engine", policy="policy", policy_version=1, beat_ns=run.clock.now_ns() * 2))
    for sample in range(2):  # two of four: closes by its deadline, long after 120 s
        run.log.trajectories[0] += [make_trajectory(float(sample), group=g, sample=sample) for g in ("a", "b")]
    run.start()
    assert run.reports[0].groups == 2
    assert {d.reason for d in run.decisions} == {"deadline"}


def test_late_revisions_are_counted_and_not_trained(config: TrainerConfig, make_trajectory: Make) -> None:
    log = filled(make_trajectory, 2, partitions=1)
    log.trajectories[0] += [replace(t, revision=9) for t in log.trajectories[0]]
    log.trajectories[0] += filled(make_trajectory, 4, partitions=1).trajectories[0][6:]
    run = Run(replace(config, total_steps=2), log)
    run.start()
    assert run.reports[-1].late == 6
    assert {m.revision for b in run.batches for m in b.members} == {3}


def test_a_trainer_behind_the_log_trains_on_rewards_that_came_in_time(
    config: TrainerConfig, make_trajectory: Make
) -> None:
    first = [make_trajectory(None, group=g, sample=i, size=2, awaits=["judge"]) for g in "ab" for i in range(2)]
    judged = [
        replace(t, revision=4, rewards=[RewardRef("rw", "judge", "final", 1.0)], final_reward=float(t.context.sample))
        for t in first
    ]
    run = Run(replace(config, total_steps=1), MemoryLog([first + judged]))
    run.clock.advance((first[0].end_ns - run.clock.now_ns()) / NS_PER_S + 999.0)
    run.start()
    assert [m.revision for b in run.batches for m in b.members] == [4] * 4
    assert (run.reports[0].groups_used, run.reports[0].late) == (2, 0)


def test_an_outage_longer_than_the_deadline_costs_open_groups_no_member(
    config: TrainerConfig, make_trajectory: Make
) -> None:
    (whole,) = filled(make_trajectory, 4, partitions=1).trajectories
    run = Run(replace(config, total_steps=1), MemoryLog([whole[6:8] + whole[9:11] + whole[:6]]))
    run.start()  # g2 and g3 are open in its checkpoint, a member short
    run.clock.advance(2 * config.group_deadline_s)
    run.log.trajectories[0] += [whole[8], whole[11]]
    run.config = replace(config, total_steps=2)
    run.start(silent=1)
    assert [len(b.members) for b in run.batches] == [6, 6]
    assert {d.reason for d in run.decisions} == {None}


def test_an_end_without_a_new_step_leaves_the_checkpoint_alone(config: TrainerConfig, make_trajectory: Make) -> None:
    run = Run(replace(config, checkpoint_every=2, total_steps=3), filled(make_trajectory, 8))
    run.start()
    manifest = config.checkpoint_dir / "step-000003" / "manifest.json"
    before = manifest.stat()
    run.start()
    assert (manifest.stat().st_ino, manifest.stat().st_mtime_ns) == (before.st_ino, before.st_mtime_ns)


def test_rows_of_token_ids_that_the_policy_does_not_have_are_dropped(
    config: TrainerConfig, make_trajectory: Make
) -> None:
    size = ToyTrainer().vocabulary()
    members = [make_trajectory(float(i), sample=i) for i in range(4)]
    for i, foreign in ((1, size), (2, -1), (3, size - 1)):
        ids = pack_ids([foreign, 6, 7, 8, 9])
        members[i] = replace(members[i], rows=[replace(members[i].rows[0], token_ids=ids)])
    run = Run(replace(config, total_steps=1, groups_per_batch=1), MemoryLog([members]))
    run.start()
    assert (run.reports[0].rows, run.reports[0].rows_dropped) == (2, {"foreign_token_ids": 2})


def test_only_the_newest_checkpoints_and_weights_are_kept(config: TrainerConfig, make_trajectory: Make) -> None:
    run = Run(replace(config, keep_checkpoints=2, keep_weights=3), filled(make_trajectory, 8))
    run.start()
    assert sorted(p.name for p in config.checkpoint_dir.iterdir()) == ["step-000003", "step-000004"]
    assert sorted(p.name for p in config.weights_dir.iterdir()) == ["v000003", "v000004", "v000005"]
