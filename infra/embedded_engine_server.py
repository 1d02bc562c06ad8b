"""Puts the engine's routes behind a socket and ends cleanly: on SIGTERM, SIGINT, or with its parent."""

from __future__ import annotations

import asyncio
import socket
import sys
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Protocol

import uvicorn
from starlette.applications import Starlette

from .embedded_engine_admin import Admin
from .embedded_engine_routes import Completions, Options
from .embedded_engine_scheduler import Decoder, Drawn, Scheduler, Weights
from .embedded_engine_tokenizer import Tokenizer
from .http_server import BACKLOG
from .process import leave_with_parent

GRACE_S = 2  # for answers under way when told to stop


class Network(Decoder, Weights, Protocol):
    """What is served."""


def create_app(network: Network, options: Options) -> Starlette:
    """The engine as an ASGI application; its generation thread lives as long as the application's lifespan."""
    loops: list[asyncio.AbstractEventLoop] = []

    def post(events: list[Drawn]) -> None:
        loops[0].call_soon_threadsafe(_deliver, events)

    scheduler = Scheduler(network, post, max_rows=options.max_num_seqs)

    @asynccontextmanager
    async def lifespan(app: Starlette) -> AsyncGenerator[None]:
        del app
        loops.append(asyncio.get_running_loop())
        yield
        scheduler.close()

    completions = Completions(scheduler, network, Tokenizer(options.model, options.vocabulary), options)
    return Starlette(routes=completions.routes() + Admin(scheduler, network).routes(), lifespan=lifespan)


def _deliver(events: list[Drawn]) -> None:
    for drawn in events:
        drawn.generation.sink(drawn)


def serve(network: Network, options: Options, *, host: str, port: int, with_stdin: bool) -> None:
    """Serves until told to stop; its URL goes to standard output once it is ready to be asked."""
    app = create_app(network, options)
    config = uvicorn.Config(
        app, log_level="warning", access_log=False, timeout_keep_alive=60, timeout_graceful_shutdown=GRACE_S
    )
    server = uvicorn.Server(config)
    with socket.create_server((host, port), backlog=BACKLOG) as listening:
        if with_stdin:
            leave_with_parent()
        sys.stdout.write(f"http://{host}:{listening.getsockname()[1]}\n")
        sys.stdout.flush()
        server.run(sockets=[listening])
