"""Raw ASGI in and out: a bounded body, one answer, a stream, and noticing that the client has gone."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

from .gateway_errors import Refused

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
HeaderList = list[tuple[bytes, bytes]]

JSON = b"application/json"


class ClientGone(Exception):
    """The client closed its connection before its request was read."""


def headers_of(scope: Scope) -> dict[str, str]:
    """Request headers, names in lower case; the last of a name counts."""
    return {name.decode("latin-1"): value.decode("latin-1") for name, value in scope["headers"]}


async def read_body(receive: Receive, headers: dict[str, str], max_bytes: int) -> bytes:
    """The request body. Raises Refused(too_large) before reading more than `max_bytes`, ClientGone."""
    length = headers.get("content-length", "")
    body = bytearray()
    more = True
    while more:
        if len(body) > max_bytes or (length.isdigit() and int(length) > max_bytes):
            raise Refused("too_large", f"the request body is larger than {max_bytes} bytes, the gateway's limit")
        message = await receive()
        if message["type"] == "http.disconnect":
            raise ClientGone
        body += message.get("body", b"")
        more = message.get("more_body", False)
    if len(body) > max_bytes:
        raise Refused("too_large", f"the request body is larger than {max_bytes} bytes, the gateway's limit")
    return bytes(body)


async def respond(send: Send, status: int, body: bytes, extra: HeaderList, content_type: bytes = JSON) -> None:
    """One whole answer."""
    headers = [(b"content-type", content_type), (b"content-length", str(len(body)).encode()), *extra]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})


async def refuse(send: Send, refused: Refused, extra: HeaderList) -> None:
    """An error in OpenAI's shape."""
    await respond(send, refused.status, refused.body(), [*refused.headers(), *extra])


class Stream:
    """A streamed answer; its head goes out with the first event."""

    def __init__(self, send: Send) -> None:
        self._send = send
        self.headers: HeaderList = []
        self.started = False

    async def write(self, data: bytes, *, more: bool = True) -> None:
        """Sends events; `more` false ends the answer."""
        if not self.started:
            self.started = True
            headers = [(b"content-type", b"text/event-stream; charset=utf-8"), (b"cache-control", b"no-cache")]
            await self._send({"type": "http.response.start", "status": 200, "headers": [*headers, *self.headers]})
        if data or not more:
            await self._send({"type": "http.response.body", "body": data, "more_body": more})


class Watch:
    """Cancels the task it is made in once the client has gone; use as a context manager around the work.

    `gone` tells this cancellation from any other, such as the server's own stop.
    """

    def __init__(self, receive: Receive) -> None:
        self._receive = receive
        self.gone = False

    def __enter__(self) -> Watch:
        self._task = asyncio.current_task()
        self._watcher = asyncio.ensure_future(self._watch())
        return self

    def __exit__(self, *_: object) -> None:
        self._watcher.cancel()

    async def _watch(self) -> None:
        while (await self._receive())["type"] != "http.disconnect":
            pass
        self.gone = True
        if self._task is not None:
            self._task.cancel()
