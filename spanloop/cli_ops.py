"""Commands that keep a deployment going: its health, how far readers are behind, orders to runs and workers."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import asdict, replace
from math import inf
from typing import TYPE_CHECKING, Annotated

import typer
from rich.table import Table
from rich.text import Text

from spanloop.cli import app, connected, err, marked, out, settings_of
from spanloop.infra import logs
from spanloop.schemas.errors import ConfigError, DeliveryFailed

if TYPE_CHECKING:
    from spanloop.infra.facts import Finding
    from spanloop.infra.lag import PartitionLag
    from spanloop.infra.settings import Settings
    from spanloop.schemas.records import Task

Reason = Annotated[str | None, typer.Option(help="Why, for people.")]
Name = Annotated[str, typer.Argument(help="A rollout's id, or a run's.")]
IsRun = Annotated[bool, typer.Option("--run", help="A run that nothing is known of yet.")]
ORDER_S, ORDER_CLOSE_S = 10.0, 1.0  # what a broker gets to take an order, and the client to end
STYLE = {"ok": "green", "warn": "yellow", "fail": "bold red"}


@app.command()
def doctor(
    context: typer.Context,
    fix: Annotated[bool, typer.Option(help="Create what is missing, alter settings; never partition counts.")] = False,
    format: Annotated[str, typer.Option(help="table or json.")] = "table",
    longest_attempt_s: Annotated[
        float, typer.Option(help="What an attempt may take at most; spans must be kept for longer.")
    ] = 86_400.0,  # streams.messages.Policy.absolute_s
) -> None:
    """Check broker, topics, registry, ClickHouse and this machine; say what to do. Status 1 where something fails."""
    from spanloop.infra import doctor_fix
    from spanloop.infra.doctor import examine, worst
    from spanloop.infra.doctor_facts import gather

    _check_format(format)
    settings = settings_of(context)
    if not 0 < longest_attempt_s < inf:
        raise ConfigError(f"--longest-attempt-s {longest_attempt_s:g}: expected seconds, more than 0")
    facts = gather(settings, longest_attempt_s=longest_attempt_s)
    fixed: list[str] = []
    if fix:
        fixed = doctor_fix.fix(settings, facts)
        facts = gather(settings, longest_attempt_s=longest_attempt_s) if fixed else facts
    findings, fixed = [_masked(f) for f in examine(facts)], [logs.masked(line) for line in fixed]
    status = worst(findings)
    if format == "json":
        told = {"status": status, "findings": [asdict(f) for f in findings], "fixed": fixed}
        out.file.write(json.dumps(told, indent=1) + "\n")
    else:
        _show_findings(findings, fixed)
    if status == "fail":
        raise typer.Exit(1)


def _masked(f: Finding) -> Finding:
    """A finding that may be shown: services repeat addresses and settings in what they answer."""
    found, about, expected, todo = map(logs.masked, (f.found, f.about, f.expected, f.todo))
    return replace(f, found=found, about=about, expected=expected, todo=todo)


def _show_findings(findings: Iterable[Finding], fixed: Iterable[str]) -> None:
    for line in fixed:
        out.print(marked("fixed", "green", f" {line}"), soft_wrap=True)
    for f in findings:
        about = f" {f.about}" if f.about else ""
        out.print(marked(f"{f.status:5}", STYLE[f.status], f" {f.check}{about}: {f.found}"), soft_wrap=True)
        for label, text in (("expected", f.expected), ("to do", f.todo)):
            if text:
                out.print(f"      {label}: {text}", highlight=False, soft_wrap=True)


@app.command()
def lag(
    context: typer.Context,
    group: Annotated[str | None, typer.Argument(help="controller, assembler or sink; default all.")] = None,
    format: Annotated[str, typer.Option(help="table or json.")] = "table",
) -> None:
    """Show how far each consumer group is behind, partition by partition where it is."""
    from contextlib import closing

    from spanloop.infra.groups import GROUPS
    from spanloop.infra.lag import Lag

    _check_format(format)
    if group is not None and group not in GROUPS:
        raise ConfigError(f"no consumer group is called {group!r}; there are: {', '.join(GROUPS)}")
    settings = connected(context)
    found: dict[str, list[PartitionLag]] = {}
    for name in GROUPS if group is None else (group,):
        with closing(Lag(settings, name, GROUPS[name])) as asked:
            found[name] = asked.parts()
    if format == "json":
        told = {name: [{**asdict(part), "lag": part.lag} for part in parts] for name, parts in found.items()}
        out.file.write(json.dumps(told, indent=1) + "\n")
    else:
        _show_lag(found.items(), every=group is not None)


def _show_lag(found: Iterable[tuple[str, Sequence[PartitionLag]]], *, every: bool) -> None:
    table = Table("group", "topic", "partition", "committed", "end", "behind")
    for name, parts in found:
        table.add_row(name, "", "", "", "", f"{sum(p.lag for p in parts):,}", style="bold")
        for part in parts:
            if every or part.lag:
                committed = "never" if part.committed is None else str(part.committed)
                table.add_row("", part.topic, str(part.partition), committed, str(part.end), f"{part.lag:,}")
    out.print(table)


def _check_format(format: str) -> None:
    if format not in ("table", "json"):
        raise ConfigError(f"--format {format}: expected table or json")


@app.command()
def pause(context: typer.Context, name: Name, run: IsRun = False, reason: Reason = None) -> None:
    """Give out nothing more of a rollout or a run until `resume`; what runs goes on."""
    _order(context, "pause", name, run=run, reason=reason)


@app.command()
def resume(context: typer.Context, name: Name, run: IsRun = False, reason: Reason = None) -> None:
    """Give out again what `pause` held back."""
    _order(context, "resume", name, run=run, reason=reason)


@app.command()
def cancel(context: typer.Context, name: Name, run: IsRun = False, reason: Reason = None) -> None:
    """End a rollout, or all open ones of a run, as cancelled: workers stop their agents."""
    _order(context, "cancel", name, run=run, reason=reason)


@app.command()
def requeue(
    context: typer.Context,
    names: Annotated[list[str], typer.Argument(help="Rollouts that are over, or runs: of those every failed one.")],
    reason: Reason = None,
) -> None:
    """Do finished rollouts once more, as new ones that say what they repeat; members of a group as a new group."""
    from spanloop.orders import tasks_again
    from spanloop.schemas import orders

    settings = connected(context)
    for task in orders.requeue(tasks_again(settings, names), reason):
        _send(settings, task, f"{task.requeued_from} again as {task.rollout_id}")


@app.command()
def limit(
    context: typer.Context,
    run: Annotated[str, typer.Argument(help="A run's id.")],
    attempts: Annotated[int | None, typer.Argument(min=1, help="None given lifts the limit.")] = None,
) -> None:
    """Let a run have so many attempts out at once from now on."""
    from spanloop.schemas import orders

    task = orders.limit_run(run, attempts)
    _send(connected(context), task, f"limit run {run!r} to {attempts or 'any number of'} attempts")


@app.command()
def drain(
    context: typer.Context,
    worker: Annotated[str, typer.Argument(help="A worker's name or id; * = all.")],
    undo: Annotated[bool, typer.Option("--undo", help="Give it work again.")] = False,
    reason: Reason = None,
) -> None:
    """Give a worker nothing more; it ends what it has and stays."""
    from spanloop.schemas import orders

    task = orders.undrain(worker) if undo else orders.drain(worker, reason)
    _send(connected(context), task, f"{task.action} worker {worker!r}")


def _order(context: typer.Context, action: str, name: str, *, run: bool, reason: str | None) -> None:
    from spanloop.orders import order, who

    settings = connected(context)
    found = who(settings, name, run=run)
    _send(settings, order(action, found, reason), f"{action} {found}")


def _send(settings: Settings, task: Task, said: str) -> None:
    from spanloop.infra.producer import Producer
    from spanloop.streams.controller_orders import why_refused

    if wrong := why_refused(task):
        raise ConfigError(wrong)
    producer = Producer(settings, "order")
    try:
        ack = producer.send_wait(task, ORDER_S)
    finally:
        with suppress(DeliveryFailed):  # told by the call above
            producer.close(ORDER_CLOSE_S)
    out.print(f"{said}: sent as tasks[{ack.partition}]@{ack.offset}", highlight=False, soft_wrap=True)


@app.command()
def assemble(
    context: typer.Context,
    rollout: Annotated[str, typer.Option("--from-log", metavar="ROLLOUT", help="A rollout's id, ro-…")],
) -> None:
    """Make a rollout's trajectories anew from the raw log, print them, compare them with the topic's last revisions.

    Changes nothing. Status 1 where they differ.
    """
    from spanloop.consumers.plain import plain
    from spanloop.schemas.serde import to_plain
    from spanloop.streams.rebuild import compare, from_log, published

    settings = connected(context)
    rebuilt = from_log(settings, rollout)
    if not rebuilt.records:
        raise ConfigError(f"the log holds no span and no reward of rollout {rollout!r} (prefix {settings.prefix!r})")
    made = rebuilt.trajectories
    there = published(settings, rollout, {t.context.group_id for t in made.values()})
    for trajectory in made.values():
        out.file.write(json.dumps(plain(to_plain(trajectory)), ensure_ascii=False) + "\n")
    for remark in rebuilt.remarks:
        _tell(marked("note", "yellow", f" {remark}"))
    differ = False
    for found in compare(made, there):
        differ = differ or bool(found.differences)
        if not found.differences and found.published is not None:
            _tell(marked("equal", "green", f" {found.attempt_id}: revision {found.published.revision} in the topic"))
        for line in found.differences:
            _tell(marked("differs", "bold red", f" {found.attempt_id}: {line}"))
    if differ:
        raise typer.Exit(1)


def _tell(line: Text) -> None:
    err.print(line, soft_wrap=True)
