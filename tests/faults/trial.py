"""One fault on a stream of rollouts, and the audit behind it."""

from __future__ import annotations

import math

from .audit import discrepancies
from .faults import Fault
from .flow import GROUP_SIZE
from .rig import GROUPS_PER_BATCH, Rig

# Rollouts go on for so long behind the fault: what is broken for good must not be missed.
AFTER_S = 3.0
# Only these may end a process that nobody killed: its broker or its place was gone for longer than it is patient.
MAY_END = ("kill", "freeze", "broker")


def trial(rig: Rig, fault: Fault, *, full: bool = False) -> None:
    """Rollouts flow before, during and after a fault; all end, and the audit finds nothing. Raises AssertionError."""
    ended = len(rig.parts.ended)
    rig.flow.ask(GROUPS_PER_BATCH)
    rig.progress(GROUP_SIZE)
    fault.run(rig, full=full)
    rig.flow.ask(math.ceil(AFTER_S * rig.rate / GROUP_SIZE / GROUPS_PER_BATCH) * GROUPS_PER_BATCH)
    rig.settle()
    gone = [(e.name, e.last_words) for e in rig.parts.ended[ended:]]
    assert not gone or fault.kind in MAY_END, f"{fault.name} has to be borne; these ended: {gone}"
    found = discrepancies(rig.audit())
    assert not found, f"{len(found)} discrepancies after {fault.name}: {found[:20]}"
