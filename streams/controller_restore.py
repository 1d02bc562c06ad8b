"""What a controller reads before it gives anything out: its own rollouts, then what it had consumed when it stopped."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from ..infra.kafka import Message, Position, Reader, partitions
from ..infra.settings import Settings
from ..infra.taking import Taking
from ..infra.to_end import to_end
from ..schemas.records import Decision, Resource, Rollout, Worker
from ..schemas.topics import DECISIONS, RESOURCES, ROLLOUTS, WORKERS
from .controller import ControllerState, step
from .controller_recover import load, recover, settle

# A broker that gives nothing for so long while records are known to be there is taken for gone.
STALLED_S = 60.0
# Tasks and attempts need no second reading: what they led to is in rollouts.
REREAD = (WORKERS, RESOURCES, DECISIONS)


def restore(
    settings: Settings,
    state: ControllerState,
    taking: Taking,
    committed: Mapping[Position, int],
    *,
    epoch: int,
    now_ns: int,
) -> None:
    """Fills an empty state. `committed`: next offset of each input; what lies behind it comes as new events.

    Raises Unavailable, DataLost.
    """

    def take_rollout(message: Message) -> None:
        record = taking.record(message)
        if isinstance(record, Rollout):
            load(state, record, now_ns)

    def take_again(message: Message) -> None:
        record = taking.record(message)
        if isinstance(record, Worker):  # heard when it was sent: one that died since must not look alive
            step(state, record, min(now_ns, record.beat_ns))
        elif isinstance(record, (Resource, Decision)):
            step(state, record, now_ns)

    read(settings, {(ROLLOUTS.name, p): None for p in range(partitions(settings, ROLLOUTS))}, take_rollout)
    recover(state, epoch, now_ns)
    read(settings, {(t.name, 0): committed[t.name, 0] for t in REREAD}, take_again)
    settle(state)


def read(settings: Settings, ends: Mapping[Position, int | None], take: Callable[[Message], None]) -> None:
    """Reads partitions from their beginning to an offset, or to their end where it is null."""
    reader = Reader(settings, "controller")
    try:
        marks = {position: reader.watermarks(position) for position in ends}
        until = {p: marks[p][1] if end is None else end for p, end in ends.items() if marks[p][1] > marks[p][0]}
        until = {p: end for p, end in until.items() if end > marks[p][0]}
        if not until:
            return
        reader.assign({p: marks[p][0] for p in until})
        for message in to_end(reader, until, silence_s=STALLED_S):
            take(message)
    finally:
        reader.close()
