"""ClickHouse, a server or its embedded twin: clients, the tables of `sql/000N_*.sql`, the views of `sql/views.sql`.

client = connect(settings)
migrate(client, settings.clickhouse_database)
client.query("SELECT count() FROM v_spans").result_rows
"""

from __future__ import annotations

import hashlib
import logging
import re
from collections.abc import Callable, Iterator
from importlib.resources import files
from typing import Any, cast
from urllib.parse import SplitResult, unquote, urlsplit

import clickhouse_connect
from clickhouse_connect.driver.exceptions import ClickHouseError
from urllib3 import Timeout

from ..schemas.errors import ConfigError
from .clickhouse_client import Client, Driver, is_not_now, refused, unavailable
from .clickhouse_comments import comment_views
from .settings import Settings

CONNECT_TIMEOUT_S = 5
FIRST_TIMEOUT_S = 30  # one that idles in a cloud takes so long to wake
READ_TIMEOUT_S = 300
DEFAULT_PORTS = {"http": 8123, "https": 8443}
_get_client = cast("Callable[..., Driver]", clickhouse_connect.get_client)  # pyright: ignore[reportUnknownMemberType]
SQL = files("spanloop.infra") / "sql"
MIGRATION = re.compile(r"\d{4}_\w+\.sql")
VIEWS, VIEWS_VERSION = "views.sql", 0
STATEMENT_END = re.compile(r";[ \t]*\n")
COMMENT = re.compile(r"^\s*--[^\n]*\n", re.M)
HOLDS = "holds the topics of prefix "
VERSIONS = """
CREATE TABLE IF NOT EXISTS migrations (version UInt32, name String, checksum String, at DateTime DEFAULT now())
ENGINE = ReplacingMergeTree ORDER BY version
"""


def connect(settings: Settings, *, readonly: bool = False, timeout_s: int = READ_TIMEOUT_S) -> Client:
    """A client whose database is the settings'; the database need not exist yet.

    readonly: for people's queries; nothing can be written and no setting changed. timeout_s: how long a statement may
    keep silent; the first question, what it is, has half a minute. Raises Unavailable,
    ConfigError.
    """
    url = urlsplit(settings.clickhouse_url)
    if not url.hostname:
        raise ConfigError("clickhouse_url is not set (SPANLOOP_CLICKHOUSE_URL; `spanloop up` prints one)")
    if url.path.strip("/") or url.query:
        raise ConfigError("clickhouse_url has a path or a query, expected http://user:password@host:port and no more")
    logging.getLogger("clickhouse_connect").setLevel(logging.ERROR)  # its warnings repeat the exceptions it raises
    where = f"{url.hostname}:{_port(url)}"
    try:
        driver = _driver(url, {"readonly": 1} if readonly else {})
        driver.timeout = Timeout(connect=CONNECT_TIMEOUT_S, read=timeout_s)
    except ClickHouseError as error:
        raise (unavailable if is_not_now(error) else refused)(error, where) from error
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
        send_receive_timeout=FIRST_TIMEOUT_S,
        settings=settings,
    )


def _port(url: SplitResult) -> int:
    return url.port or DEFAULT_PORTS[url.scheme]


def migrate(client: Client, database: str, prefix: str | None = None) -> list[str]:
    """Brings a database up to date, making it where it is missing; returns what was applied.

    `prefix`: whose topics it is made for, see `check_prefix`; None = not told.

    Every statement can be run again, so that one that was interrupted is simply repeated. Raises Unavailable, and
    ConfigError where a migration that was applied differs from the one at hand, or a statement is refused.
    """
    try:
        return _migrate(client, database, prefix)
    except ClickHouseError as error:
        raise refused(error, client.where) from error


def has_tables(settings: Settings) -> bool:
    """Whether a database was made to its end: views come last."""
    client, d = connect(settings, readonly=True), {"d": settings.clickhouse_database}
    asked = "SELECT count() FROM system.tables WHERE database = {d:String} AND name = 'migrations'"
    try:
        if not int(str(client.command(asked, d, use_database=False))):
            return False
        return bool(client.rows(f"SELECT version FROM migrations WHERE version = {VIEWS_VERSION}"))
    finally:
        client.close()


def check_prefix(client: Client, database: str, prefix: str) -> None:
    """Refuses a database that was made for another prefix. Raises ConfigError.

    Rows are told apart by their offsets, which those of two prefixes share: the one's would replace the other's.
    """
    asked = "SELECT any(comment) FROM system.databases WHERE name = {d:String}"
    found = str(client.command(asked, {"d": database}, use_database=False))
    if found.startswith(HOLDS) and found != HOLDS + prefix:
        raise ConfigError(
            f"database {database!r} at {client.where} {found}, and rows of {prefix!r} would replace them; choose "
            "another one by SPANLOOP_CLICKHOUSE_DATABASE"
        )


def _migrate(client: Client, database: str, prefix: str | None) -> list[str]:
    comment = "" if prefix is None else f" COMMENT '{HOLDS}{prefix}'"
    client.command(f"CREATE DATABASE IF NOT EXISTS `{database}`{comment}", use_database=False)
    if prefix is not None:
        check_prefix(client, database, prefix)
    client.driver.database = database
    client.command(VERSIONS)
    applied = {row["version"]: row for row in client.rows("SELECT * FROM migrations FINAL")}
    done: list[str] = []
    for name, text in migrations():
        if (before := applied.get(int(name[:4]))) is not None:
            _check(database, name, checksum(text), before["name"], before["checksum"])
            continue
        _apply(client, int(name[:4]), name, text)
        done.append(name)
    name, text = views()
    if done or VIEWS_VERSION not in applied or applied[VIEWS_VERSION]["checksum"] != checksum(text):
        _apply(client, VIEWS_VERSION, name, text)
        comment_views(client)
        done.append(name)
    return done


def _apply(client: Client, version: int, name: str, text: str) -> None:
    for statement in statements(text):
        client.command(statement)
    client.command(
        "INSERT INTO migrations (version, name, checksum) SELECT {v:UInt32}, {n:String}, {c:String}",
        {"v": version, "n": name, "c": checksum(text)},
    )


def checksum(text: str) -> str:
    """What tells whether a file was applied as it is now."""
    return hashlib.sha256(text.encode()).hexdigest()


def migrations() -> Iterator[tuple[str, str]]:
    """(file name, text), in order."""
    found = sorted((f.name, f) for f in SQL.iterdir() if MIGRATION.fullmatch(f.name))
    return ((name, file.read_text("utf-8")) for name, file in found)


def views() -> tuple[str, str]:
    """(file name, text) of what views are now; they hold nothing, so they are made again whenever anything changed."""
    return VIEWS, (SQL / VIEWS).read_text("utf-8")


def statements(text: str) -> list[str]:
    """The statements of a file; a semicolon at a line's end separates them."""
    bare = COMMENT.sub("", text)
    return [s.strip() for s in STATEMENT_END.split(bare + "\n") if s.strip()]


def _check(database: str, name: str, checksum: str, old_name: str, old_checksum: str) -> None:
    if checksum != old_checksum:
        raise ConfigError(
            f"migration {name} of database {database!r} was applied as {old_name} with other content "
            f"({old_checksum[:12]}, now {checksum[:12]}); a migration is never changed: restore it and add a new one"
        )
