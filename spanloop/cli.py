"""The `spanloop` command: every long-lived part, and what people ask of a running or a finished run."""

from __future__ import annotations

import importlib
import json
import logging
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from pydantic import ValidationError
from rich.console import Console
from rich.table import Table

from spanloop import __version__
from spanloop.infra.settings import LOCAL, Profile, Settings
from spanloop.schemas.errors import ConfigError, SpanloopError

if TYPE_CHECKING:
    from spanloop.consumers.query import Result

app = typer.Typer(
    no_args_is_help=True, add_completion=False, pretty_exceptions_enable=False, help="Train agents from their events."
)
out = Console()
err = Console(stderr=True)


@app.callback()
def common(
    context: typer.Context,
    profile: Annotated[Profile | None, typer.Option(help="local: the addresses of infra/compose.yaml.")] = None,
    bootstrap: Annotated[str | None, typer.Option(help="Kafka brokers, host:port.")] = None,
    registry_url: Annotated[str | None, typer.Option(help="Schema registry.")] = None,
    clickhouse_url: Annotated[str | None, typer.Option(help="ClickHouse's HTTP interface.")] = None,
    prefix: Annotated[str | None, typer.Option(help="Put before every topic name.")] = None,
    verbose: Annotated[bool, typer.Option("--verbose", "-v", help="Log what the parts do.")] = False,
) -> None:
    """Settings come from these options, SPANLOOP_… variables and spanloop.toml, in this order."""
    logging.basicConfig(
        level=logging.INFO if verbose else logging.WARNING, format="%(asctime)s %(name)s %(levelname)s %(message)s"
    )
    given: dict[str, Any] = {
        "profile": profile,
        "bootstrap": bootstrap,
        "registry_url": registry_url,
        "clickhouse_url": clickhouse_url,
        "prefix": prefix,
    }
    chosen = {name: value for name, value in given.items() if value is not None}
    context.obj = (LOCAL if profile == "local" else {}) | chosen


def settings_of(context: typer.Context, *needed: str) -> Settings:
    """The settings, with those that a command needs checked. Raises ConfigError naming the one that is missing."""
    try:
        settings = Settings(**context.obj)
    except ValidationError as error:
        raise ConfigError(f"settings: {error}") from error
    for name in needed:
        if not getattr(settings, name):
            raise ConfigError(
                f"{name} is not set: give --{name.replace('_', '-')}, SPANLOOP_{name.upper()} or {name} in "
                "spanloop.toml; `spanloop up` starts an embedded stack and prints its addresses, "
                "`--profile local` uses infra/compose.yaml"
            )
    return settings


def run(part: Any) -> None:
    """Runs one part as this process."""
    from spanloop.parts import run_until_signalled

    run_until_signalled(part)


@app.command()
def version() -> None:
    """Print the version."""
    out.print(__version__)


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
def init(context: typer.Context) -> None:
    """Create topics, subjects and tables; may be run again."""
    from spanloop.infra import admin, clickhouse

    settings = settings_of(context, "bootstrap", "registry_url")
    ids = admin.init(settings)
    out.print(f"{len(ids)} topics and subjects are ready under {settings.prefix!r}")
    if settings.clickhouse_url:
        clickhouse.migrate(clickhouse.connect(settings), settings.clickhouse_database)
        out.print(f"tables are ready in {settings.clickhouse_database!r}")
    else:
        out.print("no tables: clickhouse_url is not set")


@app.command()
def up(
    context: typer.Context,
    home: Annotated[Path, typer.Option(help="Folder for its data.")] = Path("runs/up"),
    kafka: Annotated[
        bool, typer.Option(help="A real Kafka broker and registry (Java 17) instead of the twins.")
    ] = False,
) -> None:
    """Start broker, registry and ClickHouse on this machine; prints addresses that other processes can use."""
    from spanloop.infra.stack import serve

    serve(home, kafka=kafka, prefix=settings_of(context).prefix)


@app.command()
def streams(
    context: typer.Context,
    only: Annotated[str | None, typer.Option(help="controller or assembler; default both.")] = None,
) -> None:
    """Run the controller and the assembler."""
    from spanloop.parts import Together
    from spanloop.streams.app import AssemblerService
    from spanloop.streams.controller_shell import ControllerService

    settings = settings_of(context, "bootstrap", "registry_url")
    parts = {"controller": ControllerService, "assembler": AssemblerService}
    if only is not None and only not in parts:
        raise ConfigError(f"--only {only}: expected controller or assembler")
    run(Together({name: part(settings) for name, part in parts.items() if only in (None, name)}))


@app.command()
def sink(context: typer.Context) -> None:
    """Write every topic to ClickHouse."""
    from spanloop.consumers.sink import SinkService

    run(SinkService(settings_of(context, "bootstrap", "registry_url", "clickhouse_url")))


@app.command()
def gateway(
    context: typer.Context,
    host: Annotated[str, typer.Option()] = "127.0.0.1",
    port: Annotated[int, typer.Option()] = 8700,
    upstream: Annotated[
        str | None, typer.Option(help="OpenAI-compatible base URL; default: engines that report.")
    ] = None,
) -> None:
    """Serve agents' model calls and record them."""
    from spanloop.producers.gateway import GatewayService

    settings = settings_of(context, "bootstrap", "registry_url")
    run(GatewayService(settings, host=host, port=port, upstream_url=upstream))


