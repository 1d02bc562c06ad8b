"""The part of clickhouse-connect that is used, typed, with "not now" told apart from "not this".

What a statement does wrong is a `ClickHouseError`; that nobody answers, or not now, is Unavailable.
"""

from __future__ import annotations

import re
from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Protocol

from clickhouse_connect.driver.exceptions import ClickHouseError, OperationalError
from urllib3 import Timeout

from ..schemas.errors import ConfigError, Unavailable

# Answers that say "not now" rather than "not this": time-out, quota, too many queries, connections, network, keeper,
# shutting down, memory, read-only table, disk full, too many parts, threads, object store. The same statement may
# succeed later.
MEMORY = "241"
NOT_NOW = {"159", "201", "202", "203", "209", "210", "225", "236", MEMORY, "242", "243", "252", "279", "319", "394",
           "425", "439", "499", "999"}  # fmt: skip
CODE = re.compile(r"Code: (\d+)")
Parameters = Mapping[str, Any] | None


class Result(Protocol):
    """What a query gave."""

    @property
    def column_names(self) -> Sequence[str]: ...
    @property
    def result_rows(self) -> Sequence[Sequence[Any]]: ...


class Driver(Protocol):
    """The part of clickhouse-connect's client that is used; its own annotations stop short."""

    database: str | None
    timeout: Timeout

    def query(self, query: str, *, parameters: Parameters, settings: Parameters) -> Result: ...
    def command(self, cmd: str, *, parameters: Parameters, settings: Parameters, use_database: bool) -> object: ...
    def raw_query(self, query: str, *, parameters: Parameters, settings: Parameters, fmt: str) -> bytes: ...
    def raw_insert(self, table: str, *, insert_block: bytes, settings: Parameters, fmt: str) -> object: ...
    def close(self) -> None: ...


class Client:
    """A thread-safe client of one database. Every method raises Unavailable, or ClickHouseError for a bad statement."""

    def __init__(self, driver: Driver, where: str) -> None:
        self.driver = driver
        self.where = where

    def query(self, sql: str, parameters: Parameters = None, settings: Parameters = None) -> Result:
        """Rows of a query; parameters are written {name:Type} in it."""
        with self._reaching():
            return self.driver.query(sql, parameters=parameters, settings=settings)

    def rows(self, sql: str, parameters: Parameters = None) -> list[dict[str, Any]]:
        """Rows of a query as dicts by column name."""
        result = self.query(sql, parameters)
        return [dict(zip(result.column_names, row, strict=True)) for row in result.result_rows]

    def command(
        self, sql: str, parameters: Parameters = None, settings: Parameters = None, *, use_database: bool = True
    ) -> object:
        """Runs a statement; use_database=False where the client's database need not exist. Gives a single value."""
        with self._reaching():
            return self.driver.command(sql, parameters=parameters, settings=settings, use_database=use_database)

    def raw(self, sql: str, fmt: str, parameters: Parameters = None) -> bytes:
        """A query's result as bytes in one of ClickHouse's formats."""
        with self._reaching():
            return self.driver.raw_query(sql, parameters=parameters, settings=None, fmt=fmt)

    def insert(self, table: str, block: bytes, fmt: str, settings: Parameters = None) -> None:
        """Inserts a block of rows in one of ClickHouse's formats, columns by name."""
        with self._reaching():
            self.driver.raw_insert(table, insert_block=block, settings=settings, fmt=fmt)

    def close(self) -> None:
        """Closes its connections."""
        self.driver.close()

    @contextmanager
    def _reaching(self) -> Generator[None]:
        try:
            yield
        except ClickHouseError as error:
            if is_not_now(error):
                raise unavailable(error, self.where) from error
            raise


def unavailable(error: ClickHouseError, where: str) -> Unavailable:
    """The error for an answer after which the same statement is tried again, or for none."""
    if code_of(error) is None and is_not_now(error):
        return Unavailable(f"ClickHouse at {where} cannot be reached; is it running?")
    return Unavailable(f"ClickHouse at {where} cannot take this now: {str(error)[:300]}")


def refused(error: ClickHouseError, where: str) -> ConfigError:
    """The error for a user, password or right that ClickHouse does not take, or a statement that it does not know."""
    return ConfigError(f"ClickHouse at {where} refuses: {str(error)[:300]}; see clickhouse_url, its user's rights too")


def code_of(error: ClickHouseError) -> str | None:
    """ClickHouse's error code, None where no ClickHouse answered."""
    found = CODE.search(str(error))
    return found[1] if found else None


def is_not_now(error: ClickHouseError) -> bool:
    """True where the same statement may succeed later: no answer came, or one that says so."""
    code = code_of(error)
    if code is None:
        return isinstance(error, OperationalError) or "HTTP status 5" in str(error)
    return code in NOT_NOW


def is_memory(error: Unavailable) -> bool:
    """True where ClickHouse lacked the memory for a statement: less of it may succeed at once."""
    cause = error.__cause__
    return isinstance(cause, ClickHouseError) and code_of(cause) == MEMORY
