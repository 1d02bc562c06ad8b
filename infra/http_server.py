"""uvicorn as a part of something larger: no signal handlers, and on a thread where that is wanted."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import threading
from collections.abc import Awaitable, Callable, Generator
from contextlib import AbstractAsyncContextManager
from typing import Any

import uvicorn

from ..schemas.errors import ConfigError
from .process import new_loop

BACKLOG = 2048
# Longer than clients keep idle connections, so that it is they who close them and no request meets a closing one.
KEEPALIVE_S = 75
POLL_S = 0.02
App = Callable[[Any, Any, Any], Awaitable[None]]


class Server(uvicorn.Server):
    """uvicorn without its signal handlers: whoever runs it decides when it stops."""

    @contextlib.contextmanager
    def capture_signals(self) -> Generator[None]:
        yield


def bind(host: str, port: int) -> socket.socket:
    """A listening socket; port 0 = any. Raises ConfigError where the port is taken."""
    try:
        return socket.create_server((host, port), backlog=BACKLOG)
    except OSError as error:
        raise ConfigError(f"cannot listen on {host}:{port}: {error.strerror}; choose another port") from error


def url_of(listening: socket.socket) -> str:
    """Where a bound socket is reached."""
    host, port = listening.getsockname()[:2]
    return f"http://{host}:{port}"


async def serve(
    app: App, listening: socket.socket, stopped: Callable[[], bool], *, grace_s: int, ready: Callable[[], None]
) -> None:
    """Serves until `stopped`; running calls get `grace_s` to finish and are then cancelled and waited for."""
    server = Server(
        uvicorn.Config(
            app,
            access_log=False,
            date_header=False,
            lifespan="off",
            log_config=None,
            server_header=False,
            timeout_graceful_shutdown=grace_s,
            timeout_keep_alive=KEEPALIVE_S,
            ws="none",
        )
    )
    serving = asyncio.ensure_future(server.serve(sockets=[listening]))
    while not (server.started or serving.done()):
        await asyncio.sleep(0)
    ready()
    while not (stopped() or serving.done()):
        await asyncio.sleep(POLL_S)
    server.should_exit = True
    await serving
    await asyncio.gather(*server.server_state.tasks, return_exceptions=True)


class HttpThread:
    """An ASGI application served by a thread of its own, for embedded twins."""

    def __init__(self, make: Callable[[], AbstractAsyncContextManager[App]], *, port: int = 0) -> None:
        """`make` is entered in the thread's event loop and left there. Returns once requests are taken at `url`."""
        self._socket = bind("127.0.0.1", port)
        self.url = url_of(self._socket)
        self._stop = threading.Event()
        self._ready = threading.Event()
        self._failure: Exception | None = None
        self._thread = threading.Thread(target=self._run, args=(make,), name="http", daemon=True)
        self._thread.start()
        self._ready.wait()
        if self._failure is not None:
            raise self._failure

    def close(self) -> None:
        """Stops; requests still running after a second are cancelled."""
        self._stop.set()
        self._thread.join()
        self._socket.close()

    def _run(self, make: Callable[[], AbstractAsyncContextManager[App]]) -> None:
        loop = new_loop()
        try:
            loop.run_until_complete(self._serve(make))
        except Exception as error:  # noqa: BLE001 the entry point of a thread: the constructor raises it
            self._failure = error
        finally:
            self._ready.set()
            loop.run_until_complete(loop.shutdown_asyncgens())
            loop.close()

    async def _serve(self, make: Callable[[], AbstractAsyncContextManager[App]]) -> None:
        async with make() as app:
            await serve(app, self._socket, self._stop.is_set, grace_s=1, ready=self._ready.set)
