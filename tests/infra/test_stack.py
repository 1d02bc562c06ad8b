"""The stack as a process: one line of addresses, usable from here, and down in seconds."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from waiting import LIMIT_S, gone, until

from spanloop.infra import admin
from spanloop.infra import stack as stack_module
from spanloop.infra.clickhouse import connect
from spanloop.infra.embedded_clickhouse import ClickHouseProcess
from spanloop.infra.real_kafka import missing
from spanloop.infra.settings import Settings
from spanloop.infra.stack import FOR_SHELLS, LOCK, LOG_ID, EmbeddedStack, choose_tables, serve
from spanloop.schemas.errors import ConfigError
from spanloop.schemas.topics import TOPICS


class Process:
    """`python -m spanloop.infra.stack`, started by this test."""

    def __init__(self, home: Path, *flags: str, ready: bool = True) -> None:
        command = [sys.executable, "-m", "spanloop.infra.stack", "--home", str(home), "--prefix", "p", *flags]
        self.child = subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=_without_settings()
        )
        assert self.child.stdout is not None
        if not ready:
            return
        line = self.child.stdout.readline()
        self.addresses: dict[str, str] = json.loads(line) if line else {}

    def settings(self) -> Settings:
        with pytest.MonkeyPatch.context() as patch:
            for name, value in self.addresses.items():
                patch.setenv(name, value)
            return Settings()

    def stop(self, number: int) -> tuple[int, str]:
        """(status, what it wrote to stderr)."""
        self.child.send_signal(number)
        _, told = self.child.communicate(timeout=LIMIT_S)
        return self.child.returncode, told


def _without_settings() -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if not name.startswith("SPANLOOP_")}


@pytest.fixture
def running(tmp_path: Path) -> Iterator[Process]:
    process = Process(tmp_path)
    yield process
    if process.child.poll() is None:
        process.child.kill()
        process.child.communicate()


def check_topics_and_tables(settings: Settings) -> None:
    assert admin.counts(settings) == {t.name: settings.partitions if t.spread else 1 for t in TOPICS.values()}
    assert len(admin.register(settings)) == len(TOPICS)
    assert connect(settings).rows("SELECT count() AS n FROM spans") == [{"n": 0}]


def test_it_writes_addresses_that_other_processes_use_and_ends_in_order(running: Process) -> None:
    settings = running.settings()
    assert (settings.profile, settings.prefix, settings.partitions) == ("embedded", "p", 4)
    check_topics_and_tables(settings)
    asked = [sys.executable, "-c", "from spanloop.infra.settings import Settings; print(Settings().environment())"]
    file = settings.home / FOR_SHELLS
    shell = subprocess.run(
        ["sh", "-c", f'. "{file}" && exec "$@"', "sh", *asked],
        capture_output=True,
        text=True,
        check=True,
        env=_without_settings(),
    )
    assert shell.stdout.strip() == str(settings.environment())
    status, told = running.stop(signal.SIGTERM)
    assert status == 0
    assert not file.exists()
    assert f"In other terminals: . {file}" in told
    assert "was killed" not in told
    for part in (settings.bootstrap, "Java and franz-go clients", "cannot talk to it", "--kafka", "Redpanda"):
        assert part in told


def test_an_interrupt_ends_it_as_well(running: Process) -> None:
    status, told = running.stop(signal.SIGINT)
    assert status == 0
    assert "Traceback" not in told


@pytest.mark.kafka
@pytest.mark.slow
def test_a_real_kafka_keeps_its_records_and_schemas_between_starts(tmp_path: Path) -> None:
    if reason := missing():
        pytest.skip(reason) if os.environ.get("CI") != "true" else pytest.fail(reason)
    (tmp_path / "clickhouse" / "metadata").mkdir(parents=True)  # of an embedded start
    ids: list[Any] = []
    for rows in range(2):
        process = Process(tmp_path, "--kafka")
        settings = process.settings()
        assert settings.profile == "remote"
        check_topics_and_tables(settings)
        ids.append(admin.register(settings))
        client = connect(settings)
        assert client.rows("SELECT count() AS n FROM resources") == [{"n": rows}]
        client.command("INSERT INTO resources (name, version, kind) VALUES ('policy', 1, 'policy')")
        client.close()
        status, told = process.stop(signal.SIGTERM)
        assert status == 0
        assert ("had another log, are kept in" in told) == (rows == 0)
        assert "was killed" not in told
        assert not list(tmp_path.glob("*/pid"))
    assert ids[0] == ids[1]


def test_tables_of_an_earlier_embedded_start_are_set_aside(tmp_path: Path) -> None:
    (tmp_path / "clickhouse").mkdir()
    (tmp_path / "clickhouse" / "old").touch()
    with EmbeddedStack(tmp_path, prefix="p") as stack:
        check_topics_and_tables(stack.settings)
    (kept,) = tmp_path.glob("clickhouse-*")
    assert (kept / "old").exists()


def test_tables_come_back_with_the_log_whose_records_they_hold(tmp_path: Path) -> None:
    path = tmp_path / "clickhouse"
    for day, (log_id, rows) in enumerate(((None, "embedded"), ("first", "of first"), ("second", "of second"))):
        choose_tables(path, log_id)
        assert not path.exists()
        path.mkdir()
        (path / "rows").write_text(rows)
        if log_id is not None:
            (path / LOG_ID).write_text(log_id)
        os.utime(path, (day * 86_400, day * 86_400))  # its name once set aside
    choose_tables(path, "second")
    assert (path / "rows").read_text() == "of second"
    choose_tables(path, "first")
    assert (path / "rows").read_text() == "of first"
    choose_tables(path, None)
    assert not path.exists()
    assert sorted((kept / "rows").read_text() for kept in tmp_path.iterdir()) == ["embedded", "of first", "of second"]


def test_tables_set_aside_in_one_second_are_kept_apart(tmp_path: Path) -> None:
    path = tmp_path / "clickhouse"
    for rows in ("first", "second", "third"):
        path.mkdir()
        (path / "rows").write_text(rows)
        os.utime(path, (0, 0))
        choose_tables(path, None)
    assert sorted((kept / "rows").read_text() for kept in tmp_path.iterdir()) == ["first", "second", "third"]


def test_a_start_that_was_stopped_before_there_were_tables_leaves_none_to_set_aside(tmp_path: Path) -> None:
    path = tmp_path / "clickhouse"
    for folder in (path, tmp_path / "clickhouse-of-the-log"):
        folder.mkdir()
        (folder / "stderr.log").touch()
    (tmp_path / "clickhouse-of-the-log" / LOG_ID).write_text("first")
    choose_tables(path, "first")
    assert list(tmp_path.iterdir()) == [path]
    assert (path / LOG_ID).exists()


def test_a_second_start_in_a_home_is_refused_and_leaves_the_first_one_alone(tmp_path: Path) -> None:
    with EmbeddedStack(tmp_path, prefix="p") as first:
        with pytest.raises(ConfigError, match=rf"in use by process {os.getpid()}: choose another home \(--home\)"):
            EmbeddedStack(tmp_path, prefix="p")
        check_topics_and_tables(first.settings)
        assert not list(tmp_path.glob("clickhouse-*"))
    with EmbeddedStack(tmp_path, clickhouse=False):
        pass


def test_settings_of_services_elsewhere_are_not_those_of_the_stack(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("spanloop.toml").write_text('dlq_limit = 7\nclickhouse_url = "http://ch:1"\n[kafka]\n"sasl.username" = "me"\n')
    for name, value in (("KAFKA", '{"security.protocol": "SASL_SSL"}'), ("REPLICATION", "3"), ("MIN_ISR", "2"),
                        ("REGISTRY_USER", "me"), ("REGISTRY_PASSWORD", "x"), ("REGISTRY_CA", "/no/such")):  # fmt: skip
        monkeypatch.setenv(f"SPANLOOP_{name}", value)
    with EmbeddedStack(tmp_path / "home", clickhouse=False) as stack:
        found = stack.settings
    assert (found.kafka, found.replication, found.min_isr, found.clickhouse_url) == ({}, 1, 0, "")
    assert (found.registry_user, found.registry_password, found.registry_ca) == ("", "", "")
    assert found.dlq_limit == 7


def test_an_interrupt_while_it_starts_does_not_wait_for_clickhouse(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[ClickHouseProcess] = []

    class Noted(ClickHouseProcess):
        def __init__(self, path: Path, port: int = 0, *, wait: bool = True) -> None:
            super().__init__(path, port, wait=wait)
            made.append(self)

    def interrupted(_: Settings) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("spanloop.infra.embedded_clickhouse.ClickHouseProcess", Noted)
    monkeypatch.setattr(admin, "init", interrupted)
    with pytest.raises(KeyboardInterrupt):
        EmbeddedStack(tmp_path, prefix="p")
    (process,) = made
    assert process.url == ""
    assert gone(process.pid)
    assert not (tmp_path / "clickhouse" / "metadata").exists()  # which it makes first of all


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_while_it_starts_is_heeded_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], number: signal.Signals
) -> None:
    class Slow(EmbeddedStack):
        def __init__(self, *_: object, **__: object) -> None:
            signal.raise_signal(number)
            pytest.fail("its start went on")

    before = {n: signal.getsignal(n) for n in (signal.SIGTERM, signal.SIGINT)}
    monkeypatch.setattr(stack_module, "EmbeddedStack", Slow)
    try:
        serve(tmp_path)
    finally:
        for n, handler in before.items():
            signal.signal(n, handler)
    assert capsys.readouterr().out == ""


@pytest.mark.parametrize("begun", ["stack.lock", "clickhouse/stderr.log", "clickhouse/metadata"])
def test_what_a_stopped_start_leaves_is_started_from_again(tmp_path: Path, begun: str) -> None:
    process = Process(tmp_path, ready=False)
    until((tmp_path / begun).exists, begun)
    status, told = process.stop(signal.SIGTERM)
    assert status == 0
    assert "Traceback" not in told
    with EmbeddedStack(tmp_path, prefix="p") as stack:
        check_topics_and_tables(stack.settings)


@pytest.mark.kafka
@pytest.mark.slow
@pytest.mark.parametrize("begun", ["kafka/server.properties", "kafka/data/meta.properties", "kafka/pid"])
def test_a_stopped_start_of_a_real_kafka_leaves_no_process_and_a_sound_folder(tmp_path: Path, begun: str) -> None:
    if reason := missing():
        pytest.skip(reason) if os.environ.get("CI") != "true" else pytest.fail(reason)
    process = Process(tmp_path, "--kafka", ready=False)
    until((tmp_path / begun).exists, begun)
    status, told = process.stop(signal.SIGTERM)
    assert (status, "Traceback" in told) == (0, False)
    until(lambda: str(tmp_path) not in _commands(), "what it started")
    with EmbeddedStack(tmp_path, prefix="p", kafka=True) as stack:
        check_topics_and_tables(stack.settings)


def _commands() -> str:
    return subprocess.run(["ps", "-ww", "-e", "-o", "args="], capture_output=True, text=True, check=True).stdout


def test_without_clickhouse_it_needs_none(tmp_path: Path) -> None:
    with EmbeddedStack(tmp_path, clickhouse=False, partitions=2) as stack:
        assert stack.settings.clickhouse_url == ""
        assert admin.counts(stack.settings)["spans"] == 2
    assert [path.name for path in tmp_path.iterdir()] == [LOCK]
