"""chDB as ClickHouse's HTTP interface sees it: one request in, one answer out.

Each request has a handle of its own (0.2 ms to open and close): SET, USE and readonly hold per handle and cannot be
taken back, and handles run side by side.
"""

from __future__ import annotations

import json
import re
import tempfile
from collections.abc import Generator, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol, cast

import chdb

from .avro_sql import literal, quote
from .embedded_clickhouse_sql import (
    InlineInsert,
    Refused,
    denied_functions,
    inline_insert,
    kind,
    refuse,
    result_format,
    without_format,
)

# Parameters of the HTTP interface itself; whatever else is in a URL is a setting.
TRANSPORT = {
    "query", "database", "default_format", "user", "password", "buffer_size", "session_id", "session_timeout",
    "session_check", "query_id", "quota_key", "compress", "decompress", "wait_end_of_query", "role",
    "client_protocol_version", "send_progress_in_http_headers", "add_http_cors_header",
    "http_headers_progress_interval_ms", "enable_http_compression", "cancel_http_readonly_queries_on_client_close",
    "http_make_head_request",
}  # fmt: skip
STATUS = {
    **dict.fromkeys((6, 26, 27, 36, 38, 41, 43, 53, 62, 386, 456, 457), 400),
    **dict.fromkeys((46, 47, 50, 60, 81, 115), 404),
    48: 501, 159: 408, 164: 403, 497: 403,
}  # fmt: skip
# What chDB raises. Its two distributions each bring a `chdb/__init__.py` with a ChdbError of its own, and which one is
# installed last decides; both derive what the engine raises from this one.
ENGINE_ERROR = RuntimeError
CODE = re.compile(r"Code: (\d+)")
ACCESS_DENIED, UNKNOWN = 497, 1002
# An INSERT's own words come before its data; a longer head than this is no head.
HEAD_BYTES = 1 << 16


@dataclass(frozen=True, slots=True)
class Answer:
    """What goes back: a status, a body, the format it is in ("" for none), and an error code or figures."""

    status: int
    body: bytes
    format: str = ""
    code: int | None = None
    summary: Mapping[str, int] | None = None


@dataclass(frozen=True, slots=True)
class Request:
    """A decoded HTTP request: URL parameters, whether it may only read, and the rest of its body in chunks."""

    params: Mapping[str, str]
    readonly: bool
    chunks: Iterable[bytes]


class Done(Protocol):
    """What a statement gave, as chDB tells it."""

    def bytes(self) -> bytes: ...
    def rows_read(self) -> int: ...
    def bytes_read(self) -> int: ...
    def rows_written(self) -> int: ...
    def bytes_written(self) -> int: ...


class Handle(Protocol):
    """The part of a chDB connection that is used; its own annotations stop at Any."""

    def query(self, query: str, format: str, *, params: Mapping[str, str] | None = None) -> Done: ...
    def close(self) -> None: ...


