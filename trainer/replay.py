"""Recorded batches applied again: their members are read from the log by attempt, revision and digest."""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Iterable

from ..infra.clock import Clock
from ..schemas.errors import ConfigError, DataLost
from ..schemas.records import Batch, Trajectory
from .config import TrainerConfig
from .feed import Feed
from .groups import ClosedGroup, Groups, group_of

log = logging.getLogger(__name__)

POLL_S = 0.05
TELL_S = 10.0  # a wait of so long is told


def check_recorded(batches: Iterable[Batch], config: TrainerConfig, *, first: bool) -> None:
    """Raises ConfigError where a trainer's own recorded batches cannot be applied; `first`: it has no checkpoint."""
    for batch in batches:
        if first:
            raise ConfigError(
                f"trainer {config.trainer_id!r} has recorded batches but no checkpoint in {config.checkpoint_dir}; "
                "put its folder back, or start under another trainer_id"
            )
        if batch.config_digest != config.digest():
            raise ConfigError(
                f"step {batch.step} was recorded under another configuration; restart {config.trainer_id!r} with the "
                "configuration it had, or start under another trainer_id"
            )


class Replay:
    """Batches to apply in order before anything new is chosen."""

    def __init__(self, batches: Iterable[Batch], feed: Feed, groups: Groups, clock: Clock) -> None:
        """Takes the recorded groups out of the feed's hands: nothing about them is decided again."""
        self.batches = deque(batches)
        self._feed = feed
        self._groups = groups
        self._clock = clock
        self._needed = {(m.attempt_id, m.revision): m.input_digest for b in self.batches for m in b.members}
        self._found = groups.state.held  # part of a checkpoint made meanwhile
        for t in groups.withdraw(g for b in self.batches for g in b.groups):
            self._keep(t)
        feed.mark()

    def next(self, stop: threading.Event) -> tuple[Batch, list[ClosedGroup]] | None:
        """The next batch and its groups; None = all were applied, or stopped while one was read. Raises DataLost."""
        if not self.batches:
            return None
        batch = self.batches[0]
        wanted = [(m.attempt_id, m.revision) for m in batch.members]
        if not self._gather(batch.step, wanted, stop):
            return None
        self.batches.popleft()
        members: dict[str, list[Trajectory]] = {group_id: [] for group_id in batch.groups}
        for key in wanted:
            t = self._found.pop(key)
            members[group_of(t)].append(t)
        return batch, [_group(group_id, own) for group_id, own in members.items()]

    def _gather(self, step: int, wanted: list[tuple[str, int]], stop: threading.Event) -> bool:
        """Reads until all of them are found; False = stopped before."""
        tell_s: float | None = self._clock.steady_s() + TELL_S
        while missing := [key for key in wanted if key not in self._found]:
            if stop.is_set():
                return False
            self._read(step, missing[0])
            if tell_s is not None and self._clock.steady_s() > tell_s:
                tell_s = None
                log.warning(
                    "step %d waits for %d of its %d trajectories from topic 'trajectories', first attempt %s revision "
                    "%d; do the broker and the schema registry answer?",
                    *(step, len(missing), len(wanted), *missing[0]),
                )
        return True

    def _read(self, step: int, missing: tuple[str, int]) -> None:
        found = self._feed.poll(POLL_S)
        for logged in found:
            if not self._keep(logged.trajectory):
                self._groups.offer(logged.trajectory, self._clock.now_ns(), logged.written_ns)
        if not found and self._feed.reached():
            raise DataLost(
                f"step {step} trained on attempt {missing[0]} revision {missing[1]}, which topic 'trajectories' does "
                "not hold any more; its retention must be longer than checkpoints are apart"
            )

    def _keep(self, t: Trajectory) -> bool:
        key = (t.attempt_id, t.revision)
        if key not in self._needed:
            return False
        if self._needed[key] != t.input_digest:
            raise DataLost(
                f"attempt {t.attempt_id} revision {t.revision} was trained on with digest {self._needed[key]} and now "
                f"has {t.input_digest}: the log was rewritten"
            )
        self._found[key] = t
        return True


def _group(group_id: str, members: list[Trajectory]) -> ClosedGroup:
    size = max((t.context.group_size for t in members), default=0)
    return ClosedGroup(group_id, tuple(members), size, len(members) < size)
