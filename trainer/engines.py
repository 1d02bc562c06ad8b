"""Which engines serve the policy, and whether any serves it fresh enough to learn from. Pure."""

from __future__ import annotations

from dataclasses import dataclass, field

from ..infra.clock import NS_PER_S
from ..schemas.errors import NoLiveEngine
from ..schemas.records import Worker
from .batch import NEVER
from .config import TrainerConfig

# Engines beat every second: one silent for so long serves nothing.
SILENT_S = 10.0


@dataclass(slots=True)
class Engines:
    """Engines by worker_id, as their newest heartbeat has them."""

    policy: str
    beats: dict[str, Worker] = field(default_factory=dict[str, Worker])

    def add(self, beat: Worker) -> None:
        """Takes in a heartbeat; other roles and policies are passed over."""
        if beat.role == "engine" and beat.policy == self.policy:
            self.beats[beat.worker_id] = beat

    def live(self, now_ns: int) -> list[Worker]:
        """Engines that said so lately."""
        oldest = now_ns - int(SILENT_S * NS_PER_S)
        return [b for b in self.beats.values() if b.alive and b.beat_ns >= oldest]


@dataclass(slots=True)
class EngineWatch:
    """Stops a trainer whose data would all be too stale: it would drop everything for ever."""

    config: TrainerConfig
    engines: Engines
    seen_s: float  # steady time when an engine fresh enough was last seen, or the waiting began

    def check(self, version: int, chain: dict[int, int], *, now_ns: int, steady_s: float) -> None:
        """`chain`: version -> publishes since it. Raises NoLiveEngine."""
        limit, bound = self.config.no_engine_s, self.config.max_staleness
        live = self.engines.live(now_ns)
        if any(e.policy_version is not None and chain.get(e.policy_version, NEVER) <= bound for e in live):
            self.seen_s = steady_s
        if limit is None or steady_s - self.seen_s <= limit:
            return
        seen = ", ".join(f"{e.name or e.worker_id} serves {e.policy_version}" for e in live) or "none is alive"
        raise NoLiveEngine(
            f"for {limit:g} s no engine served policy {self.config.policy!r} at most {bound} publishes older than "
            f"version {version} ({seen}); start an engine, or see why its loader does not take new versions"
        )
