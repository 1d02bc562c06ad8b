"""Commands that start something: the stack, and each long-lived part as this process.

They ask for a broker before they import their part, which may take seconds.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal, cast

import typer

from spanloop.cli import app, connected, out, reached, settings_of
from spanloop.infra.process import STOPPED_S, run_until_signalled
from spanloop.parts import Together
from spanloop.schemas.errors import ConfigError


@app.command()
def init(context: typer.Context) -> None:
    """Create topics, subjects and tables; may be run again."""
    from spanloop.infra import admin, clickhouse

    settings = reached(context)
    ids = admin.init(settings)
    out.print(f"{len(ids)} topics and subjects are ready under {settings.prefix!r}")
    if settings.clickhouse_url:
        clickhouse.migrate(clickhouse.connect(settings), settings.clickhouse_database, settings.prefix)
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

    settings = settings_of(context)
    serve(home, kafka=kafka, prefix=settings.prefix, partitions=settings.partitions)


@app.command()
def streams(
    context: typer.Context,
    only: Annotated[str | None, typer.Option(help="controller or assembler; default both.")] = None,
) -> None:
    """Run the controller and the assembler."""
    if only not in (None, "controller", "assembler"):
        raise ConfigError(f"--only {only}: expected controller or assembler")
    settings = connected(context)
    from spanloop.streams.assembler_service import AssemblerService
    from spanloop.streams.controller_shell import ControllerService

    parts = {"controller": ControllerService, "assembler": AssemblerService}
    run_until_signalled(Together({name: part(settings) for name, part in parts.items() if only in (None, name)}))


@app.command()
def sink(context: typer.Context) -> None:
    """Write every topic to ClickHouse."""
    settings = connected(context, "clickhouse_url")
    from spanloop.consumers.sink import SinkService

    run_until_signalled(SinkService(settings))


@app.command()
def gateway(
    context: typer.Context,
    host: Annotated[str, typer.Option()] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65_535)] = 8700,
    upstream: Annotated[
        str | None, typer.Option(help="OpenAI-compatible base URL; default: engines that report.")
    ] = None,
) -> None:
    """Serve agents' model calls and record them."""
    settings = connected(context)
    from spanloop.producers.gateway import GatewayService

    run_until_signalled(GatewayService(settings, host=host, port=port, upstream_url=upstream))


@app.command()
def worker(
    context: typer.Context,
    agent: Annotated[str, typer.Argument(help="module:function of a rollout.")],
    slots: Annotated[int, typer.Option(help="Attempts at once.")] = 8,
    name: Annotated[str, typer.Option(help="A stable label.")] = "",
    label: Annotated[list[str] | None, typer.Option(help="What it offers; repeatable.")] = None,
    isolation: Annotated[str, typer.Option(help="thread, or process: a crash or a hang costs one attempt.")] = "thread",
    recycle: Annotated[int, typer.Option(help="Replace a slot's process after so many attempts; 0 = never.")] = 0,
    drain_s: Annotated[float, typer.Option(help="Seconds that agents get to finish in on SIGTERM.")] = 1.5,
) -> None:
    """Run an agent for each assignment."""
    from spanloop.producers.worker import Isolation, WorkerPolicy, WorkerService

    policy = WorkerPolicy(
        slots=slots,
        name=name,
        labels=label or (),
        isolation=cast("Isolation", isolation),  # the policy checks it
        recycle=recycle,
        drain_s=drain_s,
    )
    settings = connected(context, "gateway_url")
    run_until_signalled(WorkerService(settings, agent, policy), STOPPED_S + drain_s)


@app.command()
def engine(
    context: typer.Context,
    policy: Annotated[str, typer.Option(help="Policy whose versions it serves.")] = "policy",
    model: Annotated[Path | None, typer.Option(help="Hugging Face folder: starts the embedded engine on it.")] = None,
    url: Annotated[str | None, typer.Option(help="A running engine with vLLM's routes instead.")] = None,
    logprobs_mode: Annotated[
        Literal["raw_logprobs", "processed_logprobs"] | None,
        typer.Option(help="What a vLLM's log-probs are of (its own option); unsaid, only temperature 1 is trained."),
    ] = None,
    seed: Annotated[int, typer.Option(help="Seed of the embedded engine's sampling.")] = 0,
    frozen: Annotated[bool, typer.Option(help="Control: acknowledges new weights but keeps the old ones.")] = False,
) -> None:
    """Serve a policy and load each new version of it."""
    if (model is None) == (url is None):
        raise ConfigError("give either --model (starts the embedded engine) or --url (a running one)")
    if model is not None and logprobs_mode is not None:
        raise ConfigError(
            "--logprobs-mode is about a vLLM (--url): the embedded engine's are always of what it drew from"
        )
    settings = connected(context)
    from spanloop.infra.engine_process import EngineProcess
    from spanloop.trainer.loader import LoaderService

    if model is None:
        loader = LoaderService(settings, str(url), policy, paused_probe=False, logprobs_mode=logprobs_mode)
        run_until_signalled(loader)
        return
    with EngineProcess(model, served_model_name=policy, frozen=frozen, seed=seed) as process:
        run_until_signalled(LoaderService(settings, process.url, policy, verify=not frozen))


@app.command()
def train(
    context: typer.Context,
    config: Annotated[Path, typer.Argument(help="TOML file with the fields of TrainerConfig.")],
) -> None:
    """Train on trajectories and publish new policy versions."""
    from spanloop.trainer.config import load_config

    chosen = load_config(config)
    settings = connected(context)
    from spanloop.trainer.loop import TrainerService
    from spanloop.trainer.step import import_verl

    import_verl()  # here a signal ends the process at once; a running trainer would heed it only seconds later
    run_until_signalled(TrainerService(settings, chosen), None)  # after the step it is at
