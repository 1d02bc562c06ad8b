"""The engine behind a real socket, with a network that never ends an answer by itself."""

from __future__ import annotations

import json
import time
from collections.abc import AsyncGenerator, Generator, Sequence
from contextlib import asynccontextmanager, closing, contextmanager
from http.client import HTTPConnection
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from engine_rig import USER

from spanloop.infra.embedded_engine_routes import Options
from spanloop.infra.embedded_engine_scheduler import Draw, Generation
from spanloop.infra.embedded_engine_server import create_app
from spanloop.infra.http_server import App, HttpThread

DEADLINE_S = 30.0
ENDLESS = 10**9
STEP_S = 0.001  # what a step costs; one for nothing would flood the event loop
TOKEN = 5


class EndlessNetwork:
    """Draws the same token for every row that runs, until it is told to drop it."""

    def __init__(self) -> None:
        self.running = 0

    def prefill(self, rows: Sequence[Generation]) -> list[Draw]:
        self.running += len(rows)
        return [Draw(TOKEN, -1.0) for _ in rows]

    def decode(self) -> list[Draw]:
        time.sleep(STEP_S)
        return [Draw(TOKEN, -1.0)] * self.running

    def keep(self, kept: Sequence[bool]) -> None:
        self.running = sum(kept)

    def score(self, ids: Sequence[int], top: int) -> list[tuple[float, int, list[tuple[int, float]]]]:
        del top
        return [(-1.0, 1, [])] * (len(ids) - 1)

    def load(self, folder: Path) -> None:
        del folder


@contextmanager
def served(network: EndlessNetwork, model: Path) -> Generator[HTTPConnection]:
    """A connection to an engine that serves the network."""

    @asynccontextmanager
    async def app() -> AsyncGenerator[App]:
        made = create_app(network, Options(model=model, vocabulary=64, max_model_len=2 * ENDLESS))
        async with made.router.lifespan_context(made):
            yield made

    thread = HttpThread(app)
    address = urlsplit(thread.url)
    try:
        with closing(HTTPConnection(str(address.hostname), address.port, timeout=DEADLINE_S)) as connection:
            yield connection
    finally:
        thread.close()


def until_running(network: EndlessNetwork, count: int) -> None:
    deadline = time.monotonic() + DEADLINE_S
    while network.running != count:
        assert time.monotonic() < deadline, f"{network.running} rows run, expected {count}"
        time.sleep(STEP_S)


def ask(connection: HTTPConnection, *, stream: bool) -> None:
    body = {"messages": USER, "max_tokens": ENDLESS, "ignore_eos": True, "n": 3, "stream": stream}
    connection.request("POST", "/v1/chat/completions", json.dumps(body))


def test_a_client_that_closes_in_the_middle_of_a_stream_ends_its_generations(model: Path) -> None:
    network = EndlessNetwork()
    with served(network, model) as connection:
        ask(connection, stream=True)
        with connection.getresponse() as answer:
            until_running(network, 3)
            for _ in range(10):
                assert answer.readline().startswith((b"data: {", b"\n"))
            connection.close()
        until_running(network, 0)


def test_a_client_that_does_not_wait_for_a_whole_answer_ends_its_generations(model: Path) -> None:
    network = EndlessNetwork()
    with served(network, model) as connection:
        ask(connection, stream=False)
        until_running(network, 3)
        connection.close()
        until_running(network, 0)


@pytest.mark.parametrize("stream", [True, False])
def test_a_client_that_goes_leaves_the_others_running(model: Path, stream: bool) -> None:
    network = EndlessNetwork()
    with served(network, model) as connection, closing(HTTPConnection(connection.host, connection.port)) as other:
        ask(connection, stream=stream)
        ask(other, stream=True)
        until_running(network, 6)
        connection.close()
        until_running(network, 3)
