"""The schema registry's embedded twin: Confluent's routes, ids, GUIDs and compatibility checks over HTTP.

It holds everything in memory: its ids mean something only to the embedded broker it was started with.
"""

from __future__ import annotations

import json
import re
import socket
import threading
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from typing import Any, cast
from urllib.parse import unquote, urlsplit

from .registry import CONTENT_TYPE
from .schema_store import BAD_SCHEMA, NOT_FOUND, UNPROCESSABLE, Refusal, Registered, SchemaStore

LOOPBACK = "127.0.0.1"
OK = 200

Body = dict[str, object]
Route = Callable[[SchemaStore, tuple[str, ...], Body], object]


def _detail(found: tuple[Registered, int], subject: str) -> Body:
    schema, number = found
    return {"subject": subject, "version": number, "id": schema.id, "guid": schema.guid, "schema": schema.text}


def _register(store: SchemaStore, at: tuple[str, ...], body: Body) -> Body:
    schema, number = store.register(at[0], _schema(body))
    return {"id": schema.id, "version": number, "guid": schema.guid}


def _by_id(store: SchemaStore, at: tuple[str, ...], body: Body) -> Body:
    del body
    found = store.by(lambda s: str(s.id) == at[0])
    return {"schema": found.text, "guid": found.guid}


def _by_guid(store: SchemaStore, at: tuple[str, ...], body: Body) -> Body:
    del body
    return {"schema": store.by(lambda s: s.guid == at[0].lower()).text, "guid": at[0]}


def _set_level(store: SchemaStore, at: tuple[str, ...], body: Body) -> Body:
    level = str(body.get("compatibility", "")).upper()
    store.set_level(at[0] if at else None, level)
    return {"compatibility": level}


def _check(store: SchemaStore, at: tuple[str, ...], body: Body) -> Body:
    wrong = store.check(at[0], at[1], _schema(body))
    return {"is_compatible": not wrong, "messages": wrong}


def _schema(body: Body) -> str:
    if body.get("schemaType", "AVRO") != "AVRO" or not isinstance(body.get("schema"), str):
        raise Refusal(UNPROCESSABLE, BAD_SCHEMA, 'expected a body {"schema": "..."} of type AVRO')
    return cast("str", body["schema"])


def _subjects(store: SchemaStore, at: tuple[str, ...], body: Body) -> list[str]:
    del at, body
    return store.subjects()


def _global_level(store: SchemaStore, at: tuple[str, ...], body: Body) -> Body:
    del at, body
    return {"compatibilityLevel": store.level(None)}


ROUTES: list[tuple[str, str, Route]] = [
    ("GET", r"/subjects", _subjects),
    ("POST", r"/subjects/([^/]+)", lambda s, at, b: _detail(s.find(at[0], _schema(b)), at[0])),
    ("GET", r"/subjects/([^/]+)/versions", lambda s, at, _: [*range(1, len(s.versions(at[0])) + 1)]),
    ("POST", r"/subjects/([^/]+)/versions", _register),
    ("GET", r"/subjects/([^/]+)/versions/([^/]+)", lambda s, at, _: _detail(s.version(*at), at[0])),
    ("GET", r"/schemas/ids/([^/]+)", _by_id),
    ("GET", r"/schemas/guids/([^/]+)", _by_guid),
    ("GET", r"/config", _global_level),
    ("GET", r"/config/([^/]+)", lambda s, at, _: {"compatibilityLevel": s.level(at[0])}),
    ("PUT", r"/config", _set_level),
    ("PUT", r"/config/([^/]+)", _set_level),
    ("POST", r"/compatibility/subjects/([^/]+)/versions/([^/]+)", _check),
]


def answer(store: SchemaStore, method: str, path: str, body: Body) -> tuple[int, object]:
    """(status, JSON value) for a request."""
    for wanted, pattern, route in ROUTES:
        found = re.fullmatch(pattern, path)
        if wanted == method and found:
            try:
                return OK, route(store, tuple(unquote(x) for x in found.groups()), body)
            except Refusal as refusal:
                return refusal.status, {"error_code": refusal.code, "message": refusal.message}
    return NOT_FOUND, {"error_code": NOT_FOUND, "message": f"HTTP 404 Not Found: {method} {path}"}


class _Server(ThreadingHTTPServer):
    """Knows its connections, so that closing it also ends the idle ones that clients keep."""

    daemon_threads = True
    block_on_close = False
    request_queue_size = 128  # parts that start together ask together

    def __init__(self, port: int, store: SchemaStore) -> None:
        super().__init__((LOOPBACK, port), _Handler)
        self.store = store
        self._lock = threading.Lock()
        self._connections: set[socket.socket] = set()

    def process_request(self, request: Any, client_address: object) -> None:
        with self._lock:
            self._connections.add(request)
        super().process_request(request, client_address)

    def shutdown_request(self, request: Any) -> None:
        with self._lock:
            self._connections.discard(request)
        super().shutdown_request(request)

    def drop_connections(self) -> None:
        with self._lock:
            connections = list(self._connections)
        for connection in connections:
            try:
                connection.shutdown(socket.SHUT_RDWR)
            except OSError:  # its client was faster
                continue


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    # Headers and body leave in two packets; without this each answer waits 40 ms for the client's delayed ACK.
    disable_nagle_algorithm = True

    def _serve(self) -> None:
        length = int(self.headers.get("Content-Length") or 0)
        raw = self.rfile.read(length) if length else b"{}"
        path = urlsplit(self.path).path.rstrip("/")
        try:
            body: object = json.loads(raw)
        except ValueError:
            body = None
        if isinstance(body, dict):
            status, value = answer(cast("_Server", self.server).store, self.command, path, cast("Body", body))
        else:
            status, value = UNPROCESSABLE, {"error_code": BAD_SCHEMA, "message": "expected a JSON object as body"}
        data = json.dumps(value).encode()
        self.send_response(status)
        self.send_header("Content-Type", CONTENT_TYPE)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    do_GET = do_POST = do_PUT = _serve

    def log_message(self, format: str, *args: object) -> None:
        """Says nothing; the clients report what goes wrong."""


class EmbeddedRegistry:
    """A registry served by a thread of this process. Close it, or use it as a context manager."""

    def __init__(self, port: int = 0) -> None:
        """`port` 0 takes a free one; `url` tells which."""
        self._server = _Server(port, SchemaStore())
        self.port: int = self._server.server_address[1]
        self.url = f"http://{LOOPBACK}:{self.port}"
        self._thread = threading.Thread(
            target=self._server.serve_forever, args=(0.05,), name="embedded-registry", daemon=True
        )
        self._thread.start()

    def close(self) -> None:
        """Stops it and ends its connections; its schemas are gone."""
        self._server.shutdown()
        self._server.drop_connections()
        self._server.server_close()
        self._thread.join()

    def __enter__(self) -> EmbeddedRegistry:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
