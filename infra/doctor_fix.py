"""Makes what the doctor finds missing and alters topic settings. Partition counts are let be: keys would move."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from typing import cast

from confluent_kafka import KafkaException
from confluent_kafka.admin import (
    AlterConfigOpType,  # pyright: ignore[reportPrivateImportUsage]  # it is public, by its documentation
    ConfigEntry,  # pyright: ignore[reportPrivateImportUsage]  # as above
    ConfigResource,  # pyright: ignore[reportPrivateImportUsage]  # as above
)

from ..schemas.errors import ConfigError, Unavailable
from ..schemas.topics import TOPICS
from .admin import counts, create, register
from .doctor_services import registry
from .doctor_topics import alterations, wrong_counts
from .facts import BrokerFacts, ClickHouseFacts, Facts, RegistryFacts
from .kafka_config import admin
from .registry import COMPATIBILITY
from .settings import Settings

ALTER_TIMEOUT_S = 10.0
APPEAR_TIMEOUT_S, APPEAR_POLL_S = 10.0, 0.1


def fix(settings: Settings, facts: Facts) -> list[str]:
    """Does what can be done without harm; what it did, one line each. Raises ConfigError, Unavailable, SchemaMismatch.

    Topics that keep more or take larger records than this version wants are let be. None is created while partition
    counts contradict the settings: which are right, only people know, and the new ones would keep the wrong for good.
    """
    done: list[str] = []
    if isinstance(facts.broker, BrokerFacts):
        missing = [t for t in TOPICS.values() if t.name not in facts.broker.topics]
        if missing and settings.profile != "embedded" and not wrong_counts(settings, facts.broker):
            create(settings, missing)
            _wait_for(settings, {t.name for t in missing})
            done.append(f"created {', '.join(t.full(settings.prefix) for t in missing)}")
        done += alter(settings, wanted(settings, facts.broker))
    if isinstance(facts.registry, RegistryFacts) and _subjects_are_wrong(facts):
        register(settings)
        done.append(f"registered {len(TOPICS)} subjects, {COMPATIBILITY}")
    tables = facts.clickhouse
    # one that was applied with other content nobody can repair from here
    if isinstance(tables, ClickHouseFacts) and tables.missing and not tables.changed:
        from .clickhouse import connect, migrate

        for name in migrate(connect(settings), settings.clickhouse_database, settings.prefix):
            done.append(f"applied {name} to {settings.clickhouse_database!r}")
    return done


def _wait_for(settings: Settings, names: set[str]) -> None:
    """Until the broker tells of new topics, which it does a moment after it has made them. Raises Unavailable."""
    deadline = time.monotonic() + APPEAR_TIMEOUT_S
    while absent := names - counts(settings).keys():
        if time.monotonic() > deadline:
            raise Unavailable(f"{settings.bootstrap} made {', '.join(sorted(absent))} but does not tell of it")
        time.sleep(APPEAR_POLL_S)


def wanted(settings: Settings, broker: BrokerFacts) -> dict[str, dict[str, str]]:
    """Topic name -> settings to be set. Pure."""
    found = {
        name: alterations(settings, TOPICS[name], topic.config)
        for name, topic in broker.topics.items()
        if topic.config is not None
    }
    return {name: changes for name, changes in found.items() if changes}


def alter(settings: Settings, changes: Mapping[str, Mapping[str, str]]) -> list[str]:
    """Sets topic settings; what was set. Raises ConfigError where the broker refuses."""
    if not changes:
        return []
    client = admin(settings)
    resources = {
        name: ConfigResource(
            ConfigResource.Type.TOPIC,
            TOPICS[name].full(settings.prefix),
            incremental_configs=[
                ConfigEntry(key, value, incremental_operation=AlterConfigOpType.SET) for key, value in new.items()
            ],
        )
        for name, new in changes.items()
    }
    start = cast(
        "Callable[..., dict[ConfigResource, Future[None]]]",
        client.incremental_alter_configs,  # pyright: ignore[reportUnknownMemberType]  # as describe_configs
    )
    futures = start(list(resources.values()), request_timeout=ALTER_TIMEOUT_S)
    done: list[str] = []
    for name, resource in resources.items():
        said = ", ".join(f"{key}={value}" for key, value in changes[name].items())
        try:
            futures[resource].result(2 * ALTER_TIMEOUT_S)
        except KafkaException as error:
            raise ConfigError(f"topic {name!r} on {settings.bootstrap} refuses {said}: {error}") from error
        done.append(f"set {said} on {TOPICS[name].full(settings.prefix)}")
    return done


def _subjects_are_wrong(facts: Facts) -> bool:
    return any(f.check == "subjects" and f.status != "ok" for f in registry(facts))
