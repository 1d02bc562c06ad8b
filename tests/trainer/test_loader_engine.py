"""What a loader makes of an engine's answers."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Iterator
from contextlib import asynccontextmanager, closing

import pytest
from starlette.responses import Response

from spanloop.infra.http_server import App, HttpThread
from spanloop.schemas.errors import Unavailable
from spanloop.trainer.loader_engine import EngineClient, WeightsRefused


@pytest.fixture(params=[500, 502, 503, 504])
def answered(request: pytest.FixtureRequest) -> Iterator[tuple[int, EngineClient]]:
    """A status, and a client of something that answers everything with it."""
    status: int = request.param

    @asynccontextmanager
    async def made() -> AsyncGenerator[App]:
        yield Response("no", status)

    with closing(HttpThread(made)) as server, closing(EngineClient(server.url, "policy")) as client:
        yield status, client


@pytest.mark.parametrize("ask", [EngineClient.version, EngineClient.pause, EngineClient.resume])
def test_an_engine_that_is_away_refuses_no_weights(
    answered: tuple[int, EngineClient], ask: Callable[[EngineClient], object]
) -> None:
    status, client = answered
    with pytest.raises(WeightsRefused if status == 500 else Unavailable, match=f": {status} no"):
        ask(client)
