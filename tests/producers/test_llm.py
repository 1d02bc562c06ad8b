import asyncio
from typing import Any

import httpx
import pytest
from openai import AsyncOpenAI, OpenAI

from spanloop.producers import LLM, capture, context, emit_reward, operation, record
from spanloop.producers.context import Scope
from spanloop.producers.llm import attempt_url
from spanloop.producers.recording import Recorded
from spanloop.schemas import semconv


class Gateway:
    """Answers with a new span id per request and keeps the headers it got."""

    def __init__(self) -> None:
        self.seen: list[httpx.Headers] = []

    def __call__(self, request: httpx.Request) -> httpx.Response:
        self.seen.append(request.headers)
        return httpx.Response(200, json={}, headers={semconv.SPAN_ID_HEADER: f"{len(self.seen):016x}"})


def test_a_step_reward_finds_the_call_before_it() -> None:
    client = capture(httpx.Client(transport=httpx.MockTransport(Gateway())))
    with record() as seen:
        for _ in range(2):
            client.get("http://g/")
            emit_reward(1.0, step=True)
    assert [r.span_id for r in seen.rewards] == [f"{1:016x}", f"{2:016x}"]


def test_concurrent_calls_of_one_client_are_told_apart() -> None:
    async def main() -> list[str | None]:
        async with capture(httpx.AsyncClient(transport=httpx.MockTransport(Gateway()))) as client:

            async def work() -> str | None:
                answer = await client.get("http://g/")
                await asyncio.sleep(0)
                assert context.last_call() == answer.headers[semconv.SPAN_ID_HEADER]
                return context.last_call()

            with record():
                return await asyncio.gather(*(work() for _ in range(5)))

    assert len(set(asyncio.run(main()))) == 5


def test_a_call_names_the_operation_that_made_it_as_its_parent() -> None:
    gateway = Gateway()
    client = capture(httpx.Client(transport=httpx.MockTransport(gateway)))
    scope = Scope("ro-1", "at-" + "c" * 32, "p", Recorded("ro-1", "at-1"), root_id="a" * 16)
    client.get("http://g/")
    with context.attempt(scope):
        client.get("http://g/")
        with operation("plan") as op:
            client.get("http://g/")
    assert [h.get("traceparent") for h in gateway.seen] == [
        None,
        f"00-{'c' * 32}-{'a' * 16}-01",
        f"00-{'c' * 32}-{op.span_id}-01",
    ]


@pytest.mark.parametrize("kind", [OpenAI, AsyncOpenAI])
def test_an_openai_client_is_captured_once_with_its_copies(kind: Any) -> None:
    client = kind(base_url="http://g/v1", api_key="k")
    assert capture(capture(client)) is client
    copied = client.with_options(base_url="http://h/v1")
    assert [len(hooks) for hooks in copied._client.event_hooks.values()] == [1, 1]


def test_anything_else_is_refused() -> None:
    with pytest.raises(TypeError, match="got int"):
        capture(7)


def test_an_attempts_url_binds_its_calls() -> None:
    url = attempt_url("http://g/", "ro-1", "at-1")
    assert url == "http://g/rollout/ro-1/attempt/at-1/v1"
    assert LLM(url).get_base_url("ro-1", "at-1") == url
