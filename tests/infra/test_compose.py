"""compose.yaml is held to the part of the Compose specification that it uses; anything else in it is an error."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from importlib.resources import files
from typing import Any, cast

import pytest
import yaml
from jsonschema import Draft202012Validator

from spanloop.infra.settings import LOCAL
from spanloop.schemas.topics import TOPICS

Json = dict[str, Any]

TEXT = {"type": "string", "minLength": 1}
TEXTS = {"type": "array", "items": TEXT, "minItems": 1}
DURATION = {"type": "string", "pattern": r"^[0-9]+(s|m)$"}
NAMED = r"^[a-z][a-z0-9_-]*$"


def strict(properties: Json, *required: str) -> Json:
    return {"type": "object", "properties": properties, "required": list(required), "additionalProperties": False}


def each(schema: Json) -> Json:
    return {"type": "object", "patternProperties": {NAMED: schema}, "additionalProperties": False}


SERVICE = strict(
    {
        "image": {"type": "string", "pattern": r"^[a-z0-9./-]+:v?[0-9]+\.[0-9]+(\.[0-9]+)*$"},
        "command": TEXTS,
        "environment": {"type": "object", "additionalProperties": TEXT},
        "configs": {"type": "array", "items": strict({"source": TEXT, "target": TEXT}, "source", "target")},
        "ports": {"type": "array", "items": {"type": "string", "pattern": r"^127\.0\.0\.1:[0-9]+:[0-9]+$"}},
        "volumes": {"type": "array", "items": {"type": "string", "pattern": r"^[a-z]+:/[a-z/]+$"}},
        "depends_on": each(strict({"condition": {"enum": ["service_healthy"]}}, "condition")),
        "ulimits": each(strict({"soft": {"type": "integer"}, "hard": {"type": "integer"}}, "soft", "hard")),
        "healthcheck": strict(
            {
                "test": {"type": "array", "prefixItems": [{"const": "CMD-SHELL"}, TEXT], "minItems": 2, "maxItems": 2},
                "interval": DURATION,
                "timeout": DURATION,
                "retries": {"type": "integer", "minimum": 1},
                "start_period": DURATION,
            },
            "test",
            "interval",
            "timeout",
            "retries",
        ),
        "restart": {"enum": ["unless-stopped"]},
    },
    "image",
    "healthcheck",
    "ports",
)
COMPOSE = strict(
    {
        "name": {"type": "string", "pattern": NAMED},
        "services": each(SERVICE),
        "configs": each(strict({"content": TEXT}, "content")),
        "volumes": each({"type": "object", "maxProperties": 0}),
    },
    "name",
    "services",
)


def errors(instance: Any) -> list[str]:
    found = cast("Callable[[Any], Iterator[Any]]", Draft202012Validator(COMPOSE).iter_errors)  # pyright: ignore[reportUnknownMemberType]  # its stub types it in part
    return [f"{e.json_path}: {e.message}" for e in found(instance)]


@pytest.fixture(scope="module")
def compose() -> Json:
    return yaml.safe_load((files("spanloop.infra") / "compose.yaml").read_text("utf-8"))


def test_it_has_only_what_the_specification_knows_and_every_image_is_pinned(compose: Json) -> None:
    assert errors(compose) == []


@pytest.mark.parametrize(
    ("service", "key", "value"),
    [
        ("redpanda", "image", "docker.redpanda.com/redpandadata/redpanda:latest"),
        ("redpanda", "port", ["9092:9092"]),
        ("clickhouse", "ports", ["8123:8123"]),
    ],
)
def test_the_check_can_fail(compose: Json, service: str, key: str, value: object) -> None:
    changed = {**compose, "services": {**compose["services"], service: {**compose["services"][service], key: value}}}
    assert errors(changed)


def test_it_publishes_the_ports_of_the_local_profile(compose: Json) -> None:
    published = {p.rpartition(":")[0] for s in compose["services"].values() for p in s["ports"]}
    wanted = {re.sub(r"^http://([^@]*@)?", "", LOCAL[k]) for k in ("bootstrap", "registry_url", "clickhouse_url")}
    assert wanted <= published
    user = compose["services"]["clickhouse"]["environment"]
    assert LOCAL["clickhouse_url"].startswith(f"http://{user['CLICKHOUSE_USER']}:{user['CLICKHOUSE_PASSWORD']}@")


def test_every_reference_leads_somewhere(compose: Json) -> None:
    for service in compose["services"].values():
        assert {v.split(":")[0] for v in service.get("volumes", ())} <= compose["volumes"].keys()
        assert {c["source"] for c in service.get("configs", ())} <= compose["configs"].keys()
        assert service.get("depends_on", {}).keys() <= compose["services"].keys()


def test_the_broker_takes_the_largest_topics_records(compose: Json) -> None:
    config = yaml.safe_load(compose["configs"]["redpanda"]["content"])
    assert config["kafka_batch_max_bytes"] == max(t.max_bytes for t in TOPICS.values()) == 20 << 20
    assert config["auto_create_topics_enabled"] is False
