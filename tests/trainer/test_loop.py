"""The loop on a log in memory and a policy of three numbers: killed anywhere, it ends with the same weights."""

from __future__ import annotations

import contextlib
import json
import random
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from spanloop.infra.clock import ManualClock
from spanloop.infra.kafka import Position
from spanloop.schemas.errors import ConfigError, DataLost, DeliveryFailed, Fenced, NoLiveEngine
from spanloop.schemas.records import Batch, Decision, Resource, Trajectory, Worker
from spanloop.schemas.topics import Record
from spanloop.trainer.batch import Floats, TrainRow
from spanloop.trainer.config import TrainerConfig
from spanloop.trainer.engines import Engines
from spanloop.trainer.journal import Recorded
from spanloop.trainer.lineage import Lineage
from spanloop.trainer.loop import Hook, Point, TrainerLoop, nothing
from spanloop.trainer.metrics import StepReport
from spanloop.trainer.step import StepResult

Make = Callable[..., Trajectory]
POINTS: tuple[Point, ...] = ("recorded", "stepped", "checkpointed", "published", "decided")


class Killed(BaseException):
    """What a kill -9 is to a test: nothing catches it, nothing is tidied up."""


@dataclass(slots=True)
class MemoryLog:
    """Topics as lists. Survives the trainer."""

    trajectories: list[list[Trajectory]]  # by partition
    records: list[Record] = field(default_factory=list[Record])
    beats: list[Worker] = field(default_factory=list[Worker])
    fail_on: type[Record] | None = None

    def of(self, kind: type[Batch] | type[Resource] | type[Decision]) -> list[Record]:
        """Records of one topic."""
        return [r for r in self.records if isinstance(r, kind)]


@dataclass(slots=True)
class MemoryFeed:
    """A Feed that takes one record at a time from a random partition."""

    log: MemoryLog
    chance: random.Random
    clock: ManualClock
    at: dict[Position, int] = field(default_factory=dict[Position, int])
    ends: dict[Position, int] = field(default_factory=dict[Position, int])

    def start(self, offsets: Mapping[Position, int] | None) -> None:
        self.at = dict(offsets or {("trajectories", p): 0 for p in range(len(self.log.trajectories))})

    def poll(self, timeout_s: float) -> list[Trajectory]:
        del timeout_s
        open_ = [p for (_, p), at in self.at.items() if at < len(self.log.trajectories[p])]
        if not open_:
            self.clock.advance(1.0)
            return []
        partition = self.chance.choice(open_)
        at = self.at["trajectories", partition]
        self.at["trajectories", partition] = at + 1
        return [self.log.trajectories[partition][at]]

    def offsets(self) -> dict[Position, int]:
        return dict(self.at)

    def mark(self) -> None:
        self.ends = {("trajectories", p): len(own) for p, own in enumerate(self.log.trajectories)}

    def reached(self) -> bool:
        return all(self.at[p] >= end for p, end in self.ends.items())

    def close(self) -> None:
        return


@dataclass(slots=True)
class MemoryJournal:
    """A Journal on MemoryLog; every record has its index as its offset."""

    log: MemoryLog
    lineage: Lineage
    engines: Engines

    def recorded(self, trainer_id: str, offset: int) -> Recorded:
        found = [r for r in self.log.records[offset:] if isinstance(r, Batch) and r.trainer_id == trainer_id]
        return Recorded(tuple(found), len(self.log.records))

    def refresh(self, *, to_end: bool = False) -> None:
        del to_end
        for record in self.log.records:
            if isinstance(record, Resource):
                self.lineage.add(record)
        for beat in self.log.beats:
            self.engines.add(beat)

    def write(self, record: Record) -> int:
        if self.log.fail_on is type(record):
            raise DeliveryFailed("no broker")
        self.log.records.append(record)
        return len(self.log.records) - 1

    def close(self) -> None:
        return


class ToyTrainer:
    """Three numbers and a momentum; each step depends on the order of its rows, its seed and all steps before."""

    def __init__(self) -> None:
        self.values: Floats = np.array([0.1, 0.2, 0.3])
        self.momentum: Floats = np.zeros(3)
        self.broken = False

    def step(self, parts: Sequence[Sequence[TrainRow]], seed: int) -> StepResult:
        if self.broken:
            return StepResult(float("nan"), float("nan"), skipped=True)
        loss = 0.0
        for i, row in enumerate(r for part in parts for r in part):
            signal = float((row.advantages * row.weights * (row.token_ids + 1)).sum()) + 1e-3 * i + 1e-4 * seed
            self.momentum = 0.9 * self.momentum + np.sin(self.values * signal + signal)
            self.values = self.values - 0.1 * self.momentum
            loss += signal
        return StepResult(loss, 1.0)

    def logprobs(self, rows: Sequence[TrainRow]) -> list[Floats]:
        return [np.full(len(r.token_ids), -1.0) for r in rows]

    def weights(self) -> dict[str, torch.Tensor]:
        return {"values": torch.tensor(self.values)}

    def save(self, folder: Path) -> None:
        (folder / "toy.json").write_text(json.dumps([self.values.tolist(), self.momentum.tolist()]))

    def load(self, folder: Path) -> None:
        values, momentum = json.loads((folder / "toy.json").read_text())
        self.values, self.momentum = np.array(values), np.array(momentum)

    def vocabulary(self) -> int:
        return 64


