"""The embedded registry's routes, status codes and bodies, as clients of Confluent's registry expect them."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from spanloop.infra.embedded_registry import EmbeddedRegistry

V1 = '{"type": "record", "name": "R", "fields": [{"name": "a", "type": "int"}]}'
V1_SPACED = '{"name": "R",  "type": "record", "fields": [{"type": "int", "name": "a"}]}'
V2 = V1.replace("]", ', {"name": "b", "type": "int", "default": 0}]')
BROKEN = '{"type": "record", "name": "R", "fields": [{"name": "a", "type": "int"}, {"name": "c", "type": "int"}]}'


@pytest.fixture
def http() -> Iterator[httpx.Client]:
    with EmbeddedRegistry() as registry, httpx.Client(base_url=registry.url) as client:
        yield client


def post(http: httpx.Client, path: str, schema: str) -> httpx.Response:
    return http.post(path, json={"schema": schema})


def body(answer: httpx.Response, status: int = 200) -> Any:
    assert answer.status_code == status, answer.text
    assert answer.headers["content-type"] == "application/vnd.schemaregistry.v1+json"
    return answer.json()


def test_a_schema_gets_an_id_a_version_and_a_guid_and_the_same_one_gets_the_same(http: httpx.Client) -> None:
    first = body(post(http, "/subjects/s-value/versions", V1))
    assert (first["id"], first["version"]) == (1, 1)
    assert body(post(http, "/subjects/s-value/versions", V1_SPACED)) == first
    assert body(post(http, "/subjects/other-value/versions", V1))["id"] == 1
    second = body(post(http, "/subjects/s-value/versions", V2))
    assert (second["id"], second["version"]) == (2, 2)
    assert body(http.get("/subjects")) == ["other-value", "s-value"]
    assert body(http.get("/subjects/s-value/versions")) == [1, 2]


def test_a_schema_is_found_by_id_guid_version_and_content(http: httpx.Client) -> None:
    made = body(post(http, "/subjects/s-value/versions", V1))
    assert json.loads(body(http.get(f"/schemas/ids/{made['id']}"))["schema"]) == json.loads(V1)
    assert json.loads(body(http.get(f"/schemas/guids/{made['guid']}"))["schema"]) == json.loads(V1)
    whole = {"subject": "s-value", "version": 1, "id": 1, "guid": made["guid"], "schema": V1}
    assert body(http.get("/subjects/s-value/versions/1")) == whole
    assert body(http.get("/subjects/s-value/versions/latest")) == whole
    assert body(post(http, "/subjects/s-value", V1_SPACED)) == whole


@pytest.mark.parametrize(
    ("path", "status", "code"),
    [
        ("/schemas/ids/99", 404, 40403),
        ("/schemas/guids/6f0c1f0e-6d0b-4b9a-9d7e-0d6f8a3a5c11", 404, 40403),
        ("/subjects/none-value/versions", 404, 40401),
        ("/subjects/s-value/versions/9", 404, 40402),
        ("/subjects/s-value/versions/zero", 422, 42202),
        ("/config/s-value", 404, 40408),
        ("/nothing", 404, 404),
    ],
)
def test_what_is_not_there_is_told_by_code_and_message(http: httpx.Client, path: str, status: int, code: int) -> None:
    post(http, "/subjects/s-value/versions", V1)
    told = body(http.get(path), status)
    assert told["error_code"] == code
    assert told["message"]


def test_an_incompatible_schema_is_refused_with_409_naming_the_field(http: httpx.Client) -> None:
    post(http, "/subjects/s-value/versions", V1)
    assert body(http.put("/config/s-value", json={"compatibility": "FULL_TRANSITIVE"})) == {
        "compatibility": "FULL_TRANSITIVE"
    }
    told = body(post(http, "/subjects/s-value/versions", BROKEN), 409)
    assert told["error_code"] == 409
    assert "field 'c': not written and without a default" in told["message"]
    assert body(http.get("/subjects/s-value/versions")) == [1]


def test_compatibility_can_be_asked_without_registering(http: httpx.Client) -> None:
    post(http, "/subjects/s-value/versions", V1)
    path = "/compatibility/subjects/s-value/versions/latest"
    assert body(post(http, path, V2)) == {"is_compatible": True, "messages": []}
    told = body(post(http, path, BROKEN))
    assert told["is_compatible"] is False
    assert "field 'c'" in told["messages"][0]
    assert body(http.get("/subjects/s-value/versions")) == [1]


def test_levels_are_global_until_a_subject_has_its_own(http: httpx.Client) -> None:
    assert body(http.get("/config")) == {"compatibilityLevel": "BACKWARD"}
    http.put("/config", json={"compatibility": "NONE"})
    post(http, "/subjects/s-value/versions", V1)
    body(post(http, "/subjects/s-value/versions", '"string"'))
    http.put("/config/s-value", json={"compatibility": "FULL"})
    assert body(http.get("/config/s-value")) == {"compatibilityLevel": "FULL"}
    body(post(http, "/subjects/s-value/versions", V1_SPACED.replace("R", "S")), 409)
    assert body(http.put("/config", json={"compatibility": "SOME"}), 422)["error_code"] == 42203


@pytest.mark.parametrize(
    "content", [b'{"schema": "{"}', b'{"schema": "\\"nothing\\""}', b"{}", b"[]", b"\xff", b'{"schema": 1}']
)
def test_what_is_no_schema_is_refused_with_422(http: httpx.Client, content: bytes) -> None:
    assert body(http.post("/subjects/s-value/versions", content=content), 422)["error_code"] == 42201
    assert body(http.get("/subjects")) == []


def test_subjects_may_hold_characters_that_urls_escape(http: httpx.Client) -> None:
    body(post(http, "/subjects/a%2Fb%20c-value/versions", V1))
    assert body(http.get("/subjects")) == ["a/b c-value"]


def test_a_closed_registry_ends_even_the_connections_that_clients_keep() -> None:
    registry = EmbeddedRegistry()
    with httpx.Client(base_url=registry.url) as client:
        body(client.get("/subjects"))
        registry.close()
        with pytest.raises(httpx.TransportError):
            client.get("/subjects")