class Engine:
    """Owns the folder for as long as it lives; thread-safe."""

    def __init__(self, path: Path) -> None:
        path.mkdir(parents=True, exist_ok=True)
        self._path = str(path)
        self._uploads = path / "tmp"
        self._keep = _connect(self._path)  # the engine stays up while one handle is open
        names = self._keep.query("SELECT name FROM system.table_functions", "TSVRaw").bytes()
        self._denied = denied_functions(names.decode().split())
        self._uploads.mkdir(exist_ok=True)

    def close(self) -> None:
        """Ends running queries, writes what is pending and gives the folder back."""
        self._keep.query("KILL QUERY WHERE query_id != queryID() ASYNC", "Null")
        self._keep.close()

    def answer(self, request: Request) -> Answer:
        """Runs one request; its errors become answers."""
        try:
            return self._run(request)
        except Refused as error:
            return Answer(403, f"Code: 497. DB::Exception: {error}. (ACCESS_DENIED)\n".encode(), code=ACCESS_DENIED)
        except ENGINE_ERROR as error:
            text = str(error)
            text = text[max(text.find("Code: "), 0) :]
            code = int(found[1]) if (found := CODE.search(text)) else UNKNOWN
            return Answer(STATUS.get(code, 500), text.encode() + b"\n", code=code)

    def _run(self, request: Request) -> Answer:
        chunks = iter(request.chunks)
        head = request.params.get("query", "").encode()
        while len(head) < HEAD_BYTES and (more := next(chunks, None)) is not None:
            head = head + b"\n" + more if head and not head.endswith(b"\n") else head + more
        # latin-1 keeps every byte one character, so that data behind the head survives the search for its end
        text = head.decode("latin-1")
        insert = inline_insert(text)
        with self._handle(request) as handle:
            if insert is not None:
                statement = text[: insert.end].encode("latin-1").decode()
                refuse(statement, self._denied, readonly=request.readonly)
                return self._insert(handle, insert, head[insert.end :], chunks)
            sql = (head + b"".join(chunks)).decode().strip()
            refuse(sql, self._denied, readonly=request.readonly)
            return self._query(handle, sql, request.params)

    @contextmanager
    def _handle(self, request: Request) -> Generator[Handle]:
        handle = _connect(self._path)
        try:
            if database := request.params.get("database"):
                handle.query(f"USE {quote(database)}", "Null")
            settings = {k: v for k, v in request.params.items() if k not in TRANSPORT and not k.startswith("param_")}
            settings.pop("readonly", None)
            if request.readonly:
                settings["readonly"] = "1"  # last: no setting can be changed after it
            if settings:
                handle.query("SET " + ", ".join(f"{quote(k)} = {literal(v)}" for k, v in settings.items()), "Null")
            yield handle
        finally:
            handle.close()

    def _insert(self, handle: Handle, insert: InlineInsert, first: bytes, rest: Iterator[bytes]) -> Answer:
        """By a file: chDB's streaming insert swallows errors of views, and inline binary data ends at any ';' line."""
        with tempfile.NamedTemporaryFile(dir=self._uploads) as upload:
            upload.write(first)
            for chunk in rest:
                upload.write(chunk)
            upload.flush()
            into, settings = (s.encode("latin-1").decode() for s in (insert.into, insert.settings))
            done = handle.query(f"{into} FROM INFILE {literal(upload.name)} {settings} FORMAT {insert.format}", "Null")
        return Answer(200, b"", summary={"written_rows": done.rows_written(), "written_bytes": done.bytes_written()})

    def _query(self, handle: Handle, sql: str, params: Mapping[str, str]) -> Answer:
        form = result_format(sql) or params.get("default_format") or "TabSeparated"
        values = {k.removeprefix("param_"): v for k, v in params.items() if k.startswith("param_")}
        done = handle.query(sql, form, params=values)
        body = done.bytes()
        is_result = kind(sql) == "query"
        if is_result and not body and form == "Native":
            body = self._native_header(handle, sql, values)
        summary = {"read_rows": done.rows_read(), "read_bytes": done.bytes_read()}
        return Answer(200, body, form if is_result else "", summary=summary)

    def _native_header(self, handle: Handle, sql: str, values: Mapping[str, str]) -> bytes:
        """Column names and types of an empty result, for which chDB writes no block."""
        try:
            table = handle.query(f"DESCRIBE ({without_format(sql)})", "JSONCompactEachRow", params=values).bytes()
        except ENGINE_ERROR:  # SHOW and its like cannot be described; clients take an empty body for no columns
            return b""
        columns = [cast("list[str]", json.loads(line))[:2] for line in table.splitlines()]
        # long types come over several lines, which clients do not parse
        parts = (_string(re.sub(r"\n\s*", " ", part)) for column in columns for part in column)
        return _varint(len(columns)) + b"\0" + b"".join(parts)


def _connect(path: str) -> Handle:
    return cast("Handle", chdb.connect(path))  # pyright: ignore[reportUnknownMemberType]  # chdb carries no types


def _varint(number: int) -> bytes:
    out = bytearray()
    while number > 127:
        out.append(number & 127 | 128)
        number >>= 7
    out.append(number)
    return bytes(out)


def _string(text: str) -> bytes:
    data = text.encode()
    return _varint(len(data)) + data
