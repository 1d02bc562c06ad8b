"""A migrated database for the session, emptied for each test."""

from __future__ import annotations

from collections.abc import Iterator
from uuid import uuid4

import pytest
from sink_rig import Lab, Letters

from spanloop.infra.clickhouse import connect, migrate
from spanloop.infra.settings import Settings


@pytest.fixture(scope="session")
def database(clickhouse_url: str) -> Settings:
    """One migrated database for the session; making it takes longer than most tests."""
    settings = Settings(clickhouse_url=clickhouse_url, clickhouse_database=f"t{uuid4().hex[:12]}")
    client = connect(settings)
    migrate(client, settings.clickhouse_database)
    client.close()
    return settings


@pytest.fixture
def lab(database: Settings) -> Iterator[Lab]:
    """Its tables, empty."""
    client = connect(database)
    name = database.clickhouse_database
    for (table,) in client.query(
        f"SELECT table FROM system.parts WHERE database = '{name}' AND active GROUP BY table"
    ).result_rows:
        if table != "migrations":
            client.command(f"TRUNCATE TABLE `{table}`")
    yield Lab(database, client, Letters())
    client.close()
