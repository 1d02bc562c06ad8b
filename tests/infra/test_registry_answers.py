"""Answers of a registry, or of what stands in its place, other than the usual ones."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, HTTPServer

import pytest

from spanloop.infra.registry import Registry
from spanloop.schemas.errors import ConfigError, InvalidRecord, Unavailable, UnknownSchemaId
from spanloop.schemas.records import Task
from spanloop.schemas.serde import Decoder, encode_body, frame, schema_json
from spanloop.schemas.topics import SPANS, TASKS

TASK = Task(rollout_id="ro-1", run_id="run")


@dataclass
class Odd:
    """A registry, or what stands in its place, that answers everything the same way."""

    status: int = 200
    body: str = "{}"
    headers: dict[str, str] = field(default_factory=dict[str, str])
    url: str = ""
    asked: int = 0


@pytest.fixture
def odd() -> Iterator[Odd]:
    told = Odd()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            told.asked += 1
            self.send_response(told.status)
            for name, value in told.headers.items():
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(told.body.encode())

        do_POST = do_GET

        def log_message(self, format: str, *args: object) -> None:
            del format, args

    with HTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.05,))
        thread.start()
        told.url = f"http://127.0.0.1:{server.server_address[1]}"
        yield told
        server.shutdown()
        thread.join()


@pytest.mark.parametrize("status", [400, 422])
def test_an_id_that_is_none_to_the_registry_is_unknown_at_once(odd: Odd, status: int) -> None:
    odd.status, odd.body = status, '{"error_code": 400, "message": "value out of range"}'
    with closing(Registry(odd.url)) as registry, pytest.raises(UnknownSchemaId, match="4294967295"):
        Decoder(registry).decode_topic(SPANS, b"\0\xff\xff\xff\xff garbage")
    assert odd.asked == 1


@pytest.mark.parametrize("status", [408, 429, 503])
def test_a_registry_that_has_no_time_now_is_away(odd: Odd, status: int) -> None:
    odd.status, odd.body = status, "slow down"
    with closing(Registry(odd.url)) as registry:
        with pytest.raises(Unavailable, match=f"answered {status}: slow down"):
            Decoder(registry).decode_topic(SPANS, frame(7, b"\0"))
        with pytest.raises(Unavailable):
            registry.register("tasks-value", schema_json(Task))


@pytest.mark.parametrize("kind", ["PROTOBUF", "JSON"])
def test_a_schema_of_another_type_is_the_records_fault(odd: Odd, kind: str) -> None:
    odd.body = json.dumps({"schemaType": kind, "schema": schema_json(Task)})
    with (
        closing(Registry(odd.url)) as registry,
        pytest.raises(InvalidRecord, match=f"id 7 is of type {kind}") as caught,
    ):
        Decoder(registry).decode_topic(TASKS, frame(7, encode_body(TASK)))
    assert caught.value.reason == "undecodable"


@pytest.mark.parametrize(
    ("status", "headers", "body", "came"),
    [
        (301, {"Location": "https://me:r3g-pw@registry/config"}, "", r"301 to https://me:\*\*\*@registry/config"),
        (304, {}, "", "304 no content type: ''"),
        (200, {"Content-Type": "text/html"}, "<html>log in", "200 text/html: '<html>log in'"),
        (200, {"Content-Type": "application/json"}, "[]", r"200 application/json: '\[\]'"),
    ],
    ids=["redirect", "no body", "html", "another service"],
)
def test_what_is_no_registry_is_told_with_its_address(
    odd: Odd, status: int, headers: dict[str, str], body: str, came: str
) -> None:
    odd.status, odd.headers, odd.body = status, headers, body
    asks: list[Callable[[Registry], object]] = [
        lambda r: r.schema(7), lambda r: r.register("tasks-value", schema_json(Task))
    ]  # fmt: skip
    for ask in asks:
        with closing(Registry(odd.url)) as registry, pytest.raises(ConfigError, match=came) as caught:
            ask(registry)
        assert odd.url in str(caught.value)
        assert "setting registry_url" in str(caught.value)
