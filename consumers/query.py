"""SQL for people: read-only, over a live ClickHouse or a finished run's folder.

with opened(settings, home) as query:
    query("SELECT count() FROM v_spans").rows
"""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from clickhouse_connect.driver.exceptions import ClickHouseError

from ..infra.clickhouse import connect, has_tables
from ..infra.clickhouse_client import Client
from ..infra.settings import Settings
from ..schemas.errors import ConfigError, InvalidQuery
from .plain import plain

DATA = "clickhouse"


@dataclass(frozen=True, slots=True)
class Result:
    """What a query gave."""

    columns: tuple[str, ...]
    rows: tuple[tuple[Any, ...], ...]

    def dicts(self) -> list[dict[str, Any]]:
        """Rows by column name."""
        return [dict(zip(self.columns, row, strict=True)) for row in self.rows]


class Query:
    """Asks one database; raises InvalidQuery for a bad statement, Unavailable while nobody answers."""

    def __init__(self, client: Client) -> None:
        self._client = client

    def __call__(self, sql: str, parameters: Mapping[str, Any] | None = None) -> Result:
        """Runs a query; parameters are written {name:Type} in it."""
        if not (statement := sql.strip().rstrip(";")):
            raise InvalidQuery("the query is empty; expected a SELECT over the v_… views")
        try:
            found = self._client.query(statement, parameters)
        except ClickHouseError as error:
            raise InvalidQuery(str(error)) from error
        return Result(tuple(found.column_names), tuple(tuple(row) for row in found.result_rows))


@contextmanager
def opened(settings: Settings, home: Path | None = None) -> Generator[Query]:
    """A Query over `home`, a finished run's folder, or else over the ClickHouse of the settings.

    Raises Unavailable, ConfigError.
    """
    if home is None:
        yield from _asked(settings)
        return
    folder = home / DATA
    if not folder.is_dir():
        raise ConfigError(f"{folder} does not exist; is {home} the folder of a run that kept its ClickHouse?")
    from ..infra.embedded_clickhouse import ClickHouseProcess

    with ClickHouseProcess(folder) as process:
        settings = settings.with_(clickhouse_url=process.url)
        if not has_tables(settings):
            raise ConfigError(
                f"{folder} has no tables in database {settings.clickhouse_database!r}: this run was interrupted before "
                "they were made, or made them in another database (SPANLOOP_CLICKHOUSE_DATABASE)"
            )
        yield from _asked(settings)


def _asked(settings: Settings) -> Generator[Query]:
    client = connect(settings, readonly=True)
    try:
        yield Query(client)
    finally:
        client.close()


def query(settings: Settings, sql: str, home: Path | None = None) -> Result:
    """One query."""
    with opened(settings, home) as ask:
        return ask(sql)


def render(result: Result, format: str) -> str:
    """A result as csv, tsv or json text, column names first. Raises ConfigError for another format."""
    if format == "json":
        return json.dumps([{k: plain(v) for k, v in row.items()} for row in result.dicts()], indent=1) + "\n"
    if format not in ("csv", "tsv"):
        raise ConfigError(f"format {format!r}: expected table, csv, tsv or json")
    out = io.StringIO()
    writer = csv.writer(out, delimiter="," if format == "csv" else "\t", lineterminator="\n")
    writer.writerow(result.columns)
    writer.writerows([_cell(value) for value in row] for row in result.rows)
    return out.getvalue()


def _cell(value: Any) -> Any:
    if value is None:
        return ""
    return json.dumps(plain(value)) if isinstance(value, dict | list | tuple) else plain(value)
