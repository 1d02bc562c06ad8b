from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from importlib.resources import files
from uuid import uuid4

import pytest
from clickhouse_connect.driver.exceptions import DatabaseError

from spanloop.infra import clickhouse
from spanloop.infra.avro_sql import Schema, literal
from spanloop.infra.clickhouse import check_prefix, connect, migrate, migrations, statements
from spanloop.infra.clickhouse_client import Client, is_not_now
from spanloop.infra.landing import Landings, plan
from spanloop.infra.settings import Settings
from spanloop.schemas.errors import ConfigError, InvalidRecord
from spanloop.schemas.serde import fingerprint, schema_json
from spanloop.schemas.topics import REWARDS, TOPICS


@pytest.fixture
def client(clickhouse_url: str) -> Iterator[Client]:
    settings = Settings(clickhouse_url=clickhouse_url, clickhouse_database=f"t{uuid4().hex[:12]}")
    found = connect(settings)
    yield found
    found.command(f"DROP DATABASE IF EXISTS {settings.clickhouse_database}", use_database=False)
    found.close()


def test_migrations_are_applied_once_and_a_changed_one_is_refused(
    client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    database = client.driver.database or ""
    small = [("0001_a.sql", "-- one;\nCREATE TABLE IF NOT EXISTS a (x Int32) ENGINE = Memory;\n")]
    views = ["CREATE OR REPLACE VIEW v_a AS SELECT x FROM a;\n"]
    monkeypatch.setattr(clickhouse, "migrations", lambda: iter(small))
    monkeypatch.setattr(clickhouse, "views", lambda: ("views.sql", views[0]))
    assert migrate(client, database) == ["0001_a.sql", "views.sql"]
    assert migrate(client, database) == []
    small.append(("0002_b.sql", "CREATE TABLE IF NOT EXISTS b (x Int32) ENGINE = Memory;"))
    assert migrate(client, database) == ["0002_b.sql", "views.sql"]
    views[0] = "CREATE OR REPLACE VIEW v_a AS SELECT x + 1 AS y FROM a;\n"
    assert migrate(client, database) == ["views.sql"]
    assert client.query("SELECT y FROM v_a").result_rows == []
    small[0] = ("0001_a.sql", small[0][1].replace("Int32", "Int64"))
    with pytest.raises(ConfigError, match=r"0001_a\.sql .* other content"):
        migrate(client, database)


def test_a_database_made_for_one_prefix_is_refused_to_another(client: Client) -> None:
    database = client.driver.database or ""
    migrate(client, database, "one")
    assert migrate(client, database, "one") == []
    check_prefix(client, database, "one")
    for refused in (lambda: check_prefix(client, database, "two"), lambda: migrate(client, database, "two")):
        with pytest.raises(ConfigError, match=f"{database}.* holds the topics of prefix one, .*'two' would replace"):
            refused()


def test_a_database_that_names_no_prefix_is_anybodys(client: Client) -> None:
    database = client.driver.database or ""
    check_prefix(client, database, "two")
    migrate(client, database)
    migrate(client, database, "two")


class NoEntry(BaseHTTPRequestHandler):
    """A ClickHouse that does not know the user."""

    def do_POST(self) -> None:
        body = b"Code: 516. DB::Exception: me: Authentication failed: password is incorrect. (AUTHENTICATION_FAILED)"
        self.send_response(403)
        self.send_header("X-ClickHouse-Exception-Code", "516")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    do_GET = do_POST

    def log_message(self, format: str, *args: object) -> None:
        del format, args


def test_a_refused_user_is_a_matter_of_settings_and_its_password_is_not_told() -> None:
    with HTTPServer(("127.0.0.1", 0), NoEntry) as server:
        threading.Thread(target=server.serve_forever, args=(0.01,)).start()
        try:
            where = f"127.0.0.1:{server.server_port}"
            with pytest.raises(
                ConfigError, match=f"ClickHouse at {where} refuses: .* 516.*; see clickhouse_url"
            ) as told:
                connect(Settings(clickhouse_url=f"http://me:ch-pw@{where}"))
            assert "ch-pw" not in str(told.value)
        finally:
            server.shutdown()


@pytest.mark.parametrize("rest", ["/sub", "?database=x"])
def test_a_part_of_the_address_that_would_count_for_nothing_is_refused(rest: str) -> None:
    with pytest.raises(ConfigError, match="clickhouse_url has a path or a query"):
        connect(Settings(clickhouse_url=f"http://127.0.0.1:9{rest}"))


def test_a_user_without_the_rights_for_tables_is_a_matter_of_settings(clickhouse_url: str) -> None:
    client = connect(Settings(clickhouse_url=clickhouse_url), readonly=True)
    with pytest.raises(ConfigError, match=r"refuses: .*497.*; see clickhouse_url, its user's rights too"):
        migrate(client, f"t{uuid4().hex[:12]}")
    client.close()


@pytest.mark.parametrize(("code", "may_pass"), [(241, True), (243, True), (439, True), (499, True), (62, False)])
def test_what_may_pass_is_told_from_a_bad_statement(code: int, may_pass: bool) -> None:
    assert is_not_now(DatabaseError(f"Code: {code}. DB::Exception: no")) is may_pass


def test_statements_end_at_a_semicolon_at_a_lines_end() -> None:
    text = "-- a; comment;\nSELECT ';';\n\nSELECT\n  2 -- not; here\n;\n"
    assert statements(text) == ["SELECT ';'", "SELECT\n  2 -- not; here"]


def test_migrations_are_numbered_without_gaps() -> None:
    assert [int(name[:4]) for name, _ in migrations()] == list(range(1, len(list(migrations())) + 1))


def test_every_column_of_every_view_says_what_it_is(client: Client) -> None:
    migrate(client, client.driver.database or "")
    found = client.rows(
        "SELECT table, name, comment FROM system.columns WHERE database = currentDatabase() AND table LIKE 'v\\_%'"
    )
    assert {"v_spans", "v_audit", "v_trajectory_rows"} <= {row["table"] for row in found}
    assert [(row["table"], row["name"]) for row in found if not row["comment"]] == []
    comments = {(row["table"], row["name"]): row["comment"] for row in found}
    assert comments["v_rollouts", "tries"] == comment_of_field("Rollout", "tries")


def comment_of_field(record: str, name: str) -> str:
    schema = json.loads((files("spanloop.schemas") / "avro" / f"{record}.avsc").read_text("utf-8"))
    return next(field["doc"] for field in schema["fields"] if field["name"] == name)


def test_of_equal_revisions_the_one_with_an_end_is_shown(client: Client) -> None:
    migrate(client, client.driver.database or "")
    client.command(
        "INSERT INTO trajectories (rollout_id, attempt_id, revision, status, flags, k_partition, k_offset) VALUES "
        "('ro-1', 'at-1', 3, 'unknown', ['no_end'], 2, 9), ('ro-1', 'at-1', 3, 'succeeded', [], 0, 4), "
        "('ro-1', 'at-1', 2, 'succeeded', [], 0, 3)"
    )
    assert client.rows("SELECT revision, status FROM v_trajectories") == [{"revision": 3, "status": "succeeded"}]


def test_every_topic_has_a_landing_table_and_it_is_made_once(client: Client) -> None:
    migrate(client, client.driver.database or "")
    landings = Landings(client)
    tables = {t.name: landings.table(t, schema_json(t.record)) for t in TOPICS.values()}
    assert tables == {t.name: Landings(client).table(t, schema_json(t.record)) for t in TOPICS.values()}
    assert fingerprint(schema_json(REWARDS.record)) in tables["rewards"]
    assert len(set(tables.values())) == len(TOPICS)


@pytest.mark.parametrize(
    ("avro", "sql"),
    [
        ("long", "Int64"),
        (["null", "double"], "Nullable(Float64)"),
        ({"type": "enum", "name": "E", "symbols": ["a"]}, "LowCardinality(String)"),
        (["null", {"type": "enum", "name": "E", "symbols": ["a"]}], "LowCardinality(Nullable(String))"),
        ({"type": "map", "values": ["null", "long"]}, "Map(String, Nullable(Int64))"),
        (["null", {"type": "array", "items": "string"}], "Array(String)"),
        ({"type": "fixed", "name": "F", "size": 16}, "FixedString(16)"),
        ({"type": "long", "logicalType": "timestamp-micros"}, "Int64"),
        (
            ["null", {"type": "record", "name": "N", "fields": [{"name": "y", "type": "bytes"}]}],
            "Nullable(Tuple(`y` String))",
        ),
    ],
)
def test_avro_types_are_read_as_clickhouse_types(avro: object, sql: str) -> None:
    schema = Schema(json.dumps({"type": "record", "name": "R", "fields": [{"name": "x", "type": avro}]}))
    assert schema.columns() == [("x", sql)]


def test_named_types_are_known_by_their_short_and_full_names() -> None:
    inner = {"type": "record", "name": "In", "namespace": "a.b", "fields": [{"name": "y", "type": "int"}]}
    fields = [{"name": "p", "type": inner}, {"name": "q", "type": "a.b.In"}, {"name": "r", "type": ["null", "In"]}]
    schema = Schema(json.dumps({"type": "record", "name": "R", "fields": fields}))
    assert [t for _, t in schema.columns()] == ["Tuple(`y` Int32)", "Tuple(`y` Int32)", "Nullable(Tuple(`y` Int32))"]


@pytest.mark.parametrize(
    "avro",
    [
        ["long", "string"],
        ["null", "long", "string"],
        {"type": "record", "name": "L", "fields": [{"name": "next", "type": ["null", "L"]}]},
    ],
)
def test_what_clickhouse_cannot_hold_is_said_to_be_unsupported(avro: object) -> None:
    schema = Schema(json.dumps({"type": "record", "name": "R", "fields": [{"name": "x", "type": avro}]}))
    with pytest.raises(InvalidRecord, match="unsupported"):
        schema.columns()


def test_a_writer_that_lacks_a_field_without_a_default_is_unsupported() -> None:
    text = json.dumps({"type": "record", "name": "Reward", "fields": [{"name": "rollout_id", "type": "string"}]})
    with pytest.raises(InvalidRecord, match="reward_id, which has no default"):
        plan(REWARDS, text, {"rewards": {"reward_id": "String"}})


def test_a_column_without_a_field_is_a_fault_of_ours() -> None:
    with pytest.raises(KeyError, match="nonsense"):
        plan(REWARDS, schema_json(REWARDS.record), {"rewards": {"nonsense": "String"}})


def test_literals_are_quoted() -> None:
    values: list[object] = [None, True, 3, 0.5, "it's \\", [], {}]
    assert [literal(v) for v in values] == ["NULL", "true", "3", "0.5", "'it\\'s \\\\'", "[]", "map()"]
