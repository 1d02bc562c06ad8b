"""Parts side by side: whichever way they run, the first failure stops all and is what the caller sees."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
from waiting import gone, until

from spanloop import parts
from spanloop.infra.settings import Settings
from spanloop.parts import PartFailed, Processes, Threads, Together
from spanloop.schemas.errors import Unavailable

DEADLINE_S = 60.0


class Waits:
    """A part that works until it is stopped."""

    def __init__(self) -> None:
        self.started = threading.Event()
        self.left = False

    def run(self, stop: threading.Event) -> None:
        self.started.set()
        assert stop.wait(DEADLINE_S)
        self.left = True


class Fails:
    """A part that fails: at once, or while it leaves."""

    def __init__(self, error: Exception, *, when_stopped: bool = False) -> None:
        self.error = error
        self.when_stopped = when_stopped

    def run(self, stop: threading.Event) -> None:
        if self.when_stopped:
            assert stop.wait(DEADLINE_S)
        raise self.error


class Stays:
    """A part that does not stop when it is asked to."""

    def __init__(self) -> None:
        self.free = threading.Event()

    def run(self, stop: threading.Event) -> None:
        del stop
        self.free.wait(DEADLINE_S)


def test_the_first_thread_that_fails_stops_all_and_is_raised() -> None:
    waits, error = Waits(), Unavailable("no broker")
    threads = Threads()
    threads.start("leaver", Fails(RuntimeError("while it left"), when_stopped=True))
    threads.start("waits", waits)
    assert waits.started.wait(DEADLINE_S)
    threads.check()
    threads.start("first", Fails(error))
    assert threads.stop.wait(DEADLINE_S)
    threads.close()
    assert waits.left
    with pytest.raises(PartFailed, match=r"^first failed: Unavailable: no broker$") as raised:
        threads.check()
    assert raised.value.__cause__ is error


def test_threads_that_are_closed_have_not_failed() -> None:
    threads, made = Threads(), [Waits(), Waits()]
    for number, part in enumerate(made):
        threads.start(str(number), part)
    threads.close()
    threads.check()
    assert [part.left for part in made] == [True, True]


def test_a_thread_that_does_not_stop_is_named_and_left_behind(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(parts, "STOP_TIMEOUT_S", 0.05)
    threads, stays = Threads(), Stays()
    threads.start("stays", stays)
    threads.close()
    stays.free.set()
    assert [record.getMessage() for record in caplog.records] == ["stays did not stop within 0.05 s"]


def test_parts_that_are_given_a_limit_are_left_or_killed_at_it_without_a_word(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    threads, stays = Threads(), Stays()
    threads.start("stays", stays)
    threads.close(0.0)
    processes = Processes(unreachable(tmp_path), tmp_path / "logs")
    processes.start("topics", ["topics"])
    processes.kill()
    processes.close(0.0)
    stays.free.set()
    assert not caplog.records
    with pytest.raises(PartFailed, match="ended with status -9"):
        processes.check()


def test_an_error_made_on_purpose_is_told_without_a_traceback(caplog: pytest.LogCaptureFixture) -> None:
    for error, logged in ((Unavailable("no broker"), 0), (ZeroDivisionError(), 1)):
        threads = Threads()
        threads.start("part", Fails(error))
        threads.close()
        assert len(caplog.records) == logged


def test_together_stops_all_when_one_fails() -> None:
    waits = Waits()
    with pytest.raises(PartFailed, match="fails failed: Unavailable: no broker"):
        Together({"waits": waits, "fails": Fails(Unavailable("no broker"))}).run(threading.Event())
    assert waits.left


def test_together_returns_once_it_is_stopped() -> None:
    made, stop = {"a": Waits(), "b": Waits()}, threading.Event()
    running = threading.Thread(target=Together(made).run, args=(stop,))
    running.start()
    assert all(part.started.wait(DEADLINE_S) for part in made.values())
    stop.set()
    running.join(DEADLINE_S)
    assert not running.is_alive()
    assert all(part.left for part in made.values())


def unreachable(home: Path) -> Settings:
    return Settings(bootstrap="127.0.0.1:1", registry_url="http://127.0.0.1:1", home=home)


def check_on(processes: Processes) -> None:
    """Checks until a process has failed."""
    deadline = time.monotonic() + DEADLINE_S
    while time.monotonic() < deadline:
        processes.check()
        time.sleep(0.02)


def test_a_process_that_fails_is_reported_with_its_output(tmp_path: Path) -> None:
    with Processes(unreachable(tmp_path), tmp_path / "logs") as processes:
        processes.start("bad", ["tail", "nosuch"])
        with pytest.raises(PartFailed) as raised:
            check_on(processes)
    said = " ".join(str(raised.value).split())
    assert said.startswith("bad ended with status 1: ConfigError: no topic is called 'nosuch'")
    assert "ConfigError" in (tmp_path / "logs" / "bad.log").read_text("utf-8")


def test_a_process_that_ends_well_is_reported_unless_it_has_an_end_of_its_own(tmp_path: Path) -> None:
    with Processes(unreachable(tmp_path), tmp_path / "logs") as processes:
        processes.start("ends", ["topics"], ends=True)
        processes.start("topics", ["topics"])
        with pytest.raises(PartFailed, match="topics ended with status 0"):
            check_on(processes)


def test_processes_get_the_settings_and_end_when_they_are_closed(tmp_path: Path) -> None:
    processes = Processes(unreachable(tmp_path), tmp_path / "logs")
    processes.start("topics", ["topics"], ends=True)
    processes.start("tail", ["tail", "spans"])
    processes.check()
    processes.close()
    with pytest.raises(PartFailed, match="ended with status -15"):
        processes.check()


def test_processes_get_no_setting_but_those_they_are_given(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SPANLOOP_KAFKA__X", "y")
    told, python = tmp_path / "told", tmp_path / "python"
    python.write_text(f"#!/bin/sh\nenv > {told}-in-part && mv {told}-in-part {told}\n")
    python.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(python))
    settings = unreachable(tmp_path).with_(kafka={})
    with Processes(settings, tmp_path / "logs") as processes:
        processes.start("topics", ["topics"])
        until(told.exists)
    environ = told.read_text().splitlines()
    assert "SPANLOOP_KAFKA={}" in environ
    assert not [line for line in environ if line.startswith("SPANLOOP_KAFKA__X")]


PARENT = """
import sys, time
from pathlib import Path
from spanloop.infra.settings import Settings
from spanloop.parts import Processes
children = Processes(Settings(), Path(sys.argv[1]))
children.start("gateway", ["gateway", "--port", "0"])
print(children.pids()["gateway"], flush=True)
time.sleep(3600)
"""


def test_no_part_outlives_a_program_that_is_killed(embedded_settings: Settings, tmp_path: Path) -> None:
    environment = {**os.environ, **embedded_settings.environment()}
    parent = subprocess.Popen([sys.executable, "-c", PARENT, tmp_path], env=environment, stdout=subprocess.PIPE)
    assert parent.stdout is not None
    with parent.stdout as out:
        pid = int(out.readline())
        until(lambda: Path(f"/proc/{pid}/task").exists() and len(list(Path(f"/proc/{pid}/task").iterdir())) > 3)
        parent.kill()
        parent.wait()
    until(lambda: gone(pid))
