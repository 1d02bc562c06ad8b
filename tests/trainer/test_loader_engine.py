"""What a loader makes of an engine's answers."""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator, Callable, Iterator
from contextlib import asynccontextmanager, closing

import pytest
from loader_rig import beats, running
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route
from waiting import until

from spanloop.infra.clock import SystemClock
from spanloop.infra.http_server import App, HttpThread
from spanloop.infra.settings import Settings
from spanloop.schemas.errors import Unavailable
from spanloop.trainer.loader import BEAT_S, LoaderService
from spanloop.trainer.loader_engine import EngineClient, WeightsRefused, check_probe


@pytest.fixture(params=[500, 502, 503, 504])
def answered(request: pytest.FixtureRequest) -> Iterator[tuple[int, str]]:
    """A status, and the address of something that answers everything with it."""
    status: int = request.param

    @asynccontextmanager
    async def made() -> AsyncGenerator[App]:
        yield Response("no", status)

    with closing(HttpThread(made)) as server:
        yield status, server.url


@pytest.fixture
def scored() -> Iterator[tuple[list[object], EngineClient]]:
    """What an engine gives as `prompt_logprobs` of ids 1, 2 and 3, and its client."""
    given: list[object] = [None, {"2": {"logprob": -1.0}}, {"3": {"logprob": -2.0}}]

    async def answer(_: Request) -> Response:
        return JSONResponse({"choices": [{"prompt_logprobs": given}]})

    @asynccontextmanager
    async def made() -> AsyncGenerator[App]:
        yield Starlette(routes=[Route("/v1/completions", answer, methods=["POST"])])

    with closing(HttpThread(made)) as server, closing(EngineClient(server.url, "policy")) as client:
        yield given, client


@pytest.mark.parametrize("logprobs", ["[null, -1.0, -2.0]", "[-1.0, -2.0]", "[7, -1.0, -2.0]"])
def test_the_first_log_prob_of_a_probe_may_be_anything_or_left_out(
    scored: tuple[list[object], EngineClient], logprobs: str
) -> None:
    check_probe(scored[1], f'{{"ids": [1, 2, 3], "logprobs": {logprobs}}}')


@pytest.mark.parametrize(
    "probe",
    [
        '{"ids": [1, 2, 3], "logprobs": []}',
        '{"ids": [1, 2, 3], "logprobs": [-1.0]}',
        '{"ids": [1, 2, 3], "logprobs": [null, -1.0, -2.0, -3.0]}',
        '{"ids": [1, 2, 3], "logprobs": [null, -1.0, NaN]}',
        '{"ids": [1, 1e999], "logprobs": [null, -1.0]}',
        '{"ids": [], "logprobs": []}',
        '{"ids": [1, 2, 3], "logprobs": {}}',
        "[]",
        "[" * 100_000,
    ],
)
def test_a_probe_that_tests_nothing_or_is_none_refuses_its_weights(
    scored: tuple[list[object], EngineClient], probe: str
) -> None:
    with pytest.raises(WeightsRefused, match="probe"):
        check_probe(scored[1], probe)


@pytest.mark.parametrize("entry", [None, {}, {"3": None}, {"3": {"logprob": None}}, 5])
def test_an_engine_that_does_not_score_a_prompt_refuses_weights(
    scored: tuple[list[object], EngineClient], entry: object
) -> None:
    given, client = scored
    for wrong in ([*given[:2], entry], given[:2], [*given, entry]):
        given[:] = wrong
        with pytest.raises(WeightsRefused, match="does not score a prompt"):
            check_probe(client, '{"ids": [1, 2, 3], "logprobs": [null, -1.0, -2.0]}')
        given[:] = [None, {"2": {"logprob": -1.0}}, {"3": {"logprob": -2.0}}]


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


class Hurried(SystemClock):
    """A clock on which a minute passes in a second."""

    def steady_s(self) -> float:
        return 60 * super().steady_s()


def test_a_loader_without_any_version_to_load_says_once_what_is_missing(
    embedded_settings: Settings, caplog: pytest.LogCaptureFixture
) -> None:
    with running(LoaderService(embedded_settings, "http://127.0.0.1:9", "policy", clock=Hurried())):
        until(lambda: "before a first version of policy 'policy' is published" in caplog.text, "a warning")
        time.sleep(1.0)  # another minute
    assert caplog.text.count("before a first version") == 1


@pytest.mark.parametrize(("says", "told"), [({}, "raw_logprobs"), ({"logprobs_mode": "processed_logprobs"}, None)])
def test_what_log_probs_are_of_is_told_for_an_engine_that_does_not_say(
    embedded_settings: Settings, says: dict[str, str], told: str | None
) -> None:
    async def answer(_: Request) -> Response:
        return JSONResponse({"weight_version": "default", "data": [says]})

    @asynccontextmanager
    async def made() -> AsyncGenerator[App]:
        yield Starlette(routes=[Route(path, answer) for path in ("/weight_info", "/v1/models")])

    wanted = {"logprobs_mode": told or says["logprobs_mode"]}
    with closing(HttpThread(made)) as server:
        loader = LoaderService(embedded_settings, server.url, "policy", logprobs_mode="raw_logprobs")
        with running(loader):
            until(lambda: any(b.versions == wanted for b in beats(embedded_settings)), "a heartbeat")
