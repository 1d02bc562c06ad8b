"""What a worker knows of each attempt it holds, and how long attempts take."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from ..schemas.records import Assignment, Task
from .attempt_log import AttemptLog
from .context import Scope

# From an end marker to the next assignment it takes the log, the assembler and a controller's tick.
LOOP_S = 0.25
MAX_AHEAD = 16  # assignments held ready, per slot
SMOOTHING = 0.05  # weight of the newest duration in the mean


@dataclass(eq=False, slots=True)
class Waiting:
    """An assignment without a slot yet."""

    assignment: Assignment
    task: Task
    since_s: float
    expires_s: float


@dataclass(eq=False, slots=True)
class Running:
    """An attempt whose agent is at work."""

    assignment: Assignment
    task: Task
    log: AttemptLog
    scope: Scope
    start_ns: int
    start_s: float
    deadline_s: float
    heard_s: float  # when the last heartbeat was sent that named it and was acknowledged

    def silent(self, at_s: float) -> bool:
        """True if the controller has heard nothing of it for so long that it has given it away."""
        return at_s - self.heard_s > self.task.limits.unresponsive_s


@dataclass(frozen=True, slots=True)
class Links:
    """How agents reach models: the gateway's URL and the key of an attempt."""

    gateway_url: str
    key: Callable[[str, str], str]  # (rollout_id, attempt_id) -> API key


@dataclass(slots=True)
class Pace:
    """How long attempts take, as a mean that forgets."""

    mean_s: float | None = None

    def took(self, seconds: float) -> None:
        """One more has ended."""
        self.mean_s = seconds if self.mean_s is None else self.mean_s + SMOOTHING * (seconds - self.mean_s)

    def ahead(self, slots: int) -> int:
        """How many assignments to hold ready so that slots stay busy while the controller answers.

        What the slots get done in that time: many for short attempts, none for long ones, which would only keep others
        from another worker's free slot.
        """
        return 0 if self.mean_s is None else int(slots * min(MAX_AHEAD, LOOP_S / max(self.mean_s, 1e-6)))
