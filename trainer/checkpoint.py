"""Checkpoints: weights, optimiser, random state and where the feed stood, in one folder that appears by rename.

step-000012/
  model_…pt optim_…pt extra_…pt     written by the PolicyTrainer
  groups.avro                       trajectories of open and ready groups
  decisions.avro                    decisions of this step, sent again after a restart
  manifest.json                     the rest
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, TypeVar, cast

import fastavro

from ..infra.kafka import Position
from ..schemas.records import Decision, Trajectory
from ..schemas.serde import from_dict, parsed_schema, schema_json, to_plain
from ..schemas.topics import Record
from .groups import ClosedGroup, GroupState, OpenGroup
from .step import PolicyTrainer
from .weights import install_folder, stage_folder

T = TypeVar("T")
MANIFEST, GROUPS, DECISIONS = "manifest.json", "groups.avro", "decisions.avro"


@dataclass(frozen=True, slots=True)
class Manifest:
    """Where a trainer stood after `step`."""

    step: int  # steps done
    policy_version: int | None  # newest version published of these weights' line; None = none yet
    digest: str | None = None  # sha256 of that version as it was computed here
    unpublished: int = 1  # optimiser steps since that version was published; the first weights count as one
    batches_offset: int = 0  # where to go on reading `batches`
    offsets: dict[Position, int] = field(default_factory=dict[Position, int])  # where to go on reading `trajectories`
    config_digest: str = ""


def folder_of(checkpoint_dir: Path, step: int) -> Path:
    """Where a step's checkpoint lies."""
    return checkpoint_dir / f"step-{step:06d}"


def newest(checkpoint_dir: Path) -> Path | None:
    """The newest whole checkpoint; None = there is none."""
    found = [p for p in checkpoint_dir.glob("step-*[0-9]") if (p / MANIFEST).exists()]
    return max(found, key=_step_of, default=None)


def _step_of(folder: Path) -> int:
    return int(folder.name.removeprefix("step-"))


def save(
    checkpoint_dir: Path,
    manifest: Manifest,
    groups: GroupState,
    decisions: Iterable[Decision],
    trainer: PolicyTrainer,
    *,
    keep: int,
) -> None:
    """Writes a checkpoint by rename and removes all but the newest `keep`, and what a kill left half written."""

    def fill(folder: Path) -> None:
        trainer.save(folder)
        _write_records(folder / GROUPS, Trajectory, _held(groups))
        _write_records(folder / DECISIONS, Decision, decisions)
        state = {"manifest": _plain(manifest), "groups": _describe(groups)}
        (folder / MANIFEST).write_text(json.dumps(state, indent=1), "utf-8")

    target = folder_of(checkpoint_dir, manifest.step)
    install_folder(stage_folder(target, fill), target)
    for old in [*sorted(checkpoint_dir.glob("step-*[0-9]"), key=_step_of)[:-keep], *checkpoint_dir.glob("step-*.tmp")]:
        shutil.rmtree(old, ignore_errors=True)


def read(folder: Path) -> tuple[Manifest, GroupState, list[Decision]]:
    """What `save` wrote, but for the trainer's own files."""
    state = json.loads((folder / MANIFEST).read_text("utf-8"))
    raw: dict[str, Any] = state["manifest"]
    raw["offsets"] = {(topic, partition): offset for topic, partition, offset in raw["offsets"]}
    groups = _restore(state["groups"], iter(_read_records(folder / GROUPS, Trajectory)))
    return Manifest(**raw), groups, list(_read_records(folder / DECISIONS, Decision))


def _plain(manifest: Manifest) -> dict[str, Any]:
    return asdict(manifest) | {"offsets": [[t, p, o] for (t, p), o in sorted(manifest.offsets.items())]}


def _held(groups: GroupState) -> Iterator[Trajectory]:
    """Trajectories in the order in which `_describe` counts them."""
    for group in groups.open.values():
        yield from group.attempts.values()
    for closed in groups.ready:
        yield from closed.members
    yield from groups.held.values()


def _describe(groups: GroupState) -> dict[str, Any]:
    return {
        "open": [[i, g.first_seen_ns, g.size, len(g.attempts)] for i, g in groups.open.items()],
        "written": {attempt: ns for g in groups.open.values() for attempt, ns in g.written.items()},
        "ready": [[g.group_id, g.size, g.partial, g.order, len(g.members)] for g in groups.ready],
        "closed": sorted(groups.closed),
        "next_order": groups.next_order,
        "late": groups.late,
    }


def _restore(described: dict[str, Any], held: Iterator[Trajectory]) -> GroupState:
    state = GroupState(closed=set(described["closed"]), next_order=described["next_order"], late=described["late"])
    written: dict[str, int] = described.get("written", {})
    for group_id, first_seen_ns, size, count in described["open"]:
        own = {t.attempt_id: t for t in (next(held) for _ in range(count))}
        state.open[group_id] = OpenGroup(first_seen_ns, size, own, {i: written[i] for i in own if i in written})
    for group_id, size, partial, order, count in described["ready"]:
        state.ready.append(ClosedGroup(group_id, tuple(next(held) for _ in range(count)), size, partial, order))
    state.held = {(t.attempt_id, t.revision): t for t in held}
    return state


def _write_records(path: Path, record: type[Record], records: Iterable[Record]) -> None:
    with path.open("wb") as f:
        fastavro.writer(f, parsed_schema(schema_json(record)), (to_plain(r) for r in records))  # pyright: ignore[reportUnknownMemberType] no types


def _read_records(path: Path, record: type[T]) -> list[T]:
    own = parsed_schema(schema_json(cast("type[Record]", record)))
    with path.open("rb") as f:
        return [from_dict(record, cast("dict[str, Any]", x)) for x in fastavro.reader(f, own)]
