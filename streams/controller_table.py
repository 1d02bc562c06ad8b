"""The transition table: what each event does to a rollout in each phase. `docs/lifecycle.md` holds it in words.

new ──▶ queuing ──▶ preparing ──▶ running ──▶ done        preparing, running ──▶ closing ──▶ done
           ▲            └─────────────┴──────▶ queuing (a try is left, or it was handed back)
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from . import controller_actions as act
from .controller_actions import Cause
from .controller_state import ControllerState, Live, Phase


@dataclass(frozen=True, slots=True)
class Transition:
    """What an event does, where it may lead, and what it means in words."""

    act: Callable[[ControllerState, Live, Cause, int], None]
    to: tuple[Phase, ...]
    says: str


TABLE: dict[tuple[Phase, str], Transition] = {
    ("new", "run"): Transition(
        act.admit, ("queuing", "closing"), "a new rollout; one that can never run fails at once"
    ),
    ("queuing", "dispatch"): Transition(act.give, ("preparing",), "given to a worker with a free slot"),
    ("queuing", "wake"): Transition(act.enqueue, ("queuing",), "its back-off is over, or a resource it waits for came"),
    ("queuing", "expire_due"): Transition(
        act.expire_queued, ("closing",), "past rollout_timeout_s: an empty attempt is minted and closed as timeout"
    ),
    ("queuing", "cancel"): Transition(act.cancel_queued, ("closing",), "an empty attempt is minted and closed"),
    ("queuing", "pause"): Transition(act.pause, ("queuing",), "not given out while paused"),
    ("queuing", "resume"): Transition(act.resume, ("queuing",), "given out again"),
    ("preparing", "begun"): Transition(act.begin, ("running",), "its begin batch is in the log"),
    ("preparing", "claim_due"): Transition(
        act.claim_due, ("preparing", "closing"), "not begun within claim_s: unclaimed, not a try"
    ),
    ("preparing", "expire_due"): Transition(act.expire_open, ("closing",), "past rollout_timeout_s: timeout, final"),
    ("preparing", "ended"): Transition(act.ended, ("queuing", "closing", "done"), "ended before its begin was seen"),
    ("preparing", "cancel"): Transition(act.cancel_open, ("closing",), "cancelled"),
    ("preparing", "pause"): Transition(act.pause, ("preparing",), "goes on, but is not tried again while paused"),
    ("preparing", "resume"): Transition(act.resume, ("preparing",), "may be tried again"),
    ("running", "watch_due"): Transition(
        act.watch_due,
        ("running", "closing"),
        "past timeout_s: timeout; no heartbeat named it for unresponsive_s: unresponsive",
    ),
    ("running", "expire_due"): Transition(act.expire_open, ("closing",), "past rollout_timeout_s: timeout, final"),
    ("running", "ended"): Transition(act.ended, ("queuing", "closing", "done"), "its first end marker decided it"),
    ("running", "cancel"): Transition(act.cancel_open, ("closing",), "cancelled"),
    ("running", "pause"): Transition(act.pause, ("running",), "goes on, but is not tried again while paused"),
    ("running", "resume"): Transition(act.resume, ("running",), "may be tried again"),
    ("closing", "ended"): Transition(act.ended, ("queuing", "closing", "done"), "its first end marker decided it"),
    ("closing", "repeat_due"): Transition(act.repeat, ("closing",), "the end marker is written again"),
    ("closing", "expire_due"): Transition(act.stay, ("closing",), "no try follows its end"),
    ("closing", "cancel"): Transition(act.cancel_open, ("closing",), "closed as cancelled instead"),
    ("closing", "pause"): Transition(act.pause, ("closing",), "not tried again while paused"),
    ("closing", "resume"): Transition(act.resume, ("closing",), "may be tried again"),
}


def apply(
    state: ControllerState, live: Live, name: str, cause: Cause, now_ns: int, *, phase: Phase | None = None
) -> None:
    """Does what the table says; what it does not name changes nothing."""
    found = TABLE.get((phase or live.phase, name))
    if found is None:
        state.ignored += 1
        return
    found.act(state, live, cause, now_ns)


def markdown() -> str:
    """The table for people."""
    rows = [f"| {phase} | {event} | {', '.join(t.to)} | {t.says} |" for (phase, event), t in TABLE.items()]
    return "\n".join(["| phase | event | next | what happens |", "|---|---|---|---|", *rows])
