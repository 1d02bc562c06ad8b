"""A TCP forwarder that can be shut, throttled, or made to hold answers back: how a service goes away on purpose."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Coroutine
from typing import Any, TypeVar
from urllib.parse import urlsplit

from spanloop.infra.real_kafka import free_port

LOOPBACK = "127.0.0.1"
CHUNK = 65536
CALL_TIMEOUT_S = 10.0
HOLD_POLL_S = 0.005
# A request of this size carries rows: what comes back for it is the acknowledgement of an insert.
INSERT_BYTES = 4096
T = TypeVar("T")


class Forwarder:
    """Listens on a port of its own in front of a URL's host and port; `url` is the same URL through it."""

    def __init__(self, url: str) -> None:
        parts = urlsplit(url)
        assert parts.hostname is not None
        assert parts.port is not None
        self._target = (parts.hostname, parts.port)
        self.port = free_port()
        self.url = parts._replace(netloc=f"{LOOPBACK}:{self.port}").geturl()
        self.inserted = threading.Event()  # an insert was acknowledged and its answer is held
        self.slowed_s = 0.0  # for so long all that was sent has been held up by throttling
        self._holding = False
        self._rate: float | None = None  # bytes a second towards the service; None = as fast as it takes them
        self._server: asyncio.Server | None = None
        self._connections: set[asyncio.Task[None]] = set()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="forwarder", daemon=True)
        self._thread.start()
        self.open()

    def open(self) -> None:
        """The service is there (again), and as fast as ever."""
        self._rate, self._holding = None, False
        self.inserted.clear()
        self._call(self._open())

    def shut(self) -> None:
        """The service is gone: connections are reset and new ones refused."""
        self._call(self._shut())

    def throttle(self, bytes_per_s: float) -> None:
        """What is sent to the service crawls: a slow disk, as its clients see it."""
        self._rate = bytes_per_s

    def hold_answers(self) -> None:
        """Inserts reach the service, their answers reach nobody until `open`; see `inserted`."""
        self.inserted.clear()
        self._holding = True

    def close(self) -> None:
        """Shuts it for good."""
        self.shut()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(CALL_TIMEOUT_S)
        self._loop.close()

    def _call(self, work: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(CALL_TIMEOUT_S)

    async def _open(self) -> None:
        if self._server is None:
            self._server = await asyncio.start_server(self._accept, LOOPBACK, self.port, reuse_address=True)

    async def _shut(self) -> None:
        server, self._server = self._server, None
        if server is not None:
            server.close()
        for task in list(self._connections):
            task.cancel()
        await asyncio.gather(*self._connections, return_exceptions=True)

    def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = self._loop.create_task(self._serve(reader, writer))
        self._connections.add(task)
        task.add_done_callback(self._connections.discard)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        back: asyncio.StreamWriter | None = None
        sent = [0]
        try:
            answers, back = await asyncio.open_connection(*self._target)
            ways = [
                self._loop.create_task(self._requests(reader, back, sent)),
                self._loop.create_task(self._answers(answers, writer, sent)),
            ]
            try:
                await asyncio.wait(ways, return_when=asyncio.FIRST_COMPLETED)
            finally:
                for way in ways:
                    way.cancel()
                await asyncio.gather(*ways, return_exceptions=True)
        except OSError:  # the service itself is away: so is this connection
            pass
        finally:
            for end in (writer, back):
                if end is not None:
                    end.transport.abort()

    async def _requests(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, sent: list[int]) -> None:
        while data := await reader.read(CHUNK):
            sent[0] += len(data)
            if self._rate is not None:
                held_s = len(data) / self._rate
                await asyncio.sleep(held_s)
                self.slowed_s += held_s
            writer.write(data)
            await writer.drain()

    async def _answers(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, sent: list[int]) -> None:
        while data := await reader.read(CHUNK):
            while self._holding and sent[0] > INSERT_BYTES:
                self.inserted.set()
                await asyncio.sleep(HOLD_POLL_S)
            sent[0] = 0
            writer.write(data)
            await writer.drain()
