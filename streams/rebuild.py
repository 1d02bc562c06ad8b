"""A rollout's trajectories made anew, by hand, from the raw log: by the assembler's own core, outside its group.

Says whether what the topic holds is what the log says. Changes nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from typing import cast

from ..infra.clock import NS_PER_S
from ..infra.kafka import OFFSET_BEGINNING, Position, Reader
from ..infra.kafka import Message as Raw
from ..infra.registry import connect
from ..infra.settings import Settings
from ..infra.to_end import to_end
from ..schemas.errors import InvalidRecord
from ..schemas.records import Reward, SpanBatch, Trajectory
from ..schemas.serde import Decoder, to_plain
from ..schemas.topics import REWARDS, SPANS, TOPICS, TRAJECTORIES, partition_of
from .assembler import Assembler
from .messages import Emitted, Late, Message, Output, Policy, Refused, Source
from .texts import check_ids

MAX_DIFFERENCES = 30


@dataclass(slots=True)
class Rebuilt:
    """What the log makes of a rollout."""

    trajectories: dict[str, Trajectory] = field(default_factory=dict[str, Trajectory])  # last revision by attempt
    remarks: list[str] = field(default_factory=list[str])  # refused and late events, lost records
    records: int = 0  # of the rollout


@dataclass(frozen=True, slots=True)
class Compared:
    """One attempt: as rebuilt, as it is in the topic (null = not there), and what differs."""

    attempt_id: str
    rebuilt: Trajectory | None
    published: Trajectory | None
    differences: tuple[str, ...]


def rebuild(messages: Iterable[Message], policy: Policy | None = None) -> Rebuilt:
    """Runs the core over a rollout's events of one partition, each topic's in the log's order, and closes all of it."""
    out = Rebuilt()
    core = Assembler(policy)
    now_ns = NS_PER_S
    for message in messages:
        if message.partition not in core.partitions:
            core.assign(message.partition, spans=0, rewards=0)
        out.records += 1
        _note(out, core.add(message, now_ns))
    _note(out, core.tick(now_ns + 2 * int(core.policy.absolute_s * NS_PER_S)))
    return out


def _note(out: Rebuilt, outputs: Iterable[Output]) -> None:
    for output in outputs:
        match output:
            case Emitted(_, trajectory, _):
                out.trajectories[trajectory.attempt_id] = trajectory
            case Refused(message, error):
                out.remarks.append(f"{message.topic}[{message.partition}]@{message.offset} is refused: {error}")
            case Late(_, attempt_id, reason, events):
                out.remarks.append(f"{events} events of {attempt_id or 'no attempt'} are in no trajectory: {reason}")
            case _:
                pass


def compare(rebuilt: Mapping[str, Trajectory], published: Mapping[str, Trajectory]) -> list[Compared]:
    """Attempt by attempt, those of the topic that the log does not yield included."""
    out: list[Compared] = []
    for attempt_id in sorted(rebuilt.keys() | published.keys()):
        ours, theirs = rebuilt.get(attempt_id), published.get(attempt_id)
        if ours is None or theirs is None:
            why = "the log yields none" if ours is None else "the topic holds none (yet)"
            out.append(Compared(attempt_id, ours, theirs, (why,)))
        else:
            found = tuple(differences(to_plain(ours), to_plain(theirs)))[:MAX_DIFFERENCES]
            out.append(Compared(attempt_id, ours, theirs, found))
    return out


def differences(ours: object, theirs: object, path: str = "") -> Iterator[str]:
    """Paths at which two values differ: what the log says, then what the topic says."""
    if isinstance(ours, dict) and isinstance(theirs, dict):
        a, b = cast("dict[str, object]", ours), cast("dict[str, object]", theirs)
        for name in dict.fromkeys([*a, *b]):
            yield from differences(a.get(name), b.get(name), f"{path}.{name}" if path else name)
    elif isinstance(ours, list) and isinstance(theirs, list):
        a_items, b_items = cast("list[object]", ours), cast("list[object]", theirs)
        if len(a_items) != len(b_items):
            yield f"{path}: {len(a_items)} here, {len(b_items)} in the topic"
        for i, (x, y) in enumerate(zip(a_items, b_items, strict=False)):
            yield from differences(x, y, f"{path}[{i}]")
    elif ours != theirs and not (ours != ours and theirs != theirs):  # NaN is equal to NaN here
        yield f"{path}: {_short(cast('object', ours))} here, {_short(theirs)} in the topic"


def _short(value: object) -> str:
    return f"{len(value)} bytes {value[:12].hex()}…" if isinstance(value, bytes) else repr(value)[:120]


def from_log(settings: Settings, rollout_id: str, policy: Policy | None = None) -> Rebuilt:
    """Reads a rollout's partition of spans and rewards from its first record kept. Raises Unavailable."""
    partition = partition_of(rollout_id, settings.partitions)
    positions: list[Position] = [(SPANS.name, partition), (REWARDS.name, partition)]
    with closing(connect(settings)) as registry, closing(Reader(settings, "rebuild")) as reader:
        decoder, remarks = Decoder(registry), list[str]()
        gone = {at: low for at in positions if (low := reader.watermarks(at)[0])}
        found = _read(reader, positions, lambda m: m.key == rollout_id.encode())
        out = rebuild(_decoded(found, decoder, remarks), policy)
    remarks += [f"{t}[{p}]: records before offset {low} are gone by retention" for (t, p), low in gone.items()]
    out.remarks = remarks + out.remarks
    return out


def published(settings: Settings, rollout_id: str, group_ids: Iterable[str | None]) -> dict[str, Trajectory]:
    """The last revision of each attempt of a rollout in topic trajectories; a group's lie under the group's key."""
    keys = {group_id or rollout_id for group_id in group_ids} or {rollout_id}
    positions: list[Position] = [
        (TRAJECTORIES.name, p) for p in {partition_of(key, settings.partitions) for key in keys}
    ]
    wanted = {key.encode() for key in keys}
    last: dict[str, Trajectory] = {}
    with closing(connect(settings)) as registry, closing(Reader(settings, "rebuild")) as reader:
        decoder = Decoder(registry)
        for m in _read(reader, positions, lambda m: m.key in wanted and m.value is not None):
            try:
                found = decoder.decode(Trajectory, m.value or b"", m.headers)
            except InvalidRecord:  # nobody can read it: a dead letter where it is consumed
                continue
            known = last.get(found.attempt_id)
            if found.rollout_id == rollout_id and (known is None or found.age >= known.age):
                last[found.attempt_id] = found
    return last


def _read(reader: Reader, positions: Sequence[Position], wanted: Callable[[Raw], bool]) -> Iterator[Raw]:
    reader.assign(dict.fromkeys(positions, OFFSET_BEGINNING))
    return filter(wanted, to_end(reader, reader.ends()))


def _decoded(messages: Iterable[Raw], decoder: Decoder, remarks: list[str]) -> Iterator[Message]:
    for m in messages:
        source: Source = "spans" if m.topic == SPANS.name else "rewards"
        try:
            record = None if m.value is None else decoder.decode_topic(TOPICS[source], m.value, m.headers)
            check_ids(record)
        except InvalidRecord as error:
            remarks.append(f"{m.topic}[{m.partition}]@{m.offset} cannot be read: {error}")
            record = None
        assert record is None or isinstance(record, SpanBatch | Reward)
        yield Message(source, m.partition, m.offset, record)
