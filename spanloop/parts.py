"""Runs long-lived parts side by side, as threads of this process or as processes of their own.

A part is anything with `run(stop)`. Whichever way they run, the first one that fails stops all and its error is
what the caller sees.
"""

from __future__ import annotations

import logging
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import IO

from spanloop.infra.process import Part
from spanloop.infra.settings import PREFIX, Settings
from spanloop.schemas.errors import SpanloopError

log = logging.getLogger(__name__)

# What a part may take to flush and leave; the whole program promises five seconds.
STOP_TIMEOUT_S = 4.0


class PartFailed(SpanloopError):
    """A part ended by itself."""


class Threads:
    """Parts as threads of this process."""

    def __init__(self) -> None:
        self.stop = threading.Event()
        self._threads: list[threading.Thread] = []
        self._failure: tuple[str, BaseException] | None = None

    def start(self, name: str, part: Part) -> None:
        """Starts a part."""
        thread = threading.Thread(target=self._run, args=(name, part), name=name, daemon=True)
        self._threads.append(thread)
        thread.start()

    def check(self) -> None:
        """Raises PartFailed once any part has failed."""
        if self._failure is not None:
            name, error = self._failure
            raise PartFailed(f"{name} failed: {type(error).__name__}: {error}") from error

    def close(self, within_s: float | None = None) -> None:
        """Stops all parts and waits for them, the last started first to be waited for.

        Those that have not stopped `within_s` are left behind, without a word where it is given: this process ends too.
        """
        self.stop.set()
        deadline = time.monotonic() + (STOP_TIMEOUT_S if within_s is None else within_s)
        for thread in reversed(self._threads):
            thread.join(max(0.0, deadline - time.monotonic()))
            if thread.is_alive() and within_s is None:
                log.warning("%s did not stop within %g s", thread.name, STOP_TIMEOUT_S)

    def _run(self, name: str, part: Part) -> None:
        try:
            part.run(self.stop)
        except BaseException as error:  # a thread's entry point: whatever it was, `check` raises it
            if not isinstance(error, SpanloopError):  # those say all there is to say
                log.exception("%s failed", name)
            self._failure = self._failure or (name, error)
            self.stop.set()


class Processes:
    """Parts as processes of their own: the same code behind `spanloop <command>`."""

    def __init__(self, settings: Settings, logs: Path) -> None:
        self._settings = settings
        self._logs = logs
        self._children: list[tuple[str, subprocess.Popen[bytes], IO[bytes]]] = []
        self._may_end = set[str]()
        logs.mkdir(parents=True, exist_ok=True)

    def start(self, name: str, command: Sequence[str], *, ends: bool = False) -> None:
        """Starts `spanloop <command>`; what it prints goes to logs/<name>.log. `ends`: it has an end of its own."""
        if ends:
            self._may_end.add(name)
        output = (self._logs / f"{name}.log").open("wb")
        others = {name: value for name, value in os.environ.items() if not name.upper().startswith(PREFIX)}
        child = subprocess.Popen(
            [sys.executable, "-m", "spanloop", "--with-stdin", *command],
            stdin=subprocess.PIPE,  # closes when this process ends, however that happens, and so does the child
            stdout=output,
            stderr=subprocess.STDOUT,
            env={**others, **self._settings.environment()},
            start_new_session=True,  # Ctrl-C in the terminal is ours to pass on, in order
        )
        self._children.append((name, child, output))

    def pids(self) -> dict[str, int]:
        """Process ids by name."""
        return {name: child.pid for name, child, _ in self._children}

    def check(self) -> None:
        """Raises PartFailed once any process has failed, or ended that has no end of its own."""
        for name, child, output in self._children:
            status = child.poll()
            if status or (status == 0 and name not in self._may_end):
                tail = Path(output.name).read_text("utf-8", "replace")[-2000:]
                raise PartFailed(f"{name} ended with status {status}:\n{tail}")

    def ask(self) -> None:
        """Tells all to leave, without waiting."""
        for _, child, _ in self._children:
            if child.poll() is None:
                child.send_signal(signal.SIGTERM)

    def close(self, within_s: float | None = None) -> None:
        """Ends all processes, and by force those that have not ended `within_s`, without a word where it is given."""
        self.ask()
        deadline = time.monotonic() + (STOP_TIMEOUT_S if within_s is None else within_s)
        for name, child, _ in self._children:
            try:
                child.wait(max(0.0, deadline - time.monotonic()))
            except subprocess.TimeoutExpired:
                if within_s is None:
                    log.warning("%s did not stop within %g s and was killed", name, STOP_TIMEOUT_S)
                child.kill()
        for _, child, output in self._children:
            child.wait()
            if child.stdin is not None:
                child.stdin.close()
            output.close()

    def kill(self) -> None:
        """Ends all processes at once."""
        for _, child, _ in self._children:
            child.kill()

    def __enter__(self) -> Processes:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


class Together:
    """Several parts as one."""

    def __init__(self, parts: Mapping[str, Part]) -> None:
        self._parts = parts

    def run(self, stop: threading.Event) -> None:
        """Runs all until `stop` is set or one fails."""
        threads = Threads()
        for name, part in self._parts.items():
            threads.start(name, part)
        while not stop.wait(0.05) and not threads.stop.is_set():
            pass
        threads.close()
        threads.check()
