"""The registry client, and how an unreadable value is told from a registry that is away (SP-22, BR-6)."""

from __future__ import annotations

import json
import struct
import threading
from base64 import b64encode
from collections.abc import Iterator
from contextlib import closing
from http.server import BaseHTTPRequestHandler, HTTPServer

import httpx
import pytest
from waiting import until

from spanloop.infra import registry as registry_module
from spanloop.infra.embedded_registry import EmbeddedRegistry
from spanloop.infra.real_kafka import free_port
from spanloop.infra.registry import NOT_FOUND_TRIES, Registry, connect, encoder, register_all, wait_for_registry
from spanloop.infra.settings import Settings
from spanloop.schemas.errors import ConfigError, InvalidRecord, SchemaMismatch, Unavailable, UnknownSchemaId
from spanloop.schemas.records import Task
from spanloop.schemas.serde import SCHEMA_ID_HEADER, Decoder, encode_body, frame, schema_json
from spanloop.schemas.topics import SPANS, TASKS, TOPICS

TASK = Task(rollout_id="ro-1", run_id="run")


@pytest.fixture
def own() -> Iterator[EmbeddedRegistry]:
    """A registry of this test's own, which it may close."""
    running = EmbeddedRegistry()
    yield running
    running.close()


@pytest.fixture
def client(own: EmbeddedRegistry, monkeypatch: pytest.MonkeyPatch) -> Iterator[Registry]:
    monkeypatch.setattr(registry_module, "NOT_FOUND_PAUSE_S", 0.0)
    made = Registry(own.url)
    yield made
    made.close()


def test_every_topics_schema_is_registered_and_read_back(own: EmbeddedRegistry, client: Registry) -> None:
    ids = register_all(client, Settings(registry_url=own.url, prefix="p"))
    assert ids.keys() == TOPICS.keys()
    assert len(set(ids.values())) == len(TOPICS)
    assert sorted(client.subjects()) == sorted(f"p-{name}-value" for name in TOPICS)
    for name, schema_id in ids.items():
        assert json.loads(client.schema(schema_id)) == json.loads(schema_json(TOPICS[name].record))
    assert register_all(client, Settings(registry_url=own.url, prefix="p")) == ids


def test_a_value_is_read_by_the_id_in_its_bytes_and_by_id_or_guid_in_its_header(
    own: EmbeddedRegistry, client: Registry
) -> None:
    schema_id = client.register("tasks-value", schema_json(Task))
    decoder = Decoder(client)
    body = encode_body(TASK)
    assert decoder.decode_topic(TASKS, frame(schema_id, body)) == TASK
    by_id = [(SCHEMA_ID_HEADER, b"\0" + struct.pack(">I", schema_id))]
    assert decoder.decode_topic(TASKS, body, by_id) == TASK
    guid = httpx.get(f"{own.url}/subjects/tasks-value/versions/1").json()["guid"]
    by_guid = [(SCHEMA_ID_HEADER, b"\1" + bytes.fromhex(guid.replace("-", "")))]
    assert decoder.decode_topic(TASKS, body, by_guid) == TASK


@pytest.mark.parametrize(
    "value", [b"\x93\x00\x7f", b'{"rollout_id": "ro-1"}', b"", b"\0\0\0\0"], ids=["random", "json", "empty", "short"]
)
def test_bytes_without_the_magic_byte_are_the_records_fault_and_the_registry_is_not_asked(
    own: EmbeddedRegistry, client: Registry, value: bytes
) -> None:
    own.close()  # asking it would raise Unavailable
    with pytest.raises(InvalidRecord) as caught:
        Decoder(client).decode_topic(SPANS, value)
    assert caught.value.reason == "bad_framing"


