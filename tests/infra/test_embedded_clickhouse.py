import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, cast

import clickhouse_connect
import httpx
import pytest
from clickhouse_connect.driver.exceptions import DatabaseError
from waiting import gone, until

from spanloop.infra import child_process
from spanloop.infra.clickhouse import connect
from spanloop.infra.embedded_clickhouse import ClickHouseProcess
from spanloop.infra.settings import Settings
from spanloop.schemas.errors import ConfigError, Unavailable


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ClickHouseProcess]:
    with ClickHouseProcess(tmp_path_factory.mktemp("clickhouse")) as process:
        post(process.url, "CREATE DATABASE lab")
        yield process


def post(url: str, sql: str, **params: str) -> str:
    answer = httpx.post(url, content=sql, params=params, timeout=30)
    return answer.text if answer.is_success else f"{answer.status_code} {answer.text}"


def settings(process: ClickHouseProcess) -> Settings:
    return Settings(clickhouse_url=process.url, clickhouse_database="lab")


def test_what_clickhouse_connect_inserts_it_reads_back(server: ClickHouseProcess) -> None:
    client = connect(settings(server))
    client.command("CREATE TABLE both (a Int32, b String) ENGINE = MergeTree ORDER BY a")
    client.insert("both", b'{"a":1,"b":"x;\\n"}\n{"b":"y","a":2}\n', "JSONEachRow")
    assert client.query("SELECT * FROM both ORDER BY a").result_rows == [(1, "x;\n"), (2, "y")]
    assert client.query("SELECT {n:Int32} + 1 AS n", parameters={"n": 41}).result_rows == [(42,)]


def test_an_empty_result_keeps_its_columns(server: ClickHouseProcess) -> None:
    result = connect(settings(server)).query("SELECT 1 AS a, 'x' AS b WHERE 0")
    assert result.column_names == ("a", "b")
    assert result.result_rows == []


def test_plain_http_posts_work_as_curl_sends_them(server: ClickHouseProcess) -> None:
    post(server.url, "CREATE TABLE lab.plain (a Int32, b String) ENGINE = Memory")
    assert post(server.url, "INSERT INTO lab.plain VALUES (7, 'seven')") == ""
    assert post(server.url, "8\teight\n", query="INSERT INTO lab.plain FORMAT TSV") == ""
    assert post(server.url, "SELECT * FROM lab.plain ORDER BY a FORMAT CSV") == '7,"seven"\n8,"eight"\n'
    assert httpx.get(server.url, params={"query": "SELECT 1"}).text == "1\n"
    assert httpx.get(f"{server.url}/ping").text == "Ok.\n"


def test_errors_carry_clickhouse_codes(server: ClickHouseProcess) -> None:
    assert post(server.url, "SELECT * FROM nowhere").startswith("404 Code: 60.")
    assert post(server.url, "SELEC 1").startswith("400 Code: 62.")
    assert post(server.url, "SELECT 1", database="nowhere").startswith("404 Code: 81.")


def test_an_insert_whose_view_fails_is_an_error(server: ClickHouseProcess) -> None:
    post(server.url, "CREATE TABLE lab.source (a Int32) ENGINE = Null")
    post(server.url, "CREATE TABLE lab.target (a Int32) ENGINE = MergeTree ORDER BY a")
    post(server.url, "CREATE MATERIALIZED VIEW lab.broken TO lab.target AS SELECT throwIf(a = 3) AS a FROM lab.source")
    assert "Code: 395." in post(server.url, "1\n2\n3\n", query="INSERT INTO lab.source FORMAT TSV")
    assert post(server.url, "SELECT count() FROM lab.target") == "0\n"


@pytest.mark.parametrize(
    "sql",
    [
        "SELECT * FROM file('/etc/hostname', 'LineAsString')",
        "SELECT file('/etc/hostname')",
        "SELECT FILE /* */ ('/etc/hostname')",
        "SELECT `file`('/etc/hostname')",
        "SELECT `f\\x69le`('/etc/hostname')",
        "SELECT * FROM url('http://127.0.0.1:1', 'LineAsString')",
        "SELECT * FROM python('os')",
        "SELECT * FROM executable('id', 'TSV', 'x String')",
        "SELECT 1 INTO OUTFILE '/tmp/never'",
        "SELECT 1; SELECT 2",
        "INSERT INTO FUNCTION file('/tmp/never', 'TSV', 'a Int32') VALUES (1)",
        "INSERT INTO lab.plain FROM INFILE '/etc/hostname' FORMAT TSV",
        "CREATE TABLE lab.never (a String) ENGINE = File('TSV')",
    ],
)
def test_nothing_reaches_files_or_hosts(server: ClickHouseProcess, sql: str) -> None:
    assert post(server.url, sql).startswith("403 Code: 497.")
    assert post(server.url, sql, readonly="1").startswith("403 Code: 497.")


