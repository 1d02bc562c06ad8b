"""An engine that answers from a script, chunk by chunk: for tests and for trying an agent without a model.

with ScriptedEngine(Whole({"choices": [...]})) as engine: ...
"""

from __future__ import annotations

import asyncio
import json
import threading
from collections import deque
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, cast

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import Receive, Scope, Send

from .http_server import App, HttpThread

POLL_S = 0.005
Json = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Whole:
    """One answer; a dict is written as engines write it, bare NaN included."""

    body: Json | bytes
    status: int = 200
    headers: dict[str, str] = field(default_factory=dict[str, str])


@dataclass(frozen=True, slots=True)
class Streamed:
    """Events: a dict or text is one `data:` line, bytes go out as they are, an Event is waited for.

    `cut`: the connection is closed after the last step without ending the answer.
    """

    steps: Sequence[Json | str | bytes | threading.Event]
    cut: bool = False


Step = Whole | Streamed


class ScriptedEngine:
    """Serves POST /v1/chat/completions from a script; the last step is repeated."""

    def __init__(self, *script: Step) -> None:
        self._script = deque(script)
        self.requests: list[Json] = []
        self.headers: list[dict[str, str]] = []
        self.cancelled = threading.Event()
        self._thread = HttpThread(self._app)
        self.url = self._thread.url

    def __enter__(self) -> ScriptedEngine:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Stops it."""
        self._thread.close()

    @asynccontextmanager
    async def _app(self) -> AsyncGenerator[App]:
        models = Response('{"object":"list","data":[{"id":"policy","object":"model"}]}', media_type="application/json")
        routes = [
            Route("/v1/chat/completions", _Endpoint(self), methods=["POST"]),
            Route("/v1/models", models),
        ]
        yield cast("App", Starlette(routes=routes))

    def next_step(self) -> Step:
        """The script's next step."""
        return self._script.popleft() if len(self._script) > 1 else self._script[0]


class _Endpoint:
    def __init__(self, engine: ScriptedEngine) -> None:
        self._engine = engine

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        request = Request(scope, receive)
        self._engine.requests.append(await request.json())
        self._engine.headers.append(dict(request.headers))
        step = self._engine.next_step()
        if isinstance(step, Whole):
            content = step.body if isinstance(step.body, bytes) else json.dumps(step.body)
            await Response(content, step.status, step.headers, media_type="application/json")(scope, receive, send)
        else:
            await self._stream(step, receive, send)

    async def _stream(self, step: Streamed, receive: Receive, send: Send) -> None:
        headers = [(b"content-type", b"text/event-stream; charset=utf-8")]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        gone = asyncio.ensure_future(receive())
        for part in step.steps:
            while isinstance(part, threading.Event) and not part.is_set() and not gone.done():
                await asyncio.sleep(POLL_S)
            if gone.done():
                self._engine.cancelled.set()
                return
            if not isinstance(part, threading.Event):
                await send({"type": "http.response.body", "body": _event(part), "more_body": True})
        gone.cancel()
        if not step.cut:
            await send({"type": "http.response.body", "body": b""})


def _event(part: Json | str | bytes) -> bytes:
    if isinstance(part, bytes):
        return part
    return f"data: {part if isinstance(part, str) else json.dumps(part)}\n\n".encode()
