"""The training loop. One step, in this order, each part acknowledged before the next begins:

    batch record ─▶ optimiser step ─▶ every n steps a checkpoint ─▶ weights folder ─▶ resources record ─▶ decisions

After a kill at any point the checkpoint is loaded, batches recorded after it are applied again before anything new is
chosen, and what they published before is found again rather than published twice. So every batch counts once.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Literal

from ..infra import telemetry
from ..infra.clock import Clock, SystemClock
from ..infra.producer import Producer
from ..infra.quarantine import Quarantine
from ..infra.registry import connect, wait_for_registry
from ..infra.settings import Settings
from ..infra.taking import Taking
from ..schemas.errors import DataLost
from ..schemas.records import Batch, Decision, Resource
from ..schemas.serde import Decoder
from . import checkpoint
from .batch import Plan, StepContext, mini_batches, plan
from .config import TrainerConfig
from .engines import EngineWatch
from .feed import Feed, KafkaFeed, Marker
from .groups import ClosedGroup, Groups
from .heartbeat import Heartbeat
from .journal import Journal, KafkaJournal
from .metrics import MetricsFile, MetricsTelemetry, StepReport, report
from .publisher import Publisher, next_epoch
from .replay import Replay, check_recorded
from .step import PolicyTrainer, StepResult, make_trainer

log = logging.getLogger(__name__)

Point = Literal["recorded", "stepped", "checkpointed", "published", "decided"]
Hook = Callable[[Point, int], None]
POLL_S = 0.05
FLUSH_S, LEAVE_S = 30.0, 3.0  # for what is not acknowledged yet: at the end of its work, and once told to stop
EPOCHS, METRICS = "epochs.json", "metrics.jsonl"


def nothing(point: Point, step: int) -> None:
    """The hook of a loop that nobody watches."""
    del point, step


@dataclass(slots=True)
class LoopState:
    """Where the loop stands."""

    step: int = 0  # steps done
    published: Resource | None = None  # newest version of these weights' line
    unpublished: int = 1  # optimiser steps since; the first weights count as one
    saved: int = -1  # steps done in the newest checkpoint
    batches_offset: int = 0  # where to go on reading `batches`
    decisions: list[Decision] = field(default_factory=list[Decision])  # of the last step

    @property
    def version(self) -> int:
        """Version of the weights; 0 = not published."""
        return self.published.version if self.published is not None else 0


class TrainerLoop:
    """Turns closed groups into policy versions until its steps are done."""

    def __init__(
        self,
        config: TrainerConfig,
        feed: Feed,
        journal: Journal,
        trainer: PolicyTrainer,
        *,
        clock: Clock | None = None,
        on_step: Sequence[Callable[[StepReport], None]] = (),
        hook: Hook = nothing,
    ) -> None:
        """`hook` is called after each part of a step; tests kill the process there."""
        self.config = config
        self.state = LoopState()
        self.groups = Groups(config.group_deadline_s)
        self._feed, self._marker = feed, Marker(feed)
        self._journal = journal
        self._trainer = trainer
        self._clock = clock or SystemClock()
        self._marked_ns: int | None = None  # when the log's end was marked, while groups that were due wait for it
        self._on_step = on_step
        self._hook = hook

    def run(self, stop: threading.Event) -> None:
        """Trains until `stop` is set, the steps are done or recorded batches to follow end.

        Raises NoLiveEngine, Fenced, DataLost, ConfigError, DeliveryFailed, Unavailable.
        """
        config, state = self.config, self.state
        replay = self._resume()
        while not stop.is_set() and state.step < config.total_steps:
            began = self._clock.steady_s()
            old, groups = replay.next(stop) or (None, self._next_groups(stop))
            if groups is None:
                break
            waited = self._clock.steady_s()

            step = self._plan(groups, old)
            if old is None:
                state.batches_offset = self._journal.write(step.batch) + 1
            self._hook("recorded", step.batch.step)

            result, skipped = self._optimise(step)
            state.step = step.batch.step
            state.decisions = list(step.decisions)
            self._hook("stepped", state.step)

            if state.step % config.checkpoint_every == 0:
                self._save()
            self._hook("checkpointed", state.step)

            self._publish()
            self._hook("published", state.step)

            self._send_decisions()
            self._hook("decided", state.step)

            now = self._clock.steady_s()
            said = report(
                step, result, late=self.groups.state.late, replayed=old is not None, skipped=skipped,
                wait_s=waited - began, step_s=now - waited, at_ns=self._clock.now_ns(),
            )  # fmt: skip
            for tell in self._on_step:
                tell(said)
        if state.step != state.saved:
            self._save()  # an orderly end leaves nothing to apply again

    # --- start -----------------------------------------------------------------------------------------------------

    def _resume(self) -> Replay:
        """Puts weights, feed and groups back where they were; returns what is to be applied again."""
        config, state = self.config, self.state
        self._journal.refresh(to_end=True)
        folder = checkpoint.newest(config.checkpoint_dir)
        if folder is not None:
            self._load(folder)
        recorded = self._journal.recorded(config.follow or config.trainer_id, state.batches_offset)
        past = [b for b in recorded.batches if b.step > state.step]
        if config.follow is None:
            check_recorded(past, config, first=folder is None)
        epochs = next_epoch(config.folder / EPOCHS, self._journal.lineage.epoch)
        self._publisher = Publisher(config, self._journal, self._trainer, epochs, self._clock)
        if folder is None:
            state.batches_offset = 0 if config.follow else recorded.next_offset
            self._feed.start(None)
            self._save()  # from now on there is always a checkpoint, so offsets are never guessed again
        self._publish()
        self._send_decisions()
        log.info("%d batches recorded after step %d are applied again", len(past), state.step)
        return Replay(past, self._feed, self.groups, self._clock)

    def _load(self, folder: Path) -> None:
        manifest, groups, decisions = checkpoint.read(folder)
        self._trainer.load(folder)
        self.groups = Groups(self.config.group_deadline_s, groups)
        self._feed.start(manifest.offsets)
        self.state.step = self.state.saved = manifest.step
        self.state.unpublished = manifest.unpublished
        self.state.batches_offset = manifest.batches_offset
        self.state.decisions = decisions
        if manifest.policy_version is not None:
            record = self._journal.lineage.records.get(manifest.policy_version)
            if record is None:
                raise DataLost(
                    f"checkpoint {folder} is of policy version {manifest.policy_version}, which topic 'resources' does "
                    "not hold; it must keep every version"
                )
            self.state.published = replace(record, sha256=manifest.digest)

    # --- what to train on ------------------------------------------------------------------------------------------

    def _next_groups(self, stop: threading.Event) -> list[ClosedGroup] | None:
        """Waits for a batch of closed groups; None = stopped, or nothing is left to follow."""
        count, clock = self.config.groups_per_batch, self._clock
        watch = EngineWatch(self.config, self._journal.engines, clock.steady_s())
        chain = self._journal.lineage.chain(self.state.version)
        while not stop.is_set() and self.config.follow is None:
            waiting = len(self.groups.state.ready) < count
            for found in self._feed.poll(POLL_S if waiting else 0.0):
                self.groups.offer(found.trajectory, clock.now_ns(), found.written_ns)
            self._close_due()
            if taken := self.groups.take(count):
                return taken
            self._journal.refresh()
            watch.check(self.state.version, chain, now_ns=clock.now_ns(), steady_s=clock.steady_s())
        return None

    def _close_due(self) -> None:
        """Closes groups by time, as it was at a mark that the feed has reached: rewards in the log by then count."""
        now_ns = self._clock.now_ns()
        if self._marked_ns is None and self.groups.due(now_ns) and self._marker.marked():
            self._marked_ns = now_ns
        if self._marked_ns is not None and self._feed.reached():
            self.groups.tick(self._marked_ns)
            self._marked_ns = None

    def _plan(self, groups: Sequence[ClosedGroup], old: Batch | None) -> Plan:
        state = self.state
        if old is not None and self.config.follow is None and (old.step, old.policy_version) != (
            state.step + 1, state.version
        ):  # fmt: skip
            raise DataLost(
                f"recorded step {old.step} starts from version {old.policy_version}, these weights are step "
                f"{state.step}, version {state.version}: the checkpoint is not of this trainer's line"
            )
        version = state.version if old is None else old.policy_version
        number = state.step + 1 if old is None else old.step
        chain = self._journal.lineage.chain(version)
        at = StepContext(number, version, chain, self._trainer.vocabulary(), self._clock.now_ns())
        return plan(groups, self.config, at)

    # --- what a step does ------------------------------------------------------------------------------------------

    def _optimise(self, step: Plan) -> tuple[StepResult | None, str | None]:
        """The optimiser step, and why it was skipped if it was."""
        if step.cause is not None:
            log.warning("step %d is skipped, nothing in it can be trained on (%s)", step.batch.step, step.cause)
            return None, step.cause
        result = self._trainer.step(mini_batches(step.rows, self.config.mini_batches), step.batch.seed)
        if result.skipped:
            log.warning("step %d is skipped, its gradient is not finite", step.batch.step)
            return result, "nonfinite_gradient"
        self.state.unpublished += 1
        return result, None

    def _save(self) -> None:
        state = self.state
        manifest = checkpoint.Manifest(
            step=state.step,
            policy_version=state.version or None,
            digest=state.published.sha256 if state.published is not None else None,
            unpublished=state.unpublished,
            batches_offset=state.batches_offset,
            offsets=self._feed.offsets(),
            config_digest=self.config.digest(),
        )
        checkpoint.save(
            self.config.checkpoint_dir, manifest, self.groups.state, state.decisions, self._trainer,
            keep=self.config.keep_checkpoints,
        )  # fmt: skip
        state.saved = state.step

    def _publish(self) -> None:
        every = self.config.publish_every
        if every and self.state.unpublished and self.state.step % every == 0:
            self.state.published = self._publisher.publish(self.state.step, self.state.published)
            self.state.unpublished = 0

    def _send_decisions(self) -> None:
        if self.config.follow is None:
            for decision in self.state.decisions:
                self._journal.write(decision)


class TrainerService:
    """A trainer on Kafka: blocks in `run` until it is stopped or its steps are done."""

    def __init__(self, settings: Settings, config: TrainerConfig, *, hook: Hook = nothing) -> None:
        self._settings = settings
        self._config = config
        self._hook = hook

    def run(self, stop: threading.Event) -> None:
        """Raises what TrainerLoop.run raises."""
        settings, config, clock = self._settings, self._config, SystemClock()
        with ExitStack() as stack:
            if not wait_for_registry(settings, stop):
                return
            registry = stack.enter_context(closing(connect(settings)))
            producer = Producer(settings, f"trainer-{config.trainer_id}")
            stack.callback(lambda: producer.close(LEAVE_S if stop.is_set() else FLUSH_S))
            taking = Taking(Decoder(registry), Quarantine(producer, "trainer", settings.dlq_limit), stop)
            feed = KafkaFeed(settings, config.run_id, taking)
            stack.callback(feed.close)
            meter = telemetry.meter(settings, "trainer")
            stack.callback(meter.close)
            journal = KafkaJournal(settings, config.policy, producer, taking, clock)
            stack.callback(journal.close)
            loop = TrainerLoop(
                config, feed, journal, make_trainer(config), clock=clock, hook=self._hook,
                on_step=(MetricsFile(config.folder / METRICS), MetricsTelemetry(meter, config.policy)),
            )  # fmt: skip
            stack.enter_context(Heartbeat(producer, config, lambda: loop.state.version, clock))
            loop.run(stop)
