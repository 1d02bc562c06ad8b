"""What a loader decides, as pure functions of the log: who may drive an engine, and which version it should serve."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from ..infra.clock import NS_PER_S
from ..schemas.errors import ConflictingResource
from ..schemas.records import Resource, Worker

# In a heartbeat's labels: this loader holds its engine. `alive` says whether the engine can be called, which is another
# matter: an engine that is down, or has no version yet, is held all the same.
LEASE_LABEL = "lease"
LEASE_S = 5.0  # a loader silent for longer has lost its engine to whoever asks next


@dataclass(slots=True)
class Lease:
    """Who drives an engine: a fold over `workers` in log order, so everyone who reads it agrees."""

    host: str
    holder: Worker | None = None

    def see(self, beat: Worker) -> None:
        """Takes in a heartbeat. A second loader's counts only once the first has been silent for LEASE_S."""
        if beat.role != "engine" or beat.host.rstrip("/") != self.host:
            return
        holder = self.holder
        mine = holder is not None and holder.worker_id == beat.worker_id
        if LEASE_LABEL not in beat.labels:
            self.holder = None if mine else holder
        elif holder is None or mine or beat.beat_ns - holder.beat_ns > LEASE_S * NS_PER_S:
            self.holder = beat

    def free(self, now_ns: int) -> bool:
        """True if a heartbeat written now would take it."""
        return self.holder is None or now_ns - self.holder.beat_ns > LEASE_S * NS_PER_S


@dataclass(slots=True)
class Versions:
    """The versions of one policy, and how each fared on this engine."""

    policy: str
    known: dict[int, Resource] = field(default_factory=dict[int, Resource])
    refused: set[int] = field(default_factory=set[int])
    last_good: Resource | None = None

    def see(self, resource: Resource) -> None:
        """Takes in a resource; other names are passed over. Raises ConflictingResource: the first record wins."""
        if resource.name != self.policy or resource.kind != "policy":
            return
        first = self.known.setdefault(resource.version, resource)
        if replace(first, created_ns=0) != replace(resource, created_ns=0):
            raise ConflictingResource(
                f"policy {resource.name!r} version {resource.version} was published before with other content "
                f"({first.uri}); version numbers are never reused"
            )

    @property
    def newest(self) -> Resource | None:
        """The newest version of the newest writer: a fenced trainer's late versions are not on its line."""
        return max(self.known.values(), key=lambda r: (r.epoch, r.version), default=None)

    def wanted(self, served: int | None) -> Resource | None:
        """What is to be loaded now: the newest, or the last good where the newest was refused; None = nothing."""
        newest = self.newest
        target = self.last_good if newest is None or newest.version in self.refused else newest
        return None if target is None or target.version == served else target

    def good(self, resource: Resource) -> None:
        """Tells that a version was loaded and verified."""
        self.last_good = resource

    def refuse(self, resource: Resource) -> None:
        """Tells that a version cannot be served; it is not tried again."""
        self.refused.add(resource.version)
        if self.last_good is not None and self.last_good.version == resource.version:
            self.last_good = None
