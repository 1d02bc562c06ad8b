"""A trainer's log in memory and a policy of three numbers, to run the loop through many lives in no time."""

from __future__ import annotations

import json
import random
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
import torch

from spanloop.infra.clock import ManualClock
from spanloop.infra.kafka import METADATA_TIMEOUT_S, Position
from spanloop.schemas.errors import DeliveryFailed
from spanloop.schemas.records import Batch, Decision, Resource, Trajectory, Worker
from spanloop.schemas.topics import Record
from spanloop.trainer.batch import Floats, TrainRow
from spanloop.trainer.config import TrainerConfig
from spanloop.trainer.engines import Engines
from spanloop.trainer.feed import Logged
from spanloop.trainer.journal import Recorded
from spanloop.trainer.lineage import Lineage
from spanloop.trainer.loop import Hook, Point, TrainerLoop, nothing
from spanloop.trainer.metrics import StepReport
from spanloop.trainer.step import StepResult

Make = Callable[..., Trajectory]
AWAY_S = 30.0
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
    silent: int = 0  # polls that give nothing at first, as a fresh consumer's do
    away: threading.Event | None = None  # nothing answers, until after AWAY_S this is set
    at: dict[Position, int] = field(default_factory=dict[Position, int])
    ends: dict[Position, int] = field(default_factory=dict[Position, int])
    away_s: float = 0.0

    def start(self, offsets: Mapping[Position, int] | None) -> None:
        self.at = dict(offsets or {("trajectories", p): 0 for p in range(len(self.log.trajectories))})

    def poll(self, timeout_s: float) -> list[Logged]:
        del timeout_s
        if self.away is not None:
            self.clock.advance(1.0)
            self.away_s += 1.0
            if self.away_s >= AWAY_S:
                self.away.set()
            return []
        if self.silent:
            self.silent -= 1
            return []
        open_ = [p for (_, p), at in self.at.items() if at < len(self.log.trajectories[p])]
        if not open_:
            self.clock.advance(1.0)
            return []
        partition = self.chance.choice(open_)
        at = self.at["trajectories", partition]
        self.at["trajectories", partition] = at + 1
        found = self.log.trajectories[partition][at]
        return [Logged(found, found.end_ns)]

    def offsets(self) -> dict[Position, int]:
        return dict(self.at)

    def mark(self, timeout_s: float = METADATA_TIMEOUT_S) -> None:
        del timeout_s
        self.ends = {("trajectories", p): len(own) for p, own in enumerate(self.log.trajectories)}

    def reached(self) -> bool:
        return self.away is None and all(self.at[p] >= end for p, end in self.ends.items())

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

    def start(
        self,
        hook: Hook = nothing,
        *,
        broken: bool = False,
        silent: int = 0,
        stopped_in_outage: threading.Event | None = None,
    ) -> TrainerLoop:
        """Runs one process to its end; `stopped_in_outage` is set once its feed was away for AWAY_S."""
        self.seed += 1
        self.config.model_dir.mkdir(parents=True, exist_ok=True)
        (self.config.model_dir / "config.json").write_text("{}")
        feed = MemoryFeed(self.log, random.Random(self.seed), self.clock, silent, stopped_in_outage)
        policy = self.config.policy
        journal = MemoryJournal(self.log, Lineage(policy), Engines(policy))
        self.trainer = ToyTrainer()
        self.trainer.broken = broken
        loop = TrainerLoop(
            self.config, feed, journal, self.trainer, clock=self.clock, on_step=[self.reports.append], hook=hook
        )
        loop.run(stopped_in_outage or threading.Event())
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
