"""The stack as a process: one line of addresses, usable from here, and down in seconds."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from spanloop.infra import admin
from spanloop.infra.real_kafka import missing
from spanloop.infra.settings import Settings
from spanloop.infra.stack import EmbeddedStack
from spanloop.schemas.topics import TOPICS


class Process:
    """`python -m spanloop.infra.stack`, started by this test."""

    def __init__(self, home: Path, *flags: str) -> None:
        command = [sys.executable, "-m", "spanloop.infra.stack", "--home", str(home), "--prefix", "p", *flags]
        self.child = subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=_without_settings()
        )
        assert self.child.stdout is not None
        line = self.child.stdout.readline()
        self.addresses: dict[str, str] = json.loads(line) if line else {}

    def settings(self) -> Settings:
        with pytest.MonkeyPatch.context() as patch:
            for name, value in self.addresses.items():
                patch.setenv(name, value)
            return Settings()

    def stop(self, number: int) -> tuple[int, str, float]:
        """(status, what it wrote to stderr, seconds)."""
        begun = time.monotonic()
        self.child.send_signal(number)
        _, told = self.child.communicate(timeout=60)
        return self.child.returncode, told, time.monotonic() - begun


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
    from spanloop.infra.clickhouse import connect

    assert admin.counts(settings) == {t.name: settings.partitions if t.spread else 1 for t in TOPICS.values()}
    assert len(admin.register(settings)) == len(TOPICS)
    assert connect(settings).rows("SELECT count() AS n FROM spans") == [{"n": 0}]


def test_it_writes_addresses_that_other_processes_use_and_ends_in_order(running: Process) -> None:
    settings = running.settings()
    assert (settings.profile, settings.prefix, settings.partitions) == ("embedded", "p", 4)
    check_topics_and_tables(settings)
    status, told, _ = running.stop(signal.SIGTERM)
    assert status == 0
    assert "was killed" not in told
    for part in (settings.bootstrap, "Java and franz-go clients", "cannot talk to it", "--kafka", "Redpanda"):
        assert part in told


def test_an_interrupt_ends_it_as_well(running: Process) -> None:
    status, told, _ = running.stop(signal.SIGINT)
    assert status == 0
    assert "Traceback" not in told


@pytest.mark.kafka
@pytest.mark.slow
def test_a_real_kafka_keeps_its_records_and_schemas_between_starts(tmp_path: Path) -> None:
    if reason := missing():
        pytest.skip(reason) if os.environ.get("CI") != "true" else pytest.fail(reason)
    ids: list[Any] = []
    for _ in range(2):
        process = Process(tmp_path, "--kafka")
        settings = process.settings()
        assert settings.profile == "remote"
        check_topics_and_tables(settings)
        ids.append(admin.register(settings))
        status, told, seconds = process.stop(signal.SIGTERM)
        assert (status, told) == (0, "")
        assert seconds < 15, "a broker that had to be killed takes longer"
        assert not list(tmp_path.glob("*/pid"))
    assert ids[0] == ids[1]


def test_tables_of_an_earlier_embedded_start_are_set_aside(tmp_path: Path) -> None:
    (tmp_path / "clickhouse").mkdir()
    (tmp_path / "clickhouse" / "old").touch()
    with EmbeddedStack(tmp_path, prefix="p") as stack:
        check_topics_and_tables(stack.settings)
    (kept,) = tmp_path.glob("clickhouse-*")
    assert (kept / "old").exists()


def test_without_clickhouse_it_needs_none(tmp_path: Path) -> None:
    with EmbeddedStack(tmp_path, clickhouse=False, partitions=2) as stack:
        assert stack.settings.clickhouse_url == ""
        assert admin.counts(stack.settings)["spans"] == 2
    assert list(tmp_path.iterdir()) == []
