"""The gateway's routes, over parts that somebody else runs."""

from __future__ import annotations

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from .gateway_chat import Chat, Gateway
from .gateway_errors import Refused, told
from .gateway_json import dumps

ATTEMPT_PATH = "/rollout/{rollout_id}/attempt/{attempt_id}"


def create_app(gateway: Gateway) -> Starlette:
    """The ASGI application over a gateway's parts; drives no threads of its own."""
    chat = Chat(gateway)

    async def models(request: Request) -> Response:
        del request
        live = gateway.engines.live()
        if gateway.policy.upstream_url is not None:
            reply = await gateway.upstream.models(live[0])
            try:
                return Response(await reply.body(), reply.status, media_type=reply.content_type.decode())
            finally:
                reply.close()
        names = sorted({engine.policy for engine in live if engine.policy})
        data = [{"id": name, "object": "model", "created": 0, "owned_by": "spanloop"} for name in names]
        return _json({"object": "list", "data": data})

    async def health(request: Request) -> Response:
        del request
        counts = {"engines": len(gateway.engines.live()), "attempts": len(gateway.attempts), "calls": chat.running}
        return _json({"status": "ok", **counts, "unrecorded": gateway.recorder.unrecorded})

    return Starlette(
        routes=[
            Route(f"{ATTEMPT_PATH}/v1/chat/completions", chat, methods=["POST"]),
            Route("/v1/chat/completions", chat, methods=["POST"]),
            Route(f"{ATTEMPT_PATH}/v1/models", models),
            Route("/v1/models", models),
            Route("/health", health),
        ],
        exception_handlers={404: _unknown_path, 405: _unknown_path, Refused: _refused, Exception: _broken},
    )


def _json(value: object) -> Response:
    return Response(dumps(value), media_type="application/json")


async def _unknown_path(request: Request, error: Exception) -> Response:
    del error
    return await _refused(
        request,
        Refused(
            "unknown_path",
            f"{request.method} {request.url.path} is not served; the gateway speaks POST …/v1/chat/completions, "
            "GET …/v1/models and GET /health",
        ),
    )


async def _refused(request: Request, error: Exception) -> Response:
    del request
    refused = error if isinstance(error, Refused) else Refused("internal_error", told(error))
    return Response(refused.body(), refused.status, media_type="application/json")


async def _broken(request: Request, error: Exception) -> Response:
    return await _refused(request, Refused("internal_error", f"the gateway failed: {told(error)}"))
