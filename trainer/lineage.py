"""Which policy versions led to which: the chain of parents in `resources`. Pure.

1 ◀─ 2 ◀─ 3 ◀─ 6 ◀─ 7        staleness of 3 at 7 is 2
          ▲
          └─ 4 ◀─ 5          abandoned: made by a trainer whose steps were lost
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from ..schemas.records import Resource


@dataclass(slots=True)
class Lineage:
    """Versions of one policy; the first record of a version wins."""

    policy: str
    records: dict[int, Resource] = field(default_factory=dict[int, Resource])

    def add(self, resource: Resource) -> None:
        """Takes in a record of `resources`; others' policies are passed over."""
        if resource.name == self.policy and resource.kind == "policy":
            self.records.setdefault(resource.version, resource)

    @property
    def newest(self) -> int:
        """Highest version ever published; 0 = none."""
        return max(self.records, default=0)

    @property
    def epoch(self) -> int:
        """Highest writer epoch seen; 0 = none."""
        return max((r.epoch for r in self.records.values()), default=0)

    def chain(self, version: int) -> dict[int, int]:
        """version -> publishes between it and `version`, for every version on its line."""
        out: dict[int, int] = {}
        at: int | None = version
        while at is not None and at not in out:
            out[at] = len(out)
            record = self.records.get(at)
            at = record.parent_version if record is not None else None
        return out

    def published(self, step: int, parent: int | None, epochs: Iterable[int]) -> Resource | None:
        """The version that one of these writers published after `step` on top of `parent`; None = it never did."""
        own = set(epochs)
        found = (r for r in self.records.values() if r.epoch in own and (r.step, r.parent_version) == (step, parent))
        return min(found, key=lambda r: r.version, default=None)
