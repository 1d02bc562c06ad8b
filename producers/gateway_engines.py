"""Which engine answers a call: live ones by heartbeat, sticky per attempt, fresh enough for the attempt's pin.

Sticky by rendezvous hashing: an attempt keeps its engine (and that engine's prefix cache) while others come and go.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from dataclasses import dataclass

from ..infra.clock import Clock, SystemClock
from ..schemas.records import Worker
from ..schemas.spans import LogprobMode
from .gateway_policy import GatewayPolicy

# An engine that refused a connection is tried last for so long; by then its heartbeat or its absence tells more.
DOWN_S = 1.0
LOGPROB_MODES: dict[str, LogprobMode] = {
    "raw": "raw", "raw_logprobs": "raw", "processed": "processed", "processed_logprobs": "processed",
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Engine:
    """One engine as its last heartbeat had it."""

    worker_id: str | None  # None = a fixed upstream
    url: str  # base URL without /v1
    policy: str | None  # None = unknown or foreign: takes every model name
    version: int | None  # policy version served
    logprob_mode: LogprobMode = "unknown"


class Engines:
    """Heartbeats in, engines out. Written by one thread, read by another."""

    def __init__(self, policy: GatewayPolicy, clock: Clock | None = None) -> None:
        self._policy = policy
        self._clock = clock or SystemClock()
        self._seen: dict[str, tuple[Engine, float]] = {}  # by URL: a restarted loader takes its predecessor's place
        self._down: dict[str, float] = {}
        self._fixed = _fixed(policy)

    def observe(self, worker: Worker, age_s: float = 0.0) -> None:
        """Takes a heartbeat that was written `age_s` ago."""
        if worker.role != "engine" or not worker.host:
            return
        url = base_url(worker.host)
        if worker.alive:
            mode = LOGPROB_MODES.get(worker.versions.get("logprobs_mode", ""), self._policy.logprob_mode)
            engine = Engine(worker.worker_id, url, worker.policy, worker.policy_version, mode)
            self._seen[url] = (engine, self._clock.steady_s() - age_s)
        elif (known := self._seen.get(url)) is not None and known[0].worker_id == worker.worker_id:
            del self._seen[url]

    def failed(self, engine: Engine) -> None:
        """Tells that an engine could not be reached."""
        self._down[engine.url] = self._clock.steady_s() + DOWN_S

    def live(self) -> list[Engine]:
        """Engines heard of lately, or the fixed upstream."""
        if self._fixed is not None:
            return [self._fixed]
        oldest = self._clock.steady_s() - self._policy.engine_stale_s
        return [engine for engine, seen in list(self._seen.values()) if seen >= oldest]

    def choose(self, sticky: str, model: str, floor: int | None, tried: Iterable[str] = ()) -> Engine | None:
        """The engine for an attempt, or None while there is none. Engines in `tried` (URLs) come last."""
        fitting = [e for e in self.live() if _serves(e, model) and _fresh(e, floor)]
        if len(fitting) < 2:
            return fitting[0] if fitting else None
        tried, now = set(tried), self._clock.steady_s()
        return max(
            fitting, key=lambda e: (e.url not in tried, self._down.get(e.url, now) <= now, _weight(sticky, e.url))
        )

    def served_by(self, engine: Engine) -> int | None:
        """The policy version an engine serves by its newest heartbeat."""
        known = self._seen.get(engine.url)
        return engine.version if known is None else known[0].version

    def missing(self, model: str, floor: int | None) -> str:
        """Why `choose` found nothing, for people."""
        live = self.live()
        if not live:
            return (
                "no live engine: none sent a heartbeat on topic 'workers' in the last "
                f"{self._policy.engine_stale_s:g} s; start an engine and its loader, or give the gateway an upstream"
            )
        serving = ", ".join(f"{e.policy or '?'} version {e.version} at {e.url}" for e in live)
        wanted = f"model {model!r}" + ("" if floor is None else f" at version {floor} or newer")
        return f"no live engine serves {wanted}; there is {serving}"


def base_url(url: str) -> str:
    """A base URL without /v1 and slashes at its end, with a scheme."""
    bare = url.rstrip("/").removesuffix("/v1")
    return bare if "://" in bare else f"http://{bare}"


def _fixed(policy: GatewayPolicy) -> Engine | None:
    if policy.upstream_url is None:
        return None
    return Engine(None, base_url(policy.upstream_url), policy.upstream_policy, None, policy.logprob_mode)


def _serves(engine: Engine, model: str) -> bool:
    return engine.worker_id is None or engine.policy is None or not model or engine.policy == model


def _fresh(engine: Engine, floor: int | None) -> bool:
    return floor is None or engine.worker_id is None or (engine.version is not None and engine.version >= floor)


def _weight(sticky: str, url: str) -> bytes:
    return hashlib.blake2b(f"{sticky}\n{url}".encode(), digest_size=8).digest()
