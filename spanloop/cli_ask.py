"""Commands that ask: what topics there are, SQL, one rollout, a topic's records."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.table import Table

from spanloop.cli import app, connected, out, settings_of

if TYPE_CHECKING:
    from spanloop.consumers.query import Result


# Every row is as wide as the widest, and where nothing is a terminal there is no other bound.
TABLE_WIDTH = 400


@app.command()
def topics(context: typer.Context) -> None:
    """List the topics: what each carries, how it is keyed and kept."""
    from spanloop.infra.kafka import partitions
    from spanloop.schemas.topics import DAY_MS, KEEP, TOPICS

    settings = settings_of(context)
    table = Table("topic", "record", "partitions", "cleanup", "kept for", "largest record")
    for topic in TOPICS.values():
        kept = "ever" if topic.retention_ms == KEEP else f"{topic.retention_ms / DAY_MS:g} days"
        size = f"{topic.max_bytes >> 20} MiB"
        count = str(partitions(settings, topic))
        table.add_row(topic.full(settings.prefix), topic.record.__name__, count, topic.cleanup, kept, size)
    out.print(table)


@app.command()
def sql(
    context: typer.Context,
    statement: Annotated[str, typer.Argument(help="A SELECT over the v_… views.")],
    home: Annotated[Path | None, typer.Option(help="Folder of a finished run.")] = None,
    format: Annotated[str, typer.Option(help="table, csv, tsv or json.")] = "table",
) -> None:
    """Ask ClickHouse, of a running stack or of a finished run's folder."""
    from spanloop.consumers.query import opened, render

    with opened(settings_of(context), home) as query:
        result = query(statement)
    if format == "table":
        show_table(result)
    else:
        out.file.write(render(result, format))


@app.command()
def show(
    context: typer.Context,
    rollout: Annotated[str, typer.Argument(help="A rollout id, ro-…")],
    home: Annotated[Path | None, typer.Option(help="Folder of a finished run.")] = None,
    messages: Annotated[bool, typer.Option("--messages", help="With what each call was sent and answered.")] = False,
) -> None:
    """Show one rollout: attempts, span tree, calls, rewards, rows."""
    from spanloop.consumers.query import opened
    from spanloop.show import rollout_tree

    with opened(settings_of(context), home) as query:
        out.print(rollout_tree(query, rollout, messages=messages))


@app.command()
def tail(
    context: typer.Context,
    topic: Annotated[str, typer.Argument(help="A topic, such as spans.")],
    home: Annotated[Path | None, typer.Option(help="Folder of a finished run: prints its exported topic.")] = None,
    beginning: Annotated[bool, typer.Option("--from-beginning", help="Not only what comes from now on.")] = False,
    count: Annotated[int | None, typer.Option("-n", min=1, help="Stop after so many records.")] = None,
    where: Annotated[
        str | None, typer.Option(help="Only records of which it holds: \"value < 0.5 and @key ~ '^ro-1'\".")
    ] = None,
) -> None:
    """Print a topic's records as JSON lines, as they come."""
    from spanloop.consumers.tail import exported, live, topic_named
    from spanloop.consumers.where import where as test_of

    topic_named(topic)
    holds = test_of(where) if where is not None else bool
    lines = exported(home, topic) if home is not None else live(connected(context), topic, beginning=beginning)
    for number, line in enumerate(filter(holds, lines), 1):
        out.file.write(json.dumps(line, ensure_ascii=False) + "\n")
        out.file.flush()  # whoever reads a pipe waits for it
        if number == count:
            break


def show_table(result: Result) -> None:
    """Prints a query's result as a table."""
    table = Table(*result.columns)
    for row in result.rows:
        table.add_row(*("" if cell is None else str(cell) for cell in row))
    out.print(table, width=min(out.width, TABLE_WIDTH))
