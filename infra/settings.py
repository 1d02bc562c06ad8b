"""Settings, read once at a process's edge: arguments, then SPANLOOP_… variables, then spanloop.toml, then defaults.

SPANLOOP_BOOTSTRAP=broker:9092 spanloop streams
spanloop --profile local streams          # the addresses of infra/compose.yaml
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Annotated, Any, Literal
from urllib.parse import urlsplit

from pydantic import AfterValidator, BeforeValidator, Field, ValidationError
from pydantic_core import PydanticCustomError
from pydantic_settings import BaseSettings, PydanticBaseSettingsSource, SettingsConfigDict, TomlConfigSettingsSource

from ..schemas.errors import ConfigError
from .masking import MASK, SECRET_NAME, Masker, secrets_of

PREFIX = "SPANLOOP_"
NESTED = "__"
FILE = "spanloop.toml"
Profile = Literal["embedded", "local", "remote"]

# The ports that infra/compose.yaml publishes on this machine.
LOCAL: dict[str, Any] = {
    "profile": "local",
    "bootstrap": "127.0.0.1:19092",
    "registry_url": "http://127.0.0.1:18081",
    "clickhouse_url": "http://spanloop:spanloop@127.0.0.1:8123",
}


def _lower(value: object) -> object:
    return value.lower() if isinstance(value, str) else value


def _http(value: str) -> str:
    """Nothing of it is told: it may hold a password."""
    value = value.strip()  # a line end from a file of variables
    try:
        parts = urlsplit(value)
        reachable = parts.scheme in ("http", "https") and parts.hostname and parts.port != 0
    except ValueError:  # brackets or a port that are none
        reachable = False
    if value and not reachable:
        raise PydanticCustomError("url", "expected http://host:port or https://host:port")
    return value


Url = Annotated[str, AfterValidator(_http)]


class Settings(BaseSettings):
    """Where everything is and how it is to behave. Frozen; a process makes one and hands it on."""

    model_config = SettingsConfigDict(
        env_prefix=PREFIX,
        env_nested_delimiter=NESTED,
        frozen=True,
        extra="forbid",
        hide_input_in_errors=True,  # it may be a secret
    )

    profile: Profile = "remote"
    """embedded: the twins of one `spanloop up`; local: infra/compose.yaml; remote: whatever the addresses say."""
    bootstrap: str = ""
    """Kafka brokers, host:port, comma separated."""
    registry_url: Url = ""
    """Schema registry with Confluent's routes."""
    registry_user: str = ""
    """For basic authentication at the schema registry; empty = none."""
    registry_password: str = ""
    """Its password."""
    registry_ca: str = ""
    """File with the certificates that an https registry is trusted by; empty = the system's."""
    registry_wait_s: float = Field(default=60.0, ge=0)
    """How long a part waits at its start for the schema registry, before it gives up."""
    clickhouse_url: Url = ""
    """ClickHouse's HTTP interface, http://user:password@host:port."""
    clickhouse_database: str = "spanloop"
    """Database for tables and views; made by `spanloop init`."""
    gateway_url: Url = "http://127.0.0.1:8700"
    """Where agents reach the gateway, without /v1."""
    prefix: str = "spanloop"
    """Put before every topic name, consumer group and transactional id; one pool, one prefix."""
    partitions: int = Field(default=4, ge=1)
    """Partitions of the spread topics. Fixed for a prefix's life."""
    replication: int = Field(default=1, ge=1)
    """Replicas per partition."""
    min_isr: int = Field(default=0, ge=0)
    """Replicas that must have a record before it is acknowledged; 0 = all but one, and at least one."""
    kafka: dict[str, str] = Field(default_factory=dict)
    """Further librdkafka settings for every client, such as security.protocol and sasl.*."""
    session_timeout_s: float = Field(default=6.0, gt=0)
    """How long a silent group member is waited for before its partitions go to another.

    Between the broker's group.min.session.timeout.ms and group.max.session.timeout.ms.
    """
    dlq_limit: int = Field(default=100, ge=0)
    """Dead letters in a row after which a consumer stops instead of draining a topic."""
    max_block_s: float = Field(default=5.0, ge=0)
    """How long a producer may block its caller while its queue is full."""
    queue_records: int = Field(default=100_000, ge=1)
    """Records a producer holds before it blocks."""
    secret: str = ""
    """Signs the per-attempt keys; the same for workers and gateways. Empty = no keys: only its URL binds a call."""
    home: Path = Path("runs")
    """Folder for runs: ClickHouse data, checkpoints, exports."""
    otel_endpoint: Url = ""
    """OTLP endpoint for spanloop's own metrics and traces; empty = off."""
    log_format: Literal["console", "json"] = "console"
    """How log lines look: for people, or one JSON object a line."""
    log_level: Annotated[Literal["", "debug", "info", "warning", "error"], BeforeValidator(_lower)] = ""
    """What is logged; empty = as the command has it: warnings, with --verbose also info."""

    def __init__(self, **values: Any) -> None:
        """Raises ConfigError naming each key that is unknown or wrong, wherever it was set."""
        _check_environment(type(self).model_fields)
        try:
            super().__init__(**values)
        except ValidationError as error:
            wrong = [f"{'.'.join(map(str, e['loc']))}: {_wrong(e['type'], e['msg'])}" for e in error.errors()]
            raise ConfigError(f"setting {'; '.join(wrong)} ({PREFIX}… variables, {FILE} or arguments)") from error
        except (ValueError, OSError) as error:  # no TOML, a file that we may not read, a variable that holds no JSON
            raise ConfigError(f"settings cannot be read from {PREFIX}… variables or {FILE}: {error}") from error

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,
        dotenv_settings: PydanticBaseSettingsSource,
        file_secret_settings: PydanticBaseSettingsSource,
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        del dotenv_settings, file_secret_settings
        # All of them set is a child's environment, from `environment`: the file's `kafka` would be added to that.
        complete = all(f"{PREFIX}{name.upper()}" in os.environ for name in settings_cls.model_fields)
        return init_settings, env_settings, TomlConfigSettingsSource(settings_cls, None if complete else FILE)

    def environment(self) -> dict[str, str]:
        """These settings as SPANLOOP_… variables for a child process."""
        return {
            f"{PREFIX}{name.upper()}": json.dumps(value) if isinstance(value, dict) else str(value)
            for name, value in self.model_dump(mode="json").items()
        }

    def __repr_args__(self) -> Iterator[tuple[str | None, Any]]:
        """Secrets are not shown, wherever settings are printed."""
        mask = Masker(secrets_of(self))
        for name, value in super().__repr_args__():
            if name == "kafka":
                yield name, _shown(self.kafka)
            elif isinstance(value, str) and value:
                yield name, MASK if SECRET_NAME.search(name or "") else mask(value)
            else:
                yield name, value

    def with_(self, **changes: Any) -> Settings:
        """A copy with some fields changed."""
        return self.model_copy(update=changes)


def _shown(kafka: dict[str, str]) -> dict[str, str]:
    return {name: MASK if SECRET_NAME.search(name) else value for name, value in kafka.items()}


def _wrong(kind: str, message: str) -> str:
    return "there is no such setting" if kind == "extra_forbidden" else message


def _check_environment(known: Iterable[str]) -> None:
    """A misspelt variable would otherwise be passed over without a word."""
    names = {f"{PREFIX}{name.upper()}" for name in known}
    unknown = [
        key for key in os.environ if key.upper().startswith(PREFIX) and key.upper().split(NESTED)[0] not in names
    ]
    if unknown:
        raise ConfigError(f"there is no such setting: {', '.join(sorted(unknown))}; infra/settings.py lists them all")
