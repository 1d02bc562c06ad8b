"""ClickHouse's HTTP interface, as far as clickhouse-connect and curl use it, in front of an Engine."""

from __future__ import annotations

import json
import sys
import threading
import zlib
from collections.abc import Iterable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib import import_module
from typing import Any
from urllib.parse import parse_qsl, urlsplit
from uuid import uuid4

from .embedded_clickhouse_engine import Answer, Engine, Request

CHUNK_BYTES = 1 << 20
HOST = "127.0.0.1"
# zlib's window bits plus 32: take gzip and zlib headers alike
ANY_ZLIB = 47


class UnknownEncoding(ValueError):
    """A request body is compressed in a way that is not understood here."""


def inflate(encoding: str, chunks: Iterable[bytes]) -> Iterable[bytes]:
    """Undoes a Content-Encoding. Raises UnknownEncoding."""
    if encoding in ("", "identity"):
        return chunks
    if encoding in ("gzip", "deflate"):
        codec: Any = zlib.decompressobj(ANY_ZLIB)
    elif encoding == "lz4":
        codec = import_module("lz4.frame").LZ4FrameDecompressor()  # comes with clickhouse-connect, which sends it
    else:
        raise UnknownEncoding(f"Content-Encoding {encoding!r}: expected gzip, deflate or lz4")
    return (codec.decompress(chunk) for chunk in chunks)


class Handler(BaseHTTPRequestHandler):
    """One connection; requests on it follow each other."""

    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    wbufsize = 1 << 16
    server: ClickHouseServer  # pyright: ignore[reportIncompatibleVariableOverride]  # narrower than the base's

    def log_message(self, format: str, *args: object) -> None:
        """Nothing: one line a request would be all the log."""

    def do_GET(self) -> None:
        url = urlsplit(self.path)
        params = dict(parse_qsl(url.query, keep_blank_values=True))
        if url.path == "/ping" or (self.command == "GET" and "query" not in params):
            self._reply(Answer(200, b"Ok.\n"), "")
            return
        if database := self.headers.get("X-ClickHouse-Database"):
            params.setdefault("database", database)
        if form := self.headers.get("X-ClickHouse-Format"):
            params.setdefault("default_format", form)
        with self.server.busy:
            self._reply(self._run(params), params.get("query_id") or str(uuid4()))

    def do_POST(self) -> None:
        self.do_GET()

    def _run(self, params: dict[str, str]) -> Answer:
        chunks = self._body()
        readonly = params.get("readonly", "0") != "0" or self.command == "GET"
        try:
            plain = inflate(self.headers.get("Content-Encoding", ""), chunks)
            return self.server.engine.answer(Request(params, readonly, plain))
        except UnknownEncoding as error:
            return Answer(501, f"Code: 48. DB::Exception: {error}. (NOT_IMPLEMENTED)\n".encode(), code=48)
        finally:
            for _ in chunks:  # a connection is used again only when its last request has been read to the end
                pass

    def _body(self) -> Iterator[bytes]:
        if self.headers.get("Transfer-Encoding", "").lower() == "chunked":
            while size := int(self.rfile.readline().split(b";")[0], 16):
                yield self.rfile.read(size)
                self.rfile.readline()
            self.rfile.readline()
            return
        left = int(self.headers.get("Content-Length") or 0)
        while left > 0:
            data = self.rfile.read(min(left, CHUNK_BYTES))
            if not data:
                return
            left -= len(data)
            yield data

    def _reply(self, answer: Answer, query_id: str) -> None:
        self.send_response(answer.status)
        headers = {
            "Content-Length": len(answer.body),
            "Content-Type": "application/json" if "JSON" in answer.format else "text/plain; charset=UTF-8",
            "X-ClickHouse-Server-Display-Name": "spanloop-embedded",
            "X-ClickHouse-Timezone": "UTC",
            "X-ClickHouse-Query-Id": query_id,
            "X-ClickHouse-Format": answer.format,
            "X-ClickHouse-Exception-Code": answer.code,
            "X-ClickHouse-Summary": json.dumps({k: str(v) for k, v in (answer.summary or {}).items()}),
        }
        for name, value in headers.items():
            if value not in ("", None):
                self.send_header(name, str(value))
        self.end_headers()
        self.wfile.write(answer.body)
        self.wfile.flush()


class Busy:
    """Counts requests being served, so that a stop can wait for them."""

    def __init__(self) -> None:
        self._idle = threading.Condition()
        self._count = 0

    def __enter__(self) -> None:
        with self._idle:
            self._count += 1

    def __exit__(self, *_: object) -> None:
        with self._idle:
            self._count -= 1
            self._idle.notify_all()

    def wait_idle(self, timeout_s: float) -> bool:
        """True once nothing is being served, False at the time-out."""
        with self._idle:
            return self._idle.wait_for(lambda: self._count == 0, timeout_s)


class ClickHouseServer(ThreadingHTTPServer):
    """Listens on loopback only: chDB has no users, so who can connect can do everything."""

    daemon_threads = True
    request_queue_size = 128

    def __init__(self, engine: Engine, port: int = 0) -> None:
        self.engine = engine
        self.busy = Busy()
        super().__init__((HOST, port), Handler)

    @property
    def url(self) -> str:
        """Where it listens."""
        return f"http://{HOST}:{self.server_address[1]}"

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that went away is no error of the server; anything else is shown by the base class."""
        if not isinstance(sys.exc_info()[1], ConnectionError):
            super().handle_error(request, client_address)