def test_an_unknown_schema_id_is_the_records_fault_after_bounded_404s(
    client: Registry, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[str] = []
    ask = client._ask  # pyright: ignore[reportPrivateUsage]  # counts requests where they leave

    def counted(method: str, path: str) -> httpx.Response:
        asked.append(path)
        return ask(method, path)

    monkeypatch.setattr(client, "_ask", counted)
    with pytest.raises(UnknownSchemaId) as caught:
        Decoder(client).decode_topic(SPANS, frame(999, b"\0"))
    assert (caught.value.reason, caught.value.schema_id) == ("unknown_schema_id", 999)
    assert asked == ["/schemas/ids/999"] * NOT_FOUND_TRIES


def test_an_id_that_the_registry_learns_between_two_404s_is_found(
    client: Registry, monkeypatch: pytest.MonkeyPatch
) -> None:
    def learn(seconds: float) -> None:
        del seconds
        client.register("tasks-value", schema_json(Task))

    monkeypatch.setattr(registry_module.time, "sleep", learn)
    assert Decoder(client).decode_topic(TASKS, frame(1, encode_body(TASK))) == TASK


def test_a_registry_that_is_away_is_no_fault_of_the_record(own: EmbeddedRegistry, client: Registry) -> None:
    own.close()
    with pytest.raises(Unavailable, match=f"{own.url} cannot be reached"):
        Decoder(client).decode_topic(SPANS, frame(7, b"\0"))


def test_a_cached_id_needs_no_registry(own: EmbeddedRegistry, client: Registry) -> None:
    schema_id = client.register("tasks-value", schema_json(Task))
    decoder = Decoder(client)
    value = frame(schema_id, encode_body(TASK))
    decoder.decode_topic(TASKS, value)
    own.close()
    assert decoder.decode_topic(TASKS, value) == TASK


def test_a_body_of_another_schema_is_the_records_fault(client: Registry) -> None:
    schema_id = client.register("tasks-value", schema_json(Task))
    with pytest.raises(InvalidRecord) as caught:
        Decoder(client).decode_topic(TASKS, frame(schema_id, b"\xff\xff"))
    assert caught.value.reason == "undecodable"


def test_an_incompatible_schema_is_refused_naming_subject_and_field(client: Registry) -> None:
    client.set_compatibility("tasks-value")
    client.register("tasks-value", schema_json(Task))
    changed = json.loads(schema_json(Task))
    changed["fields"].append({"name": "later", "type": "string"})
    with pytest.raises(SchemaMismatch, match=r"'tasks-value'.*field 'later'.*only be added, with defaults"):
        client.register("tasks-value", json.dumps(changed))


def test_a_producer_cannot_start_without_its_registry() -> None:
    with pytest.raises(Unavailable, match=r"http://127\.0\.0\.1:1 cannot be reached"):
        encoder(Settings(registry_url="http://127.0.0.1:1"))


def test_a_part_waits_at_its_start_until_the_registry_answers(caplog: pytest.LogCaptureFixture) -> None:
    port = free_port()
    settings = Settings(registry_url=f"http://127.0.0.1:{port}", registry_wait_s=60)
    answers: list[bool] = []
    waiting = threading.Thread(target=lambda: answers.append(wait_for_registry(settings, threading.Event())))
    waiting.start()
    until(lambda: f"127.0.0.1:{port} cannot be reached" in caplog.text or not waiting.is_alive(), "its message")
    with EmbeddedRegistry(port):
        waiting.join(60)
    assert answers == [True]
    assert len([r for r in caplog.records if r.name == registry_module.__name__]) == 1


def test_the_wait_at_the_start_is_bounded_and_names_the_registry() -> None:
    settings = Settings(registry_url="http://127.0.0.1:1", registry_wait_s=0)
    with pytest.raises(Unavailable, match=r"http://127\.0\.0\.1:1 cannot be reached"):
        wait_for_registry(settings, threading.Event())


def test_the_wait_at_the_start_ends_when_told_to_stop() -> None:
    stop = threading.Event()
    stop.set()
    assert not wait_for_registry(Settings(registry_url="http://127.0.0.1:1"), stop)


class _Guarded(BaseHTTPRequestHandler):
    """A registry that lets in whoever knows the password."""

    def do_GET(self) -> None:
        known = self.headers.get("Authorization") == "Basic " + b64encode(b"me:r3g-pw").decode()
        self.send_response(200 if known else 401)
        self.end_headers()
        self.wfile.write(b'{"compatibilityLevel": "NONE"}')

    def log_message(self, format: str, *args: object) -> None:
        del format, args


@pytest.fixture
def guarded() -> Iterator[str]:
    with HTTPServer(("127.0.0.1", 0), _Guarded) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.05,))
        thread.start()
        yield f"127.0.0.1:{server.server_address[1]}"
        server.shutdown()
        thread.join()


def test_a_user_and_a_password_come_from_the_settings_or_the_address(guarded: str) -> None:
    by_settings = Settings(registry_url=f"http://{guarded}", registry_user="me", registry_password="r3g-pw")
    for settings in (by_settings, Settings(registry_url=f"http://me:r3g-pw@{guarded}")):
        with closing(connect(settings)) as registry:
            registry.check()
    assert "r3g-pw" not in repr(by_settings)


def test_a_refused_user_is_told_and_no_password_is(guarded: str) -> None:
    settings = Settings(registry_url=f"http://me:wr0ng-pw@{guarded}")
    with closing(connect(settings)) as registry, pytest.raises(ConfigError, match=r"401.*registry_password") as caught:
        registry.check()
    assert "wr0ng-pw" not in str(caught.value)
    away_at = connect(Settings(registry_url="http://me:wr0ng-pw@127.0.0.1:1"))
    with closing(away_at) as registry, pytest.raises(Unavailable, match=r"me:\*\*\*@127\.0\.0\.1:1 cannot") as away:
        registry.check()
    assert "wr0ng-pw" not in str(away.value)


def test_a_ca_that_cannot_be_read_is_named() -> None:
    with pytest.raises(ConfigError, match=r"registry_ca: /no/such\.pem"):
        connect(Settings(registry_url="https://127.0.0.1:1", registry_ca="/no/such.pem"))