@app.command()
def worker(
    context: typer.Context,
    agent: Annotated[str, typer.Argument(help="module:function of a rollout.")],
    slots: Annotated[int, typer.Option(help="Attempts at once.")] = 8,
    name: Annotated[str, typer.Option(help="A stable label.")] = "",
    label: Annotated[list[str] | None, typer.Option(help="What it offers; repeatable.")] = None,
) -> None:
    """Run an agent for each assignment."""
    from spanloop.producers.worker import WorkerService

    settings = settings_of(context, "bootstrap", "registry_url", "gateway_url")
    run(WorkerService(settings, load(agent), slots=slots, name=name, labels=tuple(label or ())))


@app.command()
def engine(
    context: typer.Context,
    policy: Annotated[str, typer.Option(help="Policy whose versions it serves.")] = "policy",
    model: Annotated[Path | None, typer.Option(help="Hugging Face folder: starts the embedded engine on it.")] = None,
    url: Annotated[str | None, typer.Option(help="A running engine with vLLM's routes instead.")] = None,
    seed: Annotated[int, typer.Option(help="Seed of the embedded engine's sampling.")] = 0,
    frozen: Annotated[bool, typer.Option(help="Control: acknowledges new weights but keeps the old ones.")] = False,
) -> None:
    """Serve a policy and load each new version of it."""
    from spanloop.infra.engine_process import EngineProcess
    from spanloop.trainer.loader import LoaderService

    settings = settings_of(context, "bootstrap", "registry_url")
    if (model is None) == (url is None):
        raise ConfigError("give either --model (starts the embedded engine) or --url (a running one)")
    if model is None:
        run(LoaderService(settings, str(url), policy))
        return
    with EngineProcess(model, served_model_name=policy, frozen=frozen, seed=seed) as process:
        run(LoaderService(settings, process.url, policy, verify=not frozen))


@app.command()
def train(
    context: typer.Context,
    config: Annotated[Path, typer.Argument(help="TOML file with the fields of TrainerConfig.")],
) -> None:
    """Train on trajectories and publish new policy versions."""
    from spanloop.trainer.config import load_config
    from spanloop.trainer.loop import TrainerService

    run(TrainerService(settings_of(context, "bootstrap", "registry_url"), load_config(config)))


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
) -> None:
    """Show one rollout: attempts, span tree, calls, rewards, rows."""
    from spanloop.consumers.query import opened
    from spanloop.show import rollout_tree

    with opened(settings_of(context), home) as query:
        out.print(rollout_tree(query, rollout))


@app.command()
def tail(
    context: typer.Context,
    topic: Annotated[str, typer.Argument(help="A topic, such as spans.")],
    home: Annotated[Path | None, typer.Option(help="Folder of a finished run: prints its exported topic.")] = None,
    beginning: Annotated[bool, typer.Option("--from-beginning", help="Not only what comes from now on.")] = False,
    count: Annotated[int | None, typer.Option("-n", help="Stop after so many records.")] = None,
) -> None:
    """Print a topic's records as JSON lines, as they come."""
    from spanloop.consumers.tail import exported, live

    lines = exported(home, topic) if home is not None else live(
        settings_of(context, "bootstrap", "registry_url"), topic, beginning=beginning
    )  # fmt: skip
    for number, line in enumerate(lines, 1):
        out.file.write(json.dumps(line, ensure_ascii=False) + "\n")
        if number == count:
            break


@app.command()
def demo(
    seed: Annotated[int, typer.Option(help="Decides policy, tasks and training.")] = 0,
    rollouts: Annotated[int, typer.Option(help="Train rollouts in all.")] = 3584,
    home: Annotated[Path | None, typer.Option(help="Folder to keep; default runs/demo-<time>.")] = None,
    report: Annotated[Path | None, typer.Option(help="Write the figures as JSON.")] = None,
    control: Annotated[str | None, typer.Option(help="frozen or shuffled: must not learn.")] = None,
    processes: Annotated[bool, typer.Option(help="Every part as a process of its own.")] = False,
    kafka: Annotated[bool, typer.Option(help="On a real Kafka broker (Java 17).")] = False,
) -> None:
    """Train an agent through the whole loop on this machine."""
    from spanloop.demo import DemoConfig, run_demo

    if control not in (None, "frozen", "shuffled"):
        raise ConfigError(f"--control {control}: expected frozen or shuffled")
    run_demo(
        DemoConfig(
            seed=seed, rollouts=rollouts, home=home, report=report, control=control, processes=processes, kafka=kafka
        )
    )


def load(where: str) -> Any:
    """module:name as an object. Raises ConfigError saying which half is wrong."""
    module, _, name = where.partition(":")
    sys.path.insert(0, "")
    try:
        return getattr(importlib.import_module(module), name)
    except (ImportError, AttributeError) as error:
        raise ConfigError(f"{where!r} cannot be loaded: {error}; expected module:function") from error


def show_table(result: Result) -> None:
    """Prints a query's result as a table."""
    table = Table(*result.columns)
    for row in result.rows:
        table.add_row(*("" if cell is None else str(cell) for cell in row))
    out.print(table)


def main() -> None:
    """Entry point: an error made on purpose is a message and status 1, not a traceback."""
    try:
        app()
    except SpanloopError as error:
        err.print(f"[bold red]{type(error).__name__}[/]: {error}", highlight=False)
        sys.exit(1)
