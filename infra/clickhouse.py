"""ClickHouse clients, for a server and its embedded twin alike.

    client = connect(settings)
    client.query("SELECT count() FROM v_spans").result_rows

What a statement does wrong is a `ClickHouseError`; that nobody answers, or not now, is Unavailable.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Protocol, cast
from urllib.parse import SplitResult, unquote, urlsplit

import clickhouse_connect
from clickhouse_connect.driver.exceptions import ClickHouseError, OperationalError

from ..schemas.errors import ConfigError, Unavailable
from .settings import Settings

CONNECT_TIMEOUT_S = 5
READ_TIMEOUT_S = 300
DEFAULT_PORTS = {"http": 8123, "https": 8443}
# Answers that say "not now" rather than "not this": time-out, too many queries, network, memory, read-only table, too
# many parts, keeper, shutting down. The same statement may succeed later.
NOT_NOW = {"159", "202", "209", "210", "236", "241", "242", "252", "319", "394", "425", "999"}
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

    def query(self, query: str, *, parameters: Parameters, settings: Parameters) -> Result: ...
    def command(self, cmd: str, *, parameters: Parameters, settings: Parameters, use_database: bool) -> object: ...
    def raw_query(self, query: str, *, parameters: Parameters, settings: Parameters, fmt: str) -> bytes: ...
    def raw_insert(self, table: str, *, insert_block: bytes, settings: Parameters, fmt: str) -> object: ...
    def close(self) -> None: ...


_get_client = cast("Callable[..., Driver]", clickhouse_connect.get_client)  # pyright: ignore[reportUnknownMemberType]


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
                raise _unavailable(error, self.where) from error
            raise


def connect(settings: Settings, *, readonly: bool = False) -> Client:
    """A client whose database is the settings'; the database need not exist yet.

    readonly: for people's queries; nothing can be written and no setting changed. Raises Unavailable, ConfigError.
    """
    url = urlsplit(settings.clickhouse_url)
    if url.scheme not in DEFAULT_PORTS or not url.hostname:
        raise ConfigError(
            f"clickhouse_url is {settings.clickhouse_url!r}; expected http://user:password@host:port "
            "(SPANLOOP_CLICKHOUSE_URL; `spanloop up` prints one)"
        )
    logging.getLogger("clickhouse_connect").setLevel(logging.ERROR)  # its warnings repeat the exceptions it raises
    where = f"{url.hostname}:{_port(url)}"
    try:
        driver = _driver(url, {"readonly": 1} if readonly else {})
    except ClickHouseError as error:
        if is_not_now(error):
            raise _unavailable(error, where) from error
        raise
    driver.database = settings.clickhouse_database
    return Client(driver, where)


def _driver(url: SplitResult, settings: dict[str, Any]) -> Driver:
    return _get_client(
        host=url.hostname,
        port=_port(url),
        username=unquote(url.username) if url.username else None,
        password=unquote(url.password or ""),
        secure=url.scheme == "https",
        autogenerate_session_id=False,  # a session would let only one query of a client run at a time
        connect_timeout=CONNECT_TIMEOUT_S,
        send_receive_timeout=READ_TIMEOUT_S,
        settings=settings,
    )


def _port(url: SplitResult) -> int:
    return url.port or DEFAULT_PORTS[url.scheme]


def _unavailable(error: ClickHouseError, where: str) -> Unavailable:
    if code_of(error) is None:
        return Unavailable(f"ClickHouse at {where} cannot be reached; is it running?")
    return Unavailable(f"ClickHouse at {where} cannot take this now: {str(error)[:300]}")


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
