"""One suite for the embedded twins and a real Kafka with its registry: the registry.

What the twin lacks is a table beside it (`embedded_broker.LACKS`); those tests run on a real broker only.
"""

from __future__ import annotations

import json
import time

import httpx
import pytest

from spanloop.infra import admin
from spanloop.infra.registry import NOT_FOUND_TRIES, Registry
from spanloop.infra.settings import Settings
from spanloop.schemas.errors import SchemaMismatch, UnknownSchemaId
from spanloop.schemas.serde import schema_json
from spanloop.schemas.topics import TASKS, TOPICS


@pytest.fixture
def settings(conforming: Settings) -> Settings:
    """Each broker in turn, but for what the embedded one lacks."""
    return conforming


def test_a_schema_keeps_its_id_and_is_found_by_it(settings: Settings, lookup: Registry) -> None:
    ids = admin.register(settings)
    for name, schema_id in ids.items():
        assert json.loads(lookup.schema(schema_id)) == json.loads(schema_json(TOPICS[name].record))
    assert admin.register(settings) == ids
    assert {t.subject(settings.prefix) for t in TOPICS.values()} <= set(lookup.subjects())


def test_a_field_without_a_default_is_refused_and_one_with_a_default_is_taken(
    settings: Settings, lookup: Registry
) -> None:
    subject = TASKS.subject(settings.prefix)
    own = json.loads(schema_json(TASKS.record))
    without = {**own, "fields": [*own["fields"], {"name": "later", "type": "string"}]}
    with pytest.raises(SchemaMismatch, match=subject):
        lookup.register(subject, json.dumps(without))
    with_default = {**own, "fields": [*own["fields"], {"name": "later", "type": "string", "default": ""}]}
    assert lookup.register(subject, json.dumps(with_default)) != lookup.register(subject, json.dumps(own))


def test_an_id_that_was_never_given_out_is_unknown_after_bounded_tries(lookup: Registry) -> None:
    begun = time.monotonic()
    with pytest.raises(UnknownSchemaId):
        lookup.schema(2_000_000)
    assert time.monotonic() - begun >= 0.2 * (NOT_FOUND_TRIES - 1)


def test_a_schema_is_found_by_its_guid(settings: Settings, lookup: Registry) -> None:
    if settings.profile != "embedded":
        pytest.skip("Apicurio 3.0 has no GUIDs; Confluent's registry has them since 8.0")
    guid = httpx.get(f"{settings.registry_url}/subjects/{TASKS.subject(settings.prefix)}/versions/1").json()["guid"]
    assert json.loads(lookup.schema(guid)) == json.loads(schema_json(TASKS.record))
