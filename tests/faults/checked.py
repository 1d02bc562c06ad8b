"""What a check of the audit found."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Literal, get_args

# missed: a fault was to strike and did not, so that what was found says nothing of it
Fault = Literal["lost", "twice", "differs", "crashed", "missed"]
KINDS: tuple[Fault, ...] = get_args(Fault)


@dataclass(frozen=True, slots=True)
class Discrepancy:
    """One thing that is not as it has to be."""

    check: str
    fault: Fault
    what: str


@dataclass(slots=True)
class Checked:
    """What one check looked at and found."""

    check: str
    looked_at: int = 0
    wrong: list[Discrepancy] = field(default_factory=list[Discrepancy])

    def expect(self, good: bool, fault: Fault, what: str) -> None:
        """Notes a discrepancy unless all is well."""
        self.looked_at += 1
        if not good:
            self.wrong.append(Discrepancy(self.check, fault, what))

    def same(self, wanted: Iterable[object], found: Iterable[object], what: str) -> None:
        """Two collections hold the same things, each once; order is nothing."""
        want, got = Counter(list(wanted)), Counter(list(found))  # a mapping would be taken for counts
        for thing in want.keys() | got.keys():
            name = f"{what} {thing}"
            self.looked_at += 1
            if thing not in got:
                self.wrong.append(Discrepancy(self.check, "lost", name))
            elif thing not in want:
                self.wrong.append(Discrepancy(self.check, "differs", f"{name} comes from nowhere"))
            elif got[thing] > want[thing]:
                self.wrong.append(Discrepancy(self.check, "twice", f"{name}: {got[thing]} times"))
