"""Harm that is done by what the loop is given: bad, outsized and repeated input, each with what must come of it."""

from __future__ import annotations

import json
from collections import Counter

from spanloop.schemas.records import SpanBatch, Task
from spanloop.schemas.semconv import BODY

from . import inputs
from .asking import ends_now
from .rig import Rig
from .seen import Seen

# Rollouts before and behind poison, and what they may take.
HALF, HALF_S = 500, 300.0


def poison(rig: Rig) -> None:
    """The three kinds into every topic; the audit looks for each consumer's dead letters."""
    inputs.poison(rig.settings, rig.fed)


def poison_among_thousands(rig: Rig) -> None:
    """The three kinds into every topic, with good records before and behind, a thousand and more together (SP-22)."""
    began = ends_now(rig.settings)

    def pour(first: int) -> None:
        goal = rig.flow.done() + HALF
        inputs.fill(rig.settings, range(first, first + HALF))
        rig.wait(lambda: rig.flow.done() >= goal, f"{HALF} rollouts more", HALF_S)

    pour(0)
    poisoned = {topic: at for topic, *at in inputs.poison(rig.settings, rig.fed)}
    pour(HALF)
    for topic, (partition, offset) in poisoned.items():

        def among(seen: Seen, topic: str = topic, partition: int = partition, offset: int = offset) -> bool:
            good = [x for x in seen.lines if x.topic == topic and x.record and x.offset >= began[topic, x.partition]]
            beside = {x.offset > offset for x in good if x.partition == partition}
            return len(good) >= 2 * HALF and len(beside) == 2

        rig.strike(f"{topic} has {2 * HALF} good records, before and behind the poison", among)


def outsized(rig: Rig) -> None:
    """Too large for the broker, for the controller and for the worker."""
    large, loud = inputs.outsized(rig.settings, rig.fed)

    def refused(seen: Seen) -> bool:
        return large in seen.last_states and seen.last_states[large].status == "failed"

    def cut(seen: Seen) -> bool:
        spans = (s for b in seen.of(SpanBatch) if b.rollout_id == loud for s in b.spans)
        return any(json.loads(s.attributes).get(f"{BODY}.length") == inputs.LOUD_BYTES for s in spans)

    rig.strike("a task that is too large fails", refused)
    rig.strike("a span that is too large is cut, and says of what", cut)


def twice(rig: Rig) -> None:
    """Two producers send every task, and what was said lately is said again."""
    rig.flow.sent_twice.clear()
    rig.flow.twice = True
    inputs.repeat(rig.settings)


def once(rig: Rig) -> None:
    """Only one does."""
    try:
        rig.wait(lambda: rig.flow.sent_twice, "a task that is sent twice")
        inputs.repeat(rig.settings)
    finally:
        rig.flow.twice = False
    sent = list(rig.flow.sent_twice)

    def lies_twice(seen: Seen) -> bool:
        told = Counter(t.rollout_id for t in seen.of(Task))
        return all(told[rollout_id] > 1 for rollout_id in sent)

    rig.strike(f"{len(sent)} tasks lie in the log twice", lies_twice)