@pytest.mark.parametrize(
    "sql", ["KILL QUERY WHERE 1", "DROP DATABASE lab", "INSERT INTO lab.plain VALUES (1, 'x')", "SET max_threads = 1"]
)
def test_a_readonly_request_only_queries(server: ClickHouseProcess, sql: str) -> None:
    assert post(server.url, sql, readonly="1").startswith("403 Code: 497.")


def test_a_readonly_query_cannot_lift_its_limits(server: ClickHouseProcess) -> None:
    assert "READONLY" in post(server.url, "SELECT 1 SETTINGS readonly = 0", readonly="1")


def test_words_inside_strings_are_no_statements(server: ClickHouseProcess) -> None:
    sql = "SELECT 'into outfile; file(' AS a, 'it''s; file(' AS b"
    assert post(server.url, sql, readonly="1") == "into outfile; file(\tit\\'s; file(\n"


def test_a_readonly_client_reads_and_cannot_write(server: ClickHouseProcess) -> None:
    client = connect(settings(server), readonly=True)
    assert client.query("SELECT 1").result_rows == [(1,)]
    with pytest.raises(DatabaseError, match="497"):
        client.command("DROP DATABASE lab")


def test_requests_run_side_by_side(server: ClickHouseProcess) -> None:
    slow = threading.Thread(target=post, args=(server.url, "SELECT sleepEachRow(0.1) FROM numbers(20) FORMAT Null"))
    slow.start()
    assert post(server.url, "SELECT 1") == "1\n"
    assert slow.is_alive()
    slow.join()


def test_a_second_process_on_the_same_folder_is_refused_with_the_reason(server: ClickHouseProcess) -> None:
    with pytest.raises(Unavailable, match="Another server instance"):
        ClickHouseProcess(server.path)


def test_sigterm_ends_it_also_under_a_query_and_keeps_the_data(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(child_process, "STOP_TIMEOUT_S", 60.0)
    with ClickHouseProcess(tmp_path / "data") as process:
        post(process.url, "CREATE DATABASE lab")
        post(process.url, "CREATE TABLE lab.t (a Int32) ENGINE = MergeTree ORDER BY a")
        post(process.url, "INSERT INTO lab.t VALUES (1), (2)")
        endless = threading.Thread(target=_post_until_cut, args=(process.url,))
        endless.start()
        until(lambda: "hash" in post(process.url, "SELECT query FROM system.processes"))
        process.close()
        assert caplog.messages == []  # it was not killed
        endless.join()
    with ClickHouseProcess(tmp_path / "data") as again:
        assert post(again.url, "SELECT sum(a) FROM lab.t") == "3\n"


def _post_until_cut(url: str) -> None:
    try:
        post(url, "SELECT count() FROM numbers(1e15) WHERE sipHash64(number) = 0 AND 'hash' != ''")
    except httpx.TransportError:
        return


def test_it_ends_when_its_parent_is_killed(tmp_path: Path) -> None:
    script = (
        "import sys, time; from pathlib import Path; from spanloop.infra.embedded_clickhouse import ClickHouseProcess\n"
        "p = ClickHouseProcess(Path(sys.argv[1])); sys.stdout.write(f'{p.pid}\\n'); sys.stdout.flush(); time.sleep(600)"
    )
    parent = subprocess.Popen([sys.executable, "-c", script, str(tmp_path / "data")], stdout=subprocess.PIPE, text=True)
    assert parent.stdout is not None
    child = int(parent.stdout.readline())
    parent.send_signal(signal.SIGKILL)
    parent.wait()
    parent.stdout.close()
    until(lambda: gone(child))


def test_an_unreachable_server_is_unavailable_by_host_and_port(tmp_path: Path) -> None:
    with ClickHouseProcess(tmp_path / "data") as process:
        config = settings(process)
        client = connect(config)
    where = config.clickhouse_url.removeprefix("http://")
    with pytest.raises(Unavailable, match=where):
        client.query("SELECT 1")
    with pytest.raises(Unavailable, match=where):
        connect(config)


def test_a_missing_url_says_what_to_set() -> None:
    with pytest.raises(ConfigError, match="SPANLOOP_CLICKHOUSE_URL"):
        connect(Settings())


def test_the_ordinary_client_needs_no_settings_of_ours(server: ClickHouseProcess) -> None:
    host, port = server.url.removeprefix("http://").split(":")
    get_client = cast("Callable[..., Any]", clickhouse_connect.get_client)  # pyright: ignore[reportUnknownMemberType]
    client = get_client(host=host, port=int(port))
    client.command("CREATE TABLE lab.rows (a Int32, b String) ENGINE = Memory")
    client.insert("lab.rows", [[1, "x;\n"], [2, "y"]], column_names=["a", "b"])
    assert client.query("SELECT * FROM lab.rows ORDER BY a").result_rows == [(1, "x;\n"), (2, "y")]
