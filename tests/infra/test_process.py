"""How a process of ours ends."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys

import pytest
from waiting import GONE_WITHIN_S

from spanloop.infra import process
from spanloop.infra.settings import Settings
from spanloop.schemas.errors import ConfigError

PART = """
import sys, threading
from spanloop.infra import process
from spanloop.infra.bounded import Bounded

process.TELL_S, process.BEHIND_S = {patience}

class Part:
    def run(self, stop):
        print("running", flush=True)
        stop.wait()
        print("flushing", flush=True)
        {after}

process.main(lambda settings: Part(), broker=False{leave})
"""
PATIENCE = (10.0, 60.0)  # a busy machine may take long to say its last words
HELD_UP = (process.TELL_S, PATIENCE[1])


def started(after: str, patience: tuple[float, float] = PATIENCE, leave: str = "") -> subprocess.Popen[str]:
    buffered = {name: value for name, value in os.environ.items() if name != "PYTHONUNBUFFERED"}
    code = PART.format(after=after, patience=patience, leave=leave)
    command = [sys.executable, "-c", code]
    child = subprocess.Popen(command, env=buffered, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert child.stdout is not None
    assert child.stdout.readline() == "running\n"
    return child


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_has_the_part_flush_and_leave(number: signal.Signals) -> None:
    with started("pass") as child:
        child.send_signal(number)
        assert child.communicate()[0] == "flushing\n"
    assert child.returncode == 0


def test_a_parts_process_looks_for_cycles_seldom_and_not_among_its_modules() -> None:
    with started("import gc; print(gc.get_threshold(), gc.get_freeze_count() > 1000)") as child:
        child.send_signal(signal.SIGTERM)
        assert child.communicate()[0] == f"flushing\n{process.GC_THRESHOLDS} True\n"


def test_a_second_signal_ends_a_part_that_does_not_leave() -> None:
    with started("while True: threading.Event().wait(0.01)") as child:
        child.send_signal(signal.SIGTERM)
        assert child.stdout is not None
        assert child.stdout.readline() == "flushing\n"
        child.send_signal(signal.SIGTERM)
        assert child.wait() == 128 + signal.SIGTERM


THREAD = "threading.Thread(target=threading.Event().wait, name='agent').start()"
POOL = "from concurrent.futures import ThreadPoolExecutor as Pool; Pool(1, 'agent').submit(threading.Event().wait)"


@pytest.mark.parametrize("stuck", [THREAD, POOL])
def test_what_keeps_a_part_that_ended_well_is_named_and_left(stuck: str) -> None:
    with started(stuck) as child:
        child.send_signal(signal.SIGTERM)
        _, said = child.communicate(timeout=GONE_WITHIN_S)
    assert re.search("ended by force .* agent\\S* at threading", said)
    assert child.returncode == 0


WAITS = "Bounded(threading.Event())('a call', threading.Event().wait, 600)"


def test_a_part_that_does_not_leave_ends_though_nobody_is_there_to_read_what_it_says() -> None:
    with started(f"print('x', end=''); {WAITS}", HELD_UP) as child:
        assert child.stdout is not None
        assert child.stderr is not None
        child.send_signal(signal.SIGTERM)
        assert child.stdout.readline() == "flushing\n"
        child.stdout.close()
        child.stderr.close()
        assert child.wait(GONE_WITHIN_S) == 1


def test_a_part_that_does_not_leave_ends_though_who_reads_what_it_says_stands_still() -> None:
    # A thread that writes into a full pipe keeps stderr's own lock.
    full = "threading.Thread(target=sys.stderr.write, args=('x' * 1_000_000,), daemon=True).start()"
    with started(f"{full}; {WAITS}", HELD_UP) as child:
        child.send_signal(signal.SIGTERM)
        assert child.wait(GONE_WITHIN_S) == 1


def test_a_part_that_does_not_leave_is_ended_by_force_and_says_where_it_was() -> None:
    with started(WAITS) as child:
        child.send_signal(signal.SIGTERM)
        _, said = child.communicate(timeout=GONE_WITHIN_S)
    assert "MainThread at spanloop.infra.bounded" in said
    assert child.returncode == 1


def test_a_part_that_keeps_the_interpreters_lock_ends_too_and_says_where_it_was() -> None:
    with started("import ctypes; ctypes.PyDLL(None).sleep(600)", (process.TELL_S, process.BEHIND_S)) as child:
        child.send_signal(signal.SIGTERM)
        _, said = child.communicate(timeout=GONE_WITHIN_S)
    assert re.search('File "<string>", line \\d+ in run', said)
    assert child.returncode == 1


def test_what_is_freed_past_the_last_thread_does_not_keep_a_process() -> None:
    freed = "sys.kept = type('Client', (), {'__del__': lambda _, wait=ctypes.CDLL(None).sleep: wait(600)})()"
    with started(f"import ctypes; {freed}") as child:
        child.send_signal(signal.SIGTERM)
        assert child.stdout is not None
        assert child.stdout.readline() == "flushing\n"
        assert child.wait(GONE_WITHIN_S) == 1


def test_who_is_told_of_a_stop_hears_it_before_the_part_does_and_cannot_keep_it() -> None:
    heard = list[bool]()

    def told() -> None:
        heard.append(stop.is_set())
        raise RuntimeError("can't start new thread")

    stop = process.stop_on_signal(told=told)
    try:
        with pytest.raises(RuntimeError, match="new thread"):
            signal.raise_signal(signal.SIGTERM)
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        signal.signal(signal.SIGINT, signal.default_int_handler)
    assert (heard, stop.is_set()) == ([False], True)


def test_a_part_that_takes_its_time_leaves_nothing_behind_it() -> None:
    with started(THREAD, leave=", leave_s=None") as child:
        child.send_signal(signal.SIGTERM)
        _, said = child.communicate(timeout=GONE_WITHIN_S)
    assert re.search("ended by force .* agent\\S* at threading", said)
    assert child.returncode == 0


def test_an_error_made_on_purpose_is_a_message_and_no_traceback() -> None:
    def make(settings: Settings) -> process.Part:
        del settings
        raise ConfigError("bootstrap is not set")

    with pytest.raises(SystemExit, match="ConfigError: bootstrap is not set"):
        process.main(make, broker=False)
