"""Commands about dead letters: what was refused and why, and putting it back once the cause is gone."""

from __future__ import annotations

import json
from collections.abc import Iterable
from contextlib import closing
from dataclasses import replace
from datetime import datetime, timezone
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.table import Table
from rich.text import Text

from spanloop.cli import app, connected, marked, out, reached
from spanloop.infra.clock import NS_PER_S
from spanloop.schemas.errors import REASONS, ConfigError
from spanloop.schemas.topics import TOPICS

if TYPE_CHECKING:
    from spanloop.consumers.letters import Letter, Selection

dlq = typer.Typer(no_args_is_help=True, help="Read dead letters, and put them back.")
app.add_typer(dlq, name="dlq")

Reasons = Annotated[list[str] | None, typer.Option("--reason", help="Only of this reason; repeatable.")]
Topics = Annotated[list[str] | None, typer.Option("--topic", help="Only about this topic; repeatable.")]
Consumers = Annotated[list[str] | None, typer.Option("--consumer", help="Only refused by this one; repeatable.")]
Offsets = Annotated[str | None, typer.Option("--offset", help="Only these letters: 17, 10-20 or 10-.")]
MESSAGE_CHARS = 100


@dlq.command("list")
def list_letters(
    context: typer.Context,
    reason: Reasons = None,
    topic: Topics = None,
    consumer: Consumers = None,
    offset: Offsets = None,
    summary: Annotated[bool, typer.Option(help="Only how many there are of each kind.")] = False,
    format: Annotated[str, typer.Option(help="table or json (a line each).")] = "table",
) -> None:
    """List dead letters: where each was, who refused it, why, and whether it was put back."""
    from spanloop.consumers import letters

    if format not in ("table", "json"):
        raise ConfigError(f"--format {format}: expected table or json")
    wanted = _selection(reason, topic, consumer, offset)
    found = list(letters.read(reached(context), bodies=False))
    done = letters.replayed(found)
    chosen = [letter for letter in found if wanted.takes(letter)]
    if summary:
        _show_summary(chosen)
    elif format == "json":
        for letter in chosen:
            dead = letter.dead
            told = {"letter": letter.offset, "at_ns": dead.at_ns, "consumer": dead.consumer, "topic": dead.topic,
                    "partition": dead.partition, "offset": dead.offset, "reason": dead.reason,
                    "message": dead.message, "replayed": letter.offset in done}  # fmt: skip
            out.file.write(json.dumps(told, ensure_ascii=False) + "\n")
    else:
        _show(chosen, done)


def _show_summary(chosen: Iterable[Letter]) -> None:
    from spanloop.consumers.letters import summary

    table = Table("consumer", "topic", "reason", "letters")
    for (consumer, topic, reason), count in summary(chosen).most_common():
        table.add_row(consumer, topic, reason, f"{count:,}")
    out.print(table)


def _show(chosen: Iterable[Letter], done: set[int]) -> None:
    table = Table("letter", "at", "refused by", "was at", "reason", "put back", "message")
    for letter in chosen:
        dead = letter.dead
        at = datetime.fromtimestamp(dead.at_ns / NS_PER_S, timezone.utc).isoformat(sep=" ", timespec="seconds")
        put_back = "yes" if letter.offset in done else ""
        message = dead.message[:MESSAGE_CHARS]
        table.add_row(str(letter.offset), at, dead.consumer, letter.where, dead.reason, put_back, message)
    out.print(table)


@dlq.command("show")
def show_letter(
    context: typer.Context,
    letter: Annotated[int, typer.Argument(help="Its offset in dead-letters, as `dlq list` has it.")],
    raw: Annotated[Path | None, typer.Option(help="Write the refused bytes to this file.")] = None,
) -> None:
    """Show one dead letter, its record decoded where that can be done."""
    from spanloop.consumers import letters
    from spanloop.infra.registry import connect
    from spanloop.schemas.serde import Decoder

    settings = reached(context)
    found = next((x for x in letters.read(settings, first=letter) if x.offset == letter), None)
    if found is None:
        raise ConfigError(f"there is no dead letter {letter}; `spanloop dlq list` has them all")
    if raw is not None:
        raw.write_bytes(found.dead.raw or b"")
    with closing(connect(settings)) as registry:
        told = letters.shown(found, Decoder(registry))
    out.file.write(json.dumps(told, indent=1, ensure_ascii=False) + "\n")


@dlq.command("replay")
def replay_letters(
    context: typer.Context,
    reason: Reasons = None,
    topic: Topics = None,
    consumer: Consumers = None,
    offset: Offsets = None,
    every: Annotated[bool, typer.Option("--all", help="All there are.")] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only say what would be done.")] = False,
    again: Annotated[bool, typer.Option("--again", help="Those too that were put back before.")] = False,
) -> None:
    """Put refused records back where they were, once each; do away with the cause first."""
    from spanloop.consumers.letters import Kept
    from spanloop.consumers.replay import replay

    wanted = _selection(reason, topic, consumer, offset)
    if not (every or reason or topic or consumer or offset):
        raise ConfigError("choose letters by --reason, --topic, --consumer or --offset, or give --all")
    put = kept = 0
    for done in replay(connected(context), wanted, again=again, dry_run=dry_run):
        letter = f"letter {done.letter.offset} ({done.letter.where}, {done.letter.dead.reason})"
        if isinstance(done.put, Kept):
            kept += 1
            said = marked("kept", "yellow", f" {letter}: {done.put.why}")
        else:
            put += 1
            at = f"{done.put.topic}[{done.put.partition}]"
            said = Text(f"would put back {letter} on {at}")
            if done.offset is not None:
                said = marked("put back", "green", f" {letter} at {at}@{done.offset}")
        out.print(said, soft_wrap=True)
    out.print(f"{put} {'would be put' if dry_run else 'put'} back, {kept} kept", highlight=False)


def _selection(
    reasons: list[str] | None, topics: list[str] | None, consumers: list[str] | None, offsets: str | None
) -> Selection:
    from spanloop.consumers.letters import Selection

    for given, known, what in ((reasons, REASONS, "reason"), (topics, TOPICS, "topic")):
        if unknown := sorted(set(given or ()) - set(known)):
            raise ConfigError(f"--{what} {unknown[0]}: expected one of {', '.join(known)}")
    selection = Selection(reasons or (), topics or (), consumers or ())
    if offsets is None:
        return selection
    first, dash, last = offsets.partition("-")
    if not first.isdecimal() or (last and not last.isdecimal()) or int(last or first) < int(first):
        raise ConfigError(f"--offset {offsets}: expected 17, 10-20 or 10-")
    return replace(selection, first=int(first), last=int(last) if last else None if dash else int(first))
