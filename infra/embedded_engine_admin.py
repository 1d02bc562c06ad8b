"""The engine's admin routes, which drive weight updates; vLLM's dev-mode routes, for loopback only.

Unlike vLLM's, a reload that fails leaves the old weights serving.
"""

from __future__ import annotations

import asyncio
import logging
from pathlib import Path
from typing import cast

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from .embedded_engine_http import Handler, Json, answer, body, refusing
from .embedded_engine_requests import RefusedRequest
from .embedded_engine_scheduler import PauseMode, Scheduler, Weights

log = logging.getLogger(__name__)
PAUSE_MODES: dict[str, PauseMode] = {"wait": "wait", "keep": "keep", "abort": "abort"}


class Admin:
    """Pause, reload, stamp, resume."""

    def __init__(self, scheduler: Scheduler, weights: Weights) -> None:
        self._scheduler = scheduler
        self._weights = weights

    def routes(self) -> list[Route]:
        """All of them."""
        posts: dict[str, Handler] = {
            "/pause": self.pause,
            "/resume": self.resume,
            "/collective_rpc": self.collective_rpc,
            "/reset_prefix_cache": self.reset_prefix_cache,
            "/update_weight_version": self.update_weight_version,
        }
        gets: dict[str, Handler] = {"/weight_info": self.weight_info, "/is_paused": self.is_paused}
        return [
            Route(path, refusing(handler), methods=[method])
            for method, handlers in (("POST", posts), ("GET", gets))
            for path, handler in handlers.items()
        ]

    async def pause(self, request: Request) -> Response:
        """POST /pause?mode=wait|keep|abort; answers once nothing steps. Requests that come now are queued."""
        mode = PAUSE_MODES.get(request.query_params.get("mode", "abort"))
        if mode is None:
            raise RefusedRequest(f"pause mode must be one of {', '.join(PAUSE_MODES)}")
        await asyncio.wrap_future(self._scheduler.pause(mode))
        return answer({"status": "paused"})

    async def resume(self, request: Request) -> Response:
        """POST /resume."""
        del request
        self._scheduler.resume()
        return answer({"status": "resumed"})

    async def collective_rpc(self, request: Request) -> Response:
        """POST /collective_rpc {"method": "reload_weights", "kwargs": {"weights_path": DIR}}; 500 where it fails."""
        asked = await body(request)
        kwargs = asked.get("kwargs")
        path = cast("Json", kwargs).get("weights_path") if isinstance(kwargs, dict) else None
        if asked.get("method") != "reload_weights" or not isinstance(path, str):
            raise RefusedRequest("expected method reload_weights with kwargs.weights_path, an absolute folder")
        try:
            await asyncio.wrap_future(self._scheduler.call(lambda: self._weights.load(Path(path))))
        except (ValueError, OSError, RuntimeError) as error:
            log.error("weights of %s refused: %s; the old ones go on serving", path, error)
            message = f"{error}; the old weights go on serving"
            raise RefusedRequest(message, status=500, kind="InternalServerError") from error
        return answer({"results": [None]})

    async def reset_prefix_cache(self, request: Request) -> Response:
        """POST /reset_prefix_cache; there is no prefix cache, so nothing is ever stale."""
        del request
        return answer({})

    async def update_weight_version(self, request: Request) -> Response:
        """POST /update_weight_version {"new_version": "7"}: the stamp of every token drawn from now on."""
        version = (await body(request)).get("new_version")
        if not isinstance(version, (str, int)):
            raise RefusedRequest("expected new_version, a string")
        await asyncio.wrap_future(self._scheduler.set_version(str(version)))
        return answer({"success": True, "new_version": str(version)})

    async def weight_info(self, request: Request) -> Response:
        """GET /weight_info."""
        del request
        return answer({"weight_version": self._scheduler.version})

    async def is_paused(self, request: Request) -> Response:
        """GET /is_paused."""
        del request
        return answer({"is_paused": self._scheduler.paused})
