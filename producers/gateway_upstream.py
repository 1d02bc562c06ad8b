"""The way to the engines: picks one, tries again where that is safe, bounds every wait.

Safe means: nothing of an answer has come (no connection, or 503). Sampling again is then no second answer.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass

import aiohttp

from ..infra.clock import Clock, SystemClock
from .gateway_call import Exchange
from .gateway_engines import Engine, Engines
from .gateway_errors import Refused, told
from .gateway_policy import GatewayPolicy

UNAVAILABLE = 503
UNREACHED = (aiohttp.ClientConnectorError, aiohttp.ConnectionTimeoutError)
CHAT_PATH = "/v1/chat/completions"
POLL_S = 0.02
# Below the 5 s after which uvicorn, and so vLLM, closes an idle connection: else a call now and then meets a dead one.
KEEPALIVE_S = 4.0
CHUNK_BYTES = 1 << 16


def _is_passed(name: str) -> bool:
    return name in ("x-request-id", "retry-after", "retry-after-ms") or name.startswith(("openai-", "x-ratelimit-"))


@dataclass(frozen=True, slots=True)
class Reply:
    """An engine's answer whose head has come."""

    response: aiohttp.ClientResponse
    max_bytes: int

    @property
    def status(self) -> int:
        """HTTP status."""
        return self.response.status

    @property
    def content_type(self) -> bytes:
        """As the engine wrote it."""
        return self.response.headers.get("content-type", "application/json").encode("latin-1")

    @property
    def streams(self) -> bool:
        """True for server-sent events."""
        return self.response.content_type == "text/event-stream"

    def passed_headers(self) -> list[tuple[bytes, bytes]]:
        """Headers that clients use, unchanged."""
        found = self.response.headers.items()
        return [(k.lower().encode("latin-1"), v.encode("latin-1")) for k, v in found if _is_passed(k.lower())]

    async def body(self) -> bytes:
        """The whole body. Raises Refused(upstream_broken) past the limit."""
        out = bytearray()
        async for chunk in self.chunks():
            out += chunk
            if len(out) > self.max_bytes:
                raise Refused("upstream_broken", f"the answer is longer than {self.max_bytes} bytes")
        return bytes(out)

    async def chunks(self) -> AsyncIterator[bytes]:
        """The body as it comes. Raises Refused(upstream_broken, upstream_timeout) where it ends early."""
        try:
            async for chunk in self.response.content.iter_any():
                yield chunk
        except asyncio.TimeoutError as error:
            raise Refused("upstream_timeout", "the engine's answer took too long and was cut off") from error
        except aiohttp.ClientError as error:
            raise Refused("upstream_broken", f"the engine's answer broke off: {told(error)}") from error

    def close(self) -> None:
        """Frees the connection; an unfinished answer is cancelled at the engine by closing it."""
        self.response.release() if self.response.content.is_eof() else self.response.close()


class Upstream:
    """Sends requests to engines. Make it inside the event loop that uses it."""

    def __init__(self, policy: GatewayPolicy, engines: Engines, clock: Clock | None = None) -> None:
        self._policy = policy
        self._engines = engines
        self._clock = clock or SystemClock()
        self._session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=0, keepalive_timeout=KEEPALIVE_S),
            timeout=aiohttp.ClientTimeout(total=policy.call_timeout_s, sock_connect=policy.connect_timeout_s),
            cookie_jar=aiohttp.DummyCookieJar(),
            skip_auto_headers=("User-Agent", "Accept-Encoding"),
        )

    async def close(self) -> None:
        """Closes all connections."""
        await self._session.close()

    async def call(self, exchange: Exchange, headers: dict[str, str], floor: int | None) -> Reply:
        """Posts a request to an engine; notes engine, versions and tries in `exchange`.

        Raises Refused(no_engine, upstream_broken, upstream_timeout). A 503 of the last try is a reply like any other.
        """
        deadline = self._clock.steady_s() + self._policy.engine_wait_s
        tried: list[str] = []
        while True:
            engine = await self._engine(exchange, floor, tried, deadline)
            exchange.tries += 1
            exchange.engine, exchange.version_start = engine, engine.version
            tried.append(engine.url)
            last = exchange.tries >= self._policy.max_tries
            before, exchange.may_be_sampled = exchange.may_be_sampled, True  # whatever ends the wait
            try:
                reply = await self._post(engine, exchange.prepared.body, headers)
            except aiohttp.ClientConnectionError as error:
                self._engines.failed(engine)
                if isinstance(error, UNREACHED):
                    exchange.may_be_sampled = before
                if last:
                    raise Refused("upstream_broken", f"engine {engine.url} cannot be reached: {told(error)}") from error
            else:
                if reply.status == UNAVAILABLE or 400 <= reply.status < 500:
                    exchange.may_be_sampled = before
                if reply.status != UNAVAILABLE or last:
                    return reply
                reply.close()
            await asyncio.sleep(self._policy.retry_pause_s * 2 ** (exchange.tries - 1))

    async def models(self, engine: Engine) -> Reply:
        """What a fixed upstream says of its models."""
        try:
            response = await self._session.get(f"{engine.url}/v1/models", headers=self._key())
        except (aiohttp.ClientError, asyncio.TimeoutError) as error:
            raise Refused("upstream_broken", f"{engine.url} cannot be reached: {told(error)}") from error
        return Reply(response, self._policy.max_answer_bytes)

    def _key(self) -> dict[str, str]:
        return {"authorization": f"Bearer {self._policy.upstream_key}"} if self._policy.upstream_key else {}

    async def _post(self, engine: Engine, body: bytes, headers: dict[str, str]) -> Reply:
        try:
            response = await self._session.post(
                engine.url + CHAT_PATH,
                data=body,
                headers={"content-type": "application/json", "accept-encoding": "identity", **headers, **self._key()},
                allow_redirects=False,
            )
        except aiohttp.ClientConnectionError:
            raise
        except asyncio.TimeoutError as error:
            raise Refused("upstream_timeout", f"engine {engine.url} took longer than the gateway waits") from error
        except aiohttp.ClientError as error:
            raise Refused("upstream_broken", f"engine {engine.url} speaks no HTTP: {told(error)}") from error
        return Reply(response, self._policy.max_answer_bytes)

    async def _engine(self, exchange: Exchange, floor: int | None, tried: list[str], deadline: float) -> Engine:
        """Waits for an engine that fits: one may be starting, or loading the version that the attempt asks for."""
        while True:
            model, sticky = exchange.prepared.model, exchange.origin.attempt_id
            engine = self._engines.choose(sticky, model, floor, tried)
            if engine is not None:
                return engine
            if self._clock.steady_s() >= deadline:
                raise Refused("no_engine", self._engines.missing(model, floor), 1)
            await asyncio.sleep(POLL_S)
