"""HTTP pieces the engine's routes share: JSON in and out, refusals, and requests whose client has gone."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar, cast

from starlette.requests import Request
from starlette.responses import Response

from .embedded_engine_requests import RefusedRequest

T = TypeVar("T")
Json = dict[str, Any]
Handler = Callable[[Request], Awaitable[Response]]
CLIENT_CLOSED = 499  # nginx's status for a client that did not wait; nobody reads it


def encode(value: object) -> bytes:
    """Compact JSON; NaN is an error rather than invalid JSON."""
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False, allow_nan=False).encode()


def answer(value: object, status: int = 200) -> Response:
    """A JSON answer."""
    return Response(encode(value), status, media_type="application/json")


def event(value: object) -> bytes:
    """A server-sent event."""
    return b"data: " + encode(value) + b"\n\n"


async def body(request: Request) -> Json:
    """A request's JSON object. Raises RefusedRequest."""
    try:
        value = json.loads(await request.body() or b"{}")
    except ValueError as error:
        raise RefusedRequest(f"the body is no JSON: {error}") from error
    if not isinstance(value, dict):
        raise RefusedRequest(f"the body is a JSON {type(value).__name__}; expected an object")
    return cast("Json", value)


def refusing(handler: Handler) -> Handler:
    """A handler whose RefusedRequest becomes vLLM's error answer."""

    async def handle(request: Request) -> Response:
        try:
            return await handler(request)
        except RefusedRequest as refusal:
            return answer(refusal.body, refusal.status)

    return handle


async def unless_gone(request: Request, work: Awaitable[T]) -> T | None:
    """The work's result, or None as soon as the client has gone; the work is then cancelled.

    The request's body must have been read: what comes after it is the disconnection.
    """
    working = asyncio.ensure_future(work)
    gone = asyncio.ensure_future(request.receive())
    try:
        await asyncio.wait((working, gone), return_when=asyncio.FIRST_COMPLETED)
        return await working if working.done() else None
    finally:
        gone.cancel()
        working.cancel()
