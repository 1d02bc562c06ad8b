"""What a loader makes of an engine's answers."""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator, Callable, Iterator
from contextlib import asynccontextmanager, closing

import pytest
from loader_rig import running
from starlette.responses import Response
from waiting import until

from spanloop.infra.http_server import App, HttpThread
from spanloop.infra.settings import Settings
from spanloop.schemas.errors import Unavailable
from spanloop.trainer.loader import BEAT_S, LoaderService
from spanloop.trainer.loader_engine import EngineClient, WeightsRefused


@pytest.fixture(params=[500, 502, 503, 504])
def answered(request: pytest.FixtureRequest) -> Iterator[tuple[int, str]]:
    """A status, and the address of something that answers everything with it."""
    status: int = request.param

    @asynccontextmanager
    async def made() -> AsyncGenerator[App]:
        yield Response("no", status)

    with closing(HttpThread(made)) as server:
        yield status, server.url


@pytest.mark.parametrize("ask", [EngineClient.version, EngineClient.pause, EngineClient.resume])
def test_an_engine_that_is_away_refuses_no_weights(
    answered: tuple[int, str], ask: Callable[[EngineClient], object]
) -> None:
    status, url = answered
    kind = WeightsRefused if status == 500 else Unavailable
    with closing(EngineClient(url, "policy")) as client, pytest.raises(kind, match=f": {status} no"):
        ask(client)


def test_a_loader_waits_for_what_does_not_answer_as_an_engine_and_says_so_once(
    embedded_settings: Settings, answered: tuple[int, str], caplog: pytest.LogCaptureFixture
) -> None:
    status, url = answered
    with running(LoaderService(embedded_settings, url, "policy")) as ended:
        until(lambda: "/weight_info" in caplog.text, "a line about the engine")
        time.sleep(2 * BEAT_S)  # it asks again
        assert not ended.done()
    assert caplog.text.count(f"/weight_info: {status} no") == 1
