"""What the agents of the fault tests wrote down: a line of JSON each, `[rollout, attempt, what, which]`.

begun    process that the agent runs in    call     model call whose answer came in whole
span     span that was emitted             reward   reward that was emitted
over     process; it emits nothing more
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Literal

What = Literal["begun", "call", "span", "reward", "over"]


class Diary:
    """Reads it; a line that is being written counts from its end on."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def told(self, what: What) -> list[tuple[str, str]]:
        """(attempt, which) of each line of a kind."""
        if not self.path.exists():
            return []
        whole, _, _ = self.path.read_text("utf-8").rpartition("\n")
        found = [json.loads(line) for line in whole.splitlines()]
        return [(attempt_id, which) for _, attempt_id, kind, which in found if kind == what]

    def in_hand(self, process: int) -> set[str]:
        """Attempts whose agent has begun in a process and is not over."""
        begun, over = ({a for a, which in self.told(kind) if which == str(process)} for kind in ("begun", "over"))
        return begun - over

    def done(self, process: int) -> set[str]:
        """Attempts whose agent is over in a process."""
        return {a for a, which in self.told("over") if which == str(process)}
