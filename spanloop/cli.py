"""The `spanloop` command: every long-lived part, and what people ask of a running or a finished run."""

from __future__ import annotations

import os
import sys
from io import TextIOWrapper
from pathlib import Path
from typing import Annotated, Any, NoReturn, TextIO

import typer
from rich.console import Console
from rich.text import Text

from spanloop import __version__
from spanloop.infra import logs
from spanloop.infra.process import BROKER_PATIENCE_S, leave_with_parent
from spanloop.infra.settings import LOCAL, Profile, Settings
from spanloop.schemas.errors import ConfigError, SpanloopError

VERBOSE = "spanloop.verbose"


def width_of(stream: TextIO | None) -> int | None:
    """Columns for a console; None = the terminal's. Whatever reads a pipe or a file wants lines whole."""
    return None if stream is None or stream.isatty() or "COLUMNS" in os.environ else 100_000


app = typer.Typer(
    no_args_is_help=True, add_completion=False, pretty_exceptions_enable=False, help="Train agents from their events."
)
# What is printed is data: brackets and colons in it are its own.
out = Console(markup=False, emoji=False, width=width_of(sys.stdout))
err = Console(stderr=True, markup=False, emoji=False, width=width_of(sys.stderr))


def marked(word: str, style: str, text: str) -> Text:
    """`text` behind a word in a style."""
    return Text.assemble((word, style), text)


@app.callback()
def common(
    context: typer.Context,
    profile: Annotated[Profile | None, typer.Option(help="local: the addresses of infra/compose.yaml.")] = None,
    bootstrap: Annotated[str | None, typer.Option(help="Kafka brokers, host:port.")] = None,
    registry_url: Annotated[str | None, typer.Option(help="Schema registry.")] = None,
    clickhouse_url: Annotated[str | None, typer.Option(help="ClickHouse's HTTP interface.")] = None,
    prefix: Annotated[str | None, typer.Option(help="Put before every topic name.")] = None,
    verbose: Annotated[bool, typer.Option("--verbose", "-v", help="Log what the parts do.")] = False,
    with_stdin: Annotated[bool, typer.Option("--with-stdin", hidden=True, help="End when stdin does.")] = False,
) -> None:
    """Settings come from these options, SPANLOOP_… variables and spanloop.toml, in this order."""
    logs.configure(level=_level(verbose))
    if with_stdin:
        leave_with_parent()
    given: dict[str, Any] = {
        "profile": profile,
        "bootstrap": bootstrap,
        "registry_url": registry_url,
        "clickhouse_url": clickhouse_url,
        "prefix": prefix,
    }
    chosen = {name: value for name, value in given.items() if value is not None}
    context.obj = (LOCAL if profile == "local" else {}) | chosen
    context.meta[VERBOSE] = verbose


def _level(verbose: bool) -> str:
    return "INFO" if verbose else "WARNING"


def settings_of(context: typer.Context, *needed: str) -> Settings:
    """The settings, with those that a command needs checked. Raises ConfigError naming the one that is missing."""
    settings = Settings(**context.obj)
    logs.configure(settings, level=_level(context.meta.get(VERBOSE, False)))
    for name in needed:
        if not getattr(settings, name):
            raise ConfigError(
                f"{name} is not set: give --{name.replace('_', '-')}, SPANLOOP_{name.upper()} or {name} in "
                "spanloop.toml; `spanloop up` starts an embedded stack and prints its addresses, "
                "`--profile local` uses infra/compose.yaml"
            )
    return settings


def connected(context: typer.Context, *needed: str) -> Settings:
    """The settings once a broker answers whose topics fit them. Raises as `reached` does, and ConfigError.

    With other partition counts a command would look for records where they are not, and miss others, without a word.
    """
    from spanloop.infra import admin

    settings = reached(context, *needed)
    if not admin.check(settings):  # some, not all, may be hidden from a user
        raise ConfigError(f"{settings.bootstrap} has no topic of prefix {settings.prefix!r}: run `spanloop init`")
    return settings


def reached(context: typer.Context, *needed: str) -> Settings:
    """The settings once a broker answers, for what must work whatever topics there are.

    Raises ConfigError as settings_of does, Unavailable naming host and port.
    """
    from spanloop.infra.kafka import wait_for_broker

    settings = settings_of(context, "bootstrap", "registry_url", *needed)
    wait_for_broker(settings, BROKER_PATIENCE_S)
    return settings


@app.command()
def version() -> None:
    """Print the version."""
    out.print(__version__)


@app.command()
def demo(
    seed: Annotated[int, typer.Option(help="Decides policy, tasks and training.")] = 0,
    rollouts: Annotated[int, typer.Option(help="Train rollouts in all.")] = 3584,
    warm_steps: Annotated[
        int, typer.Option(help="Supervised steps before, at most; on half-right demonstrations.")
    ] = 900,
    home: Annotated[Path | None, typer.Option(help="Folder to keep; default runs/demo-<time>.")] = None,
    report: Annotated[Path | None, typer.Option(help="Write the figures as JSON.")] = None,
    control: Annotated[str | None, typer.Option(help="frozen or shuffled: must not learn.")] = None,
    processes: Annotated[bool, typer.Option(help="Every part as a process of its own.")] = False,
    kafka: Annotated[bool, typer.Option(help="On a real Kafka broker (Java 17).")] = False,
) -> None:
    """Train an agent through the whole loop on this machine."""
    if control not in (None, "frozen", "shuffled"):
        raise ConfigError(f"--control {control}: expected frozen or shuffled")
    if report is not None and not report.absolute().parent.is_dir():
        raise ConfigError(f"--report {report}: there is no folder {report.absolute().parent}")
    from spanloop.demo import DemoConfig, run_demo

    config = DemoConfig(
        seed=seed,
        rollouts=rollouts,
        warm_steps=warm_steps,
        home=home,
        report=report,
        control=control,
        processes=processes,
        kafka=kafka,
    )
    status = run_demo(config)
    if status:  # interrupted, all is closed; threads of agents that were left alone would hold the interpreter
        sys.stdout.flush()
        os._exit(status)


def main() -> None:
    """Entry point: an error made on purpose, or about a file, is a message and status 1, not a traceback."""
    from spanloop import cli_ask, cli_letters, cli_ops, cli_parts  # they register their commands here

    del cli_ask, cli_letters, cli_ops, cli_parts
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")  # of what a terminal's encoding lacks
    try:
        app()
    except SpanloopError as error:
        failed(error)
    except OSError as error:
        if error.filename is None:
            raise
        failed(error)


def failed(error: Exception) -> NoReturn:
    """Ends the command with what went wrong."""
    err.print(marked(type(error).__name__, "bold red", f": {logs.masked(str(error))}"))
    sys.exit(1)