@dataclass(slots=True)
class Run:
    """A trainer's life over several processes on one log."""

    config: TrainerConfig
    log: MemoryLog
    seed: int = 0
    reports: list[StepReport] = field(default_factory=list[StepReport])
    trainer: ToyTrainer = field(default_factory=ToyTrainer)
    clock: ManualClock = field(default_factory=ManualClock)

    def start(self, hook: Hook = nothing, *, broken: bool = False) -> TrainerLoop:
        """Runs one process to its end."""
        self.seed += 1
        self.config.model_dir.mkdir(parents=True, exist_ok=True)
        (self.config.model_dir / "config.json").write_text("{}")
        feed = MemoryFeed(self.log, random.Random(self.seed), self.clock)
        policy = self.config.policy
        journal = MemoryJournal(self.log, Lineage(policy), Engines(policy))
        self.trainer = ToyTrainer()
        self.trainer.broken = broken
        loop = TrainerLoop(
            self.config, feed, journal, self.trainer, clock=self.clock, on_step=[self.reports.append], hook=hook
        )
        loop.run(threading.Event())
        return loop

    @property
    def resources(self) -> list[Resource]:
        return [r for r in self.log.records if isinstance(r, Resource)]

    @property
    def batches(self) -> list[Batch]:
        return [r for r in self.log.records if isinstance(r, Batch)]

    @property
    def decisions(self) -> list[Decision]:
        return [r for r in self.log.records if isinstance(r, Decision)]


def killer(point: str, step: int) -> Hook:
    """Kills at one point of one step."""

    def hook(at: Point, number: int) -> None:
        if (at, number) == (point, step):
            raise Killed

    return hook


def filled(make: Make, groups: int, partitions: int = 3, rewards: Sequence[float] = (0.0, 1.0, 0.5)) -> MemoryLog:
    """A log of complete groups, one partition each."""
    log = MemoryLog([[] for _ in range(partitions)])
    for g in range(groups):
        own = [make(r * (1 + g), group=f"g{g}", sample=i, size=len(rewards)) for i, r in enumerate(rewards)]
        log.trajectories[g % partitions] += own
    return log


def undisturbed(config: TrainerConfig, log: MemoryLog) -> ToyTrainer:
    """The weights that the recorded batches of a log give without any kill, from the first weights on."""
    follower = replace(config, follow=config.trainer_id, trainer_id="witness", publish_every=0)
    run = Run(replace(follower, folder=config.folder.with_name("witness")), log, seed=99)
    run.start()
    return run.trainer


def chain_of(resources: Sequence[Resource]) -> list[tuple[int, int | None]]:
    """(version, parent) of each record."""
    return [(r.version, r.parent_version) for r in resources]


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
    assert [r.skipped for r in run.reports] == ["zero_spread: 6", None]  # two groups of two rollouts, and themselves
    assert [r.groups_used for r in run.reports] == [0, 2]
    assert run.reports[0].groups_dropped == {"zero_spread": 2}
    assert chain_of(run.resources) == [(1, None), (2, 1)]
    assert [d.outcome for d in run.decisions] == ["dropped", "dropped", "used", "used"]


def test_a_gradient_that_is_not_finite_is_counted_and_publishes_nothing(
    config: TrainerConfig, make_trajectory: Make
) -> None:
    run = Run(replace(config, total_steps=1), filled(make_trajectory, 2))  # case TN-7
    run.start(broken=True)
    assert [r.skipped for r in run.reports] == ["nonfinite_gradient"]
    assert chain_of(run.resources) == [(1, None)]


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


def test_no_engine_fresh_enough_stops_the_trainer_by_name(config: TrainerConfig) -> None:
    run = Run(replace(config, max_staleness=0), MemoryLog([[]]))
    run.log.beats.append(
        Worker("w1", name="engine-1", role="engine", policy="policy", policy_version=99, beat_ns=run.clock.now_ns() * 2)
    )
    with pytest.raises(NoLiveEngine, match="engine-1 serves 99"):
        run.start()


def test_an_engine_that_keeps_up_lets_the_trainer_wait(config: TrainerConfig, make_trajectory: Make) -> None:
    run = Run(replace(config, total_steps=1, group_deadline_s=1000.0), MemoryLog([[]]))
    run.log.beats.append(Worker("w1", role="engine", policy="policy", policy_version=1, beat_ns=run.clock.now_ns() * 2))
    for sample in range(2):  # two of four: closes by its deadline, long after 120 s
        run.log.trajectories[0] += [make_trajectory(float(sample), group=g, sample=sample) for g in ("a", "b")]
    run.start()
    assert run.reports[0].groups == 2
    assert {d.reason for d in run.decisions} == {"deadline"}


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


def test_late_revisions_are_counted_and_not_trained(config: TrainerConfig, make_trajectory: Make) -> None:
    log = filled(make_trajectory, 2, partitions=1)
    log.trajectories[0] += [replace(t, revision=9) for t in log.trajectories[0]]
    log.trajectories[0] += filled(make_trajectory, 4, partitions=1).trajectories[0][6:]
    run = Run(replace(config, total_steps=2), log)
    run.start()
    assert run.reports[-1].late == 6
    assert {m.revision for b in run.batches for m in b.members} == {3}


def test_only_the_newest_checkpoints_and_weights_are_kept(config: TrainerConfig, make_trajectory: Make) -> None:
    run = Run(replace(config, keep_checkpoints=2, keep_weights=3), filled(make_trajectory, 8))
    run.start()
    assert sorted(p.name for p in config.checkpoint_dir.iterdir()) == ["step-000003", "step-000004"]
    assert sorted(p.name for p in config.weights_dir.iterdir()) == ["v000003", "v000004", "v000005"]
