"""Whom an order of a person's is about: a rollout or a run, looked up in what the controller wrote."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Sequence
from contextlib import closing
from dataclasses import dataclass, replace

from spanloop.infra.kafka import OFFSET_BEGINNING, Reader
from spanloop.infra.registry import connect
from spanloop.infra.settings import Settings
from spanloop.infra.taking import Taking
from spanloop.infra.to_end import to_end
from spanloop.schemas import orders
from spanloop.schemas.errors import ConfigError
from spanloop.schemas.records import Rollout, Task
from spanloop.schemas.serde import Decoder
from spanloop.schemas.topics import ROLLOUTS


@dataclass(frozen=True, slots=True)
class Subject:
    """Whom an order is about."""

    rollout_id: str | None  # null = the whole run
    run_id: str
    open: int  # rollouts it is about that are not final
    status: str = ""  # of the rollout

    def __str__(self) -> str:
        if self.rollout_id is None:
            return f"run {self.run_id!r} ({self.open} open rollouts)"
        return f"rollout {self.rollout_id} of run {self.run_id!r} ({self.status})"


def find(name: str, rollouts: Iterable[Rollout], *, run: bool = False) -> Subject:
    """The rollout or the run that is called so; of several states of a rollout the last one counts.

    `run`: it is a run, known or not. Raises ConfigError for a name that nobody has, or a rollout that is over.
    """
    last = _last(rollouts)
    found = last.get(name)
    if found is not None and not run:
        if found.final:
            raise ConfigError(f"rollout {name} is over ({found.status}): no order reaches it any more")
        return Subject(name, found.task.run_id, 1, found.status)
    members = [r for r in last.values() if r.task.run_id == name]
    if not members and not run:
        raise ConfigError(
            f"nothing is known of a rollout or a run {name!r}; `spanloop sql 'SELECT * FROM v_rollouts'` lists them, "
            "--run gives the order for a run that has not begun"
        )
    return Subject(None, name, sum(not r.final for r in members))


def again(names: Iterable[str], rollouts: Iterable[Rollout]) -> list[Task]:
    """The tasks of finished rollouts: those named, and of a run that is named every one that failed.

    Raises ConfigError for a name that nobody has, a rollout that is still open, or a run without failures.
    """
    last = _last(rollouts)
    chosen: dict[str, Task] = {}
    for name in names:
        found = [last[name]] if name in last else [r for r in last.values() if r.task.run_id == name]
        if not found:
            raise ConfigError(f"nothing is known of a rollout or a run {name!r}")
        over = [r for r in found if r.final and (name in last or r.status == "failed")]
        if not over:
            state = f"is {found[0].status}" if name in last else "has no failed rollout"
            raise ConfigError(f"{name} {state}: only what is over is queued again; `spanloop cancel` ends what runs")
        chosen |= {r.rollout_id: r.task for r in over}
    return list(chosen.values())


def _last(rollouts: Iterable[Rollout]) -> dict[str, Rollout]:
    """The last state of each."""
    return {r.rollout_id: r for r in rollouts if r.status != "order"}


def tasks_again(settings: Settings, names: Sequence[str]) -> list[Task]:
    """As `again`, over topic `rollouts`. Raises Unavailable besides."""
    return again(names, _read(settings, names))


def order(action: str, about: Subject, reason: str | None = None) -> Task:
    """The order as a task."""
    by_run = {"pause": orders.pause_run, "resume": orders.resume_run, "cancel": orders.cancel_run}
    by_rollout = {"pause": orders.pause, "resume": orders.resume, "cancel": orders.cancel}
    if about.rollout_id is None:
        task = by_run[action](about.run_id)
    else:
        task = by_rollout[action](about.rollout_id, about.run_id)
    return replace(task, reason=reason)


def who(settings: Settings, name: str, *, run: bool = False) -> Subject:
    """As `find`, over topic `rollouts`. Raises Unavailable besides."""
    return find(name, _read(settings, [name]), run=run)


def _read(settings: Settings, names: Sequence[str]) -> list[Rollout]:
    with closing(connect(settings)) as registry, closing(Reader(settings, "orders")) as reader:
        taking = Taking(Decoder(registry), None, threading.Event())
        reader.assign_topics([ROLLOUTS], OFFSET_BEGINNING)
        read = (taking.once(m) for m in to_end(reader, reader.ends()))
        return [r for r in read if isinstance(r, Rollout) and not {r.rollout_id, r.task.run_id}.isdisjoint(names)]
