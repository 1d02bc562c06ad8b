"""A service of ours as a child process: it writes its URL to standard output once it can be asked.

Its standard input is a pipe from here, which closes when this process ends, however that happens; so does the child.
"""

from __future__ import annotations

import logging
import select
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import IO, TypeVar

import httpx

from ..schemas.errors import Unavailable

log = logging.getLogger(__name__)

STOP_TIMEOUT_S = 5.0
POLL_S = 0.1
LOG_TAIL = 2000  # characters of the log that an error tells
C = TypeVar("C", bound="ChildProcess")


class ChildProcess:
    """`python -m <command> --with-stdin` until closed; `url` is where it serves. A context manager."""

    def __init__(
        self,
        command: Sequence[str],
        *,
        name: str,
        health: str,
        log: IO[bytes],
        timeout_s: float,
        environment: Mapping[str, str] | None = None,
        wait: bool = True,
    ) -> None:
        """`health`: path that answers 200 once it serves. `log` takes its standard error and is closed with it.

        `wait`: until it serves; else the caller does, by `ready`, and has no `url` before. Raises as `ready` does.
        """
        self._name = name
        self._log = log
        self._health = health
        self._deadline = time.monotonic() + timeout_s
        self._timeout_s = timeout_s
        self.url = ""
        self._child = subprocess.Popen(
            [sys.executable, "-m", *command, "--with-stdin"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=log,
            env=environment,
            start_new_session=True,
        )
        if wait:
            try:
                self.ready()
            except KeyboardInterrupt:
                self.close(within_s=0.0)
                raise
            except BaseException:
                self.close()
                raise

    @property
    def pid(self) -> int:
        """The child's process id."""
        return self._child.pid

    def ask(self) -> None:
        """Tells the child to end, without waiting."""
        self._child.terminate()

    def kill(self) -> None:
        """Ends the child at once."""
        self._child.kill()

    def close(self, within_s: float | None = None) -> None:
        """Ends the child, in seconds at most; by force what has not ended `within_s`, without a word where it is given.

        0 gives it no time at all.
        """
        if within_s != 0.0:
            self.ask()
        try:
            self._child.wait(STOP_TIMEOUT_S if within_s is None else within_s)
        except subprocess.TimeoutExpired:
            if within_s is None:
                log.warning("%s did not end within %g s and was killed", self._name, STOP_TIMEOUT_S)
            self._child.kill()
            self._child.wait()
        for pipe in (self._child.stdin, self._child.stdout, self._log):
            if pipe is not None:
                pipe.close()

    def __enter__(self: C) -> C:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def ready(self) -> str:
        """Waits until it serves; its URL. Raises Unavailable, with the end of the log, where it does not in time."""
        out, told = self._child.stdout, ""
        while not self.url and time.monotonic() < self._deadline and out is not None:
            if not told and select.select([out], [], [], POLL_S)[0]:
                told = out.readline().decode().strip()
            if told and self._answers(told + self._health, max(1.0, self._deadline - time.monotonic())):
                self.url = told
            elif told:
                time.sleep(POLL_S)
            if not self.url and self._child.poll() is not None:
                break
        if self.url:
            return self.url
        raise Unavailable(
            f"{self._name} did not answer within {self._timeout_s:g} s (exit status {self._child.poll()}): "
            f"{self._tail() or 'it said nothing'}"
        )

    def _answers(self, address: str, timeout_s: float) -> bool:
        try:
            return httpx.get(address, timeout=timeout_s).is_success
        except httpx.TransportError as error:  # it is held, or has ended since
            log.debug("%s at %s: %r", self._name, address, error)
            return False

    def _tail(self) -> str:
        self._log.seek(0)
        return self._log.read().decode(errors="replace")[-LOG_TAIL:].strip()
