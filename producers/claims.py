"""What a worker does with an assignment it reads: a pure decision.

                   not mine ─▶ ignore
assignment ─▶ older epoch ─▶ refuse_epoch      an older controller, fenced since
             known already ─▶ ignore           a repetition
                      late ─▶ refuse_late      the controller has given it out anew by now
               else ─▶ run | cancel
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass, field
from typing import Literal

from ..infra.clock import NS_PER_S
from ..schemas.records import Assignment

Decision = Literal["run", "cancel", "ignore", "refuse_epoch", "refuse_late"]
MAX_KNOWN = 10_000  # attempt ids remembered to tell repetitions


@dataclass(slots=True)
class Claims:
    """The state behind the decisions: highest epoch, attempts seen, since when what is read was written."""

    worker_id: str
    epoch: int = -1
    caught_up_s: float = 0.0  # of CaughtUp: a record read now was written after this steady time
    known: OrderedDict[str, None] = field(default_factory=OrderedDict[str, None])

    def decide(self, assignment: Assignment, *, now_ns: int, steady_s: float) -> Decision:
        """What to do; `steady_s` must go on while the process is stopped."""
        if assignment.worker_id != self.worker_id:
            return "ignore"
        if assignment.epoch < self.epoch:
            return "refuse_epoch"
        self.epoch = assignment.epoch
        if assignment.action == "cancel":
            return "cancel"
        if assignment.action != "run" or assignment.task is None or assignment.attempt_id in self.known:
            return "ignore"
        self._remember(assignment.attempt_id)
        return "refuse_late" if self.age_s(assignment, now_ns, steady_s) > assignment.claim_s else "run"

    def age_s(self, assignment: Assignment, now_ns: int, steady_s: float) -> float:
        """How long ago it was given out, at most.

        It was written after `caught_up_s`, which bounds its age without comparing clocks; only past that bound (the
        process was stopped, or the broker away) does the controller's clock count against ours.
        """
        bound = steady_s - self.caught_up_s
        return min(bound, max(0.0, (now_ns - assignment.at_ns) / NS_PER_S))

    def _remember(self, attempt_id: str) -> None:
        self.known[attempt_id] = None
        if len(self.known) > MAX_KNOWN:
            self.known.popitem(last=False)
