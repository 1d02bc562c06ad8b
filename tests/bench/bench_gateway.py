"""The gateway against an instant upstream: what it adds to a call, and how many calls a core carries.

Upstream and gateway are processes of their own; the broker is the embedded one. Calls per CPU second hold on a busy
machine too, calls per second do not. A call: 200 prompt ids, 40 response ids with log-probs, whole or in 40 chunks.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable, Generator
from pathlib import Path
from typing import cast

import aiohttp
from processor_time import cpu_s

from spanloop.infra import admin
from spanloop.infra.embedded_broker import EmbeddedBroker
from spanloop.infra.embedded_registry import EmbeddedRegistry
from spanloop.infra.http_server import bind, url_of
from spanloop.infra.kafka import partitions
from spanloop.infra.process import new_loop
from spanloop.infra.producer import Producer
from spanloop.infra.settings import Settings
from spanloop.schemas.records import Attempt
from spanloop.schemas.topics import TOPICS

CALLS, ALONE, AT_ONCE, WARM_UP = 3000, 400, 32, 100
PROMPT, RESPONSE = 200, 40
PATH = "/v1/chat/completions"
Figures = dict[str, float]


def logprob() -> dict[str, object]:
    return {"token": "a", "logprob": -0.5, "bytes": [97], "top_logprobs": []}


def whole() -> bytes:
    choice = {
        "index": 0,
        "message": {"role": "assistant", "content": "hello " * RESPONSE},
        "finish_reason": "stop",
        "token_ids": list(range(RESPONSE)),
        "logprobs": {"content": [logprob() for _ in range(RESPONSE)]},
        "weight_versions": [{"version": "3", "start": 0, "end": RESPONSE}],
    }
    usage = {"prompt_tokens": PROMPT, "completion_tokens": RESPONSE, "total_tokens": PROMPT + RESPONSE}
    body = {"id": "c", "object": "chat.completion", "created": 1, "model": "policy", "usage": usage}
    content = json.dumps({**body, "prompt_token_ids": list(range(PROMPT)), "choices": [choice]}).encode()
    return b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n" % len(content) + content


def streamed() -> bytes:
    events: list[str] = []
    for i in range(RESPONSE):
        choice: dict[str, object] = {"index": 0, "delta": {"content": "hello "}, "token_ids": [i]}
        chunk: dict[str, object] = {"id": "c", "object": "chat.completion.chunk", "created": 1, "model": "policy"}
        chunk["choices"] = [{**choice, "logprobs": {"content": [logprob()]}, "finish_reason": None}]
        events.append(json.dumps(chunk if i else {**chunk, "prompt_token_ids": list(range(PROMPT))}))
    events.append(json.dumps({"choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]}))
    out = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
    for event in [*events, "[DONE]"]:
        data = f"data: {event}\n\n".encode()
        out += b"%x\r\n%s\r\n" % (len(data), data)
    return out + b"0\r\n\r\n"


class Instant(asyncio.Protocol):
    """Answers a request the moment its last byte is there."""

    WHOLE, STREAMED = whole(), streamed()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast("asyncio.Transport", transport)
        self.buffer = b""

    def data_received(self, data: bytes) -> None:
        self.buffer += data
        head, found, body = self.buffer.partition(b"\r\n\r\n")
        length = int(head.lower().partition(b"content-length:")[2].partition(b"\r\n")[0] or 0)
        if found and len(body) >= length:
            self.buffer = body[length:]
            self.transport.write(self.STREAMED if b'"stream":true' in body else self.WHOLE)


def upstream(port: int) -> None:
    async def serve() -> None:
        server = await asyncio.get_running_loop().create_server(Instant, "127.0.0.1", port)
        await server.serve_forever()

    new_loop().run_until_complete(serve())


def body_of(stream: bool) -> bytes:
    request = {"model": "policy", "messages": [{"role": "user", "content": "x" * 800}], "stream": stream}
    return json.dumps(request, separators=(",", ":")).encode()


async def each(calls: int, at_once: int, call: Callable[[], Awaitable[None]]) -> list[float]:
    """Seconds of each call."""
    left, took = iter(range(calls)), list[float]()

    async def work() -> None:
        for _ in left:
            began = time.perf_counter()
            await call()
            took.append(time.perf_counter() - began)

    await asyncio.gather(*(work() for _ in range(at_once)))
    return sorted(took)


async def measure(direct: str, through: str, pid: int) -> Figures:
    out: Figures = {}
    headers = {"content-type": "application/json"}
    async with aiohttp.ClientSession() as session:
        for name, body in (("whole", body_of(False)), ("stream", body_of(True))):

            def caller(url: str, body: bytes = body) -> Callable[[], Awaitable[None]]:
                async def call() -> None:
                    async with session.post(url, data=body, headers=headers) as response:
                        assert response.status == 200, await response.text()
                        await response.read()

                return call

            await each(WARM_UP, 4, caller(through))
            alone, own = await each(ALONE, 1, caller(through)), await each(ALONE, 1, caller(direct))
            cpu, began = cpu_s(pid), time.perf_counter()
            await each(CALLS, AT_ONCE, caller(through))
            out[f"{name}_added_ms_p50"] = 1000 * (alone[ALONE // 2] - own[ALONE // 2])
            out[f"{name}_added_ms_p99"] = 1000 * (alone[ALONE * 99 // 100] - own[ALONE * 99 // 100])
            out[f"{name}_calls_per_s"] = CALLS / (time.perf_counter() - began)
            out[f"{name}_calls_per_cpu_s"] = CALLS / (cpu_s(pid) - cpu)
    return out


@contextlib.contextmanager
def process(*arguments: str, settings: Settings | None = None) -> Generator[int]:
    environment = {**os.environ, **({} if settings is None else settings.environment())}
    child = subprocess.Popen([sys.executable, *arguments], env=environment)
    try:
        yield child.pid
    finally:
        child.terminate()
        child.wait()


async def until_up(url: str) -> None:
    async with aiohttp.ClientSession() as session:
        for _ in range(3000):
            with contextlib.suppress(aiohttp.ClientError):
                async with session.get(url) as response:
                    await response.read()
                    return
            await asyncio.sleep(0.02)
    raise RuntimeError(f"nothing answers at {url}")


def free_url() -> str:
    with bind("127.0.0.1", 0) as free:
        return url_of(free)


async def run(settings: Settings) -> Figures:
    engine, gateway = free_url(), free_url()
    serve = ("-m", "spanloop.producers.gateway", "--port", gateway.rpartition(":")[2], "--upstream-url", engine)
    with (
        process(__file__, "--upstream", engine.rpartition(":")[2]),
        process(*serve, settings=settings) as pid,
    ):
        await until_up(f"{engine}/")
        await until_up(f"{gateway}/health")
        return await measure(engine + PATH, f"{gateway}/rollout/ro-1/attempt/at-1{PATH}", pid)


def main() -> None:
    with EmbeddedBroker() as broker, EmbeddedRegistry() as registry, tempfile.TemporaryDirectory() as home:
        settings = Settings(
            profile="embedded", bootstrap=broker.bootstrap, registry_url=registry.url, home=Path(home), prefix="bench"
        )
        for topic in TOPICS.values():
            broker.create(topic.full(settings.prefix), partitions(settings, topic))
        admin.init(settings)
        producer = Producer(settings, "bench")
        producer.send_wait(Attempt("ro-1", "at-1", "running"))
        producer.close()
        figures = new_loop().run_until_complete(run(settings))
    sys.stdout.write(json.dumps({"figures": {name: round(value, 2) for name, value in figures.items()}}) + "\n")


if __name__ == "__main__":
    if sys.argv[1:2] == ["--upstream"]:
        upstream(int(sys.argv[2]))
    else:
        main()
