"""The forwarder cuts off, slows down and holds back what it says it does, and nothing when it is open."""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from typing import cast

import httpx
import pytest
from faults.forwarder import INSERT_BYTES, Forwarder
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse
from starlette.routing import Route

from spanloop.infra.http_server import App, HttpThread

LARGE = b"x" * (INSERT_BYTES + 1)
DEADLINE_S = 30.0


async def size(request: Request) -> PlainTextResponse:
    return PlainTextResponse(str(len(await request.body())))


@asynccontextmanager
async def service() -> AsyncGenerator[App]:
    yield cast("App", Starlette(routes=[Route("/", size, methods=["POST"])]))


@pytest.fixture
def forwarder() -> Iterator[Forwarder]:
    """A forwarder in front of a service that tells how much it was sent."""
    server = HttpThread(service)
    made = Forwarder(server.url)
    yield made
    made.close()
    server.close()


def ask(forwarder: Forwarder, body: bytes = LARGE) -> str:
    return httpx.post(forwarder.url, content=body, timeout=DEADLINE_S).text


def test_what_is_open_passes(forwarder: Forwarder) -> None:
    assert ask(forwarder) == str(len(LARGE))


def test_what_is_shut_refuses_and_is_there_again_under_the_same_address(forwarder: Forwarder) -> None:
    with httpx.Client(timeout=DEADLINE_S) as client:
        assert client.post(forwarder.url).text == "0"
        forwarder.shut()
        with pytest.raises(httpx.TransportError):  # neither over the old connection
            client.post(forwarder.url)
        with pytest.raises(httpx.ConnectError):  # nor over a new one
            client.post(forwarder.url)
        forwarder.open()
        assert client.post(forwarder.url).text == "0"


def test_the_answer_to_an_insert_is_held_after_the_service_has_given_it(forwarder: Forwarder) -> None:
    forwarder.hold_answers()
    with ThreadPoolExecutor(1) as pool:
        asked = pool.submit(ask, forwarder)
        assert forwarder.inserted.wait(DEADLINE_S)
        assert not asked.done()
        forwarder.open()
        assert asked.result(DEADLINE_S) == str(len(LARGE))


def test_an_answer_to_something_small_is_no_insert_and_not_held(forwarder: Forwarder) -> None:
    forwarder.hold_answers()
    assert ask(forwarder, b"select 1") == str(len(b"select 1"))
    assert not forwarder.inserted.is_set()


def test_a_throttle_takes_its_time(forwarder: Forwarder) -> None:
    forwarder.throttle(len(LARGE) * 4)
    began = time.monotonic()
    assert ask(forwarder) == str(len(LARGE))
    assert time.monotonic() - began >= 0.25
