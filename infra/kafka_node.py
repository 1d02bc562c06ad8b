"""One process of a real Kafka, started and ended by the scripts in `kafka/`, by its process id."""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import socket
import subprocess
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path

from ..schemas.errors import Unavailable

log = logging.getLogger(__name__)

LOOPBACK = "127.0.0.1"
# The scripts give up on their own after two minutes.
START_TIMEOUT_S = 150.0
STOP_TIMEOUT_S = 30.0
POLL_S = 0.02


@dataclass(frozen=True, slots=True)
class KafkaNode:
    """Where a node listens, keeps its data, and what `start_kafka.sh` is told besides."""

    port: int
    folder: Path
    dist: Path
    environment: Mapping[str, str]

    def starting(self) -> subprocess.Popen[str]:
        """The script that starts it, for `finish`; it ends when the node serves."""
        return script("start_kafka.sh", self.port, self.folder, self.dist, environment=self.environment)

    def stop(self) -> None:
        """Ends it in order, or by force after ten seconds."""
        finish([script("stop_kafka.sh", self.folder)], STOP_TIMEOUT_S)

    def kill(self) -> None:
        """Ends it by SIGKILL; returns when it is gone."""
        pid = self.pid()
        self.signal(signal.SIGKILL)
        deadline = time.monotonic() + STOP_TIMEOUT_S
        # The first of its threads may be gone while others still hold the port.
        while pid is not None and (_runs(pid) or _listens(self.port)):
            if time.monotonic() > deadline:
                raise Unavailable(f"process {pid} of {self.folder} outlived SIGKILL by {STOP_TIMEOUT_S:g} s")
            time.sleep(POLL_S)

    def signal(self, number: signal.Signals) -> None:
        """Sends it a signal, if it runs."""
        if (pid := self.pid()) is not None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, number)

    def pid(self) -> int | None:
        """Its process id; None where it does not run."""
        try:
            pid = int((self.folder / "pid").read_text())
        except (FileNotFoundError, ValueError):
            return None
        # The id may be another process's by now.
        return pid if f"kafka.Kafka {self.folder}/server.properties" in _command(pid) else None


def _command(pid: int) -> str:
    told = subprocess.run(
        ["ps", "-ww", "-o", "args=", "-p", str(pid)], capture_output=True, text=True, check=False
    ).stdout
    return told.strip()


def _listens(port: int) -> bool:
    with socket.socket() as trial:
        return trial.connect_ex((LOOPBACK, port)) == 0


def _runs(pid: int) -> bool:
    """Whether it runs; a process that has ended and whose parent has not asked does not."""
    told = subprocess.run(["ps", "-o", "stat=", "-p", str(pid)], capture_output=True, text=True, check=False).stdout
    return bool(told.strip()) and not told.strip().startswith("Z")


def script(name: str, *arguments: object, environment: Mapping[str, str] | None = None) -> subprocess.Popen[str]:
    """A script of `kafka/`, begun in a session of its own: a Ctrl-C is for its owner, who ends it.

    Output to a pipe would be held open by the service that the script leaves behind, so only stderr is read.
    """
    return subprocess.Popen(
        ["bash", str(files("spanloop.infra") / "kafka" / name), *map(str, arguments)],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, **(environment or {})},
        start_new_session=True,
    )


def stop_all(folders: Sequence[Path], *flags: str, within_s: float | None = None) -> None:
    """Ends what runs in the folders, side by side.

    By force what has not ended `within_s`; else after ten seconds, and that is logged.
    """
    limit = {} if within_s is None else {"STOP_TENTHS": str(int(within_s * 10))}
    for process in [script("stop_kafka.sh", folder, *flags, environment=limit) for folder in folders]:
        _, told = process.communicate(timeout=STOP_TIMEOUT_S)
        for line in told.splitlines() if within_s is None else ():
            log.warning("%s", line)


def stop_with_owner(folders: Sequence[Path]) -> subprocess.Popen[bytes]:
    """A process that stops what runs in the folders once its input ends, which is when this process is gone."""
    return subprocess.Popen(
        ["bash", str(files("spanloop.infra") / "kafka" / "stop_with_owner.sh"), *map(str, folders)],
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,  # a Ctrl-C that ends the owner is not for it
    )


def finish(processes: Sequence[subprocess.Popen[str]], timeout_s: float = START_TIMEOUT_S) -> None:
    """Waits for scripts. Raises Unavailable with what the failed ones said. None goes on where it is interrupted."""
    try:
        _finish(processes, timeout_s)
    except BaseException:
        for process in processes:
            _kill(process)
        raise


def _kill(process: subprocess.Popen[str]) -> None:
    """Ends a script with what it runs in its own session; a service that it has left behind has another."""
    if process.poll() is None:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def _finish(processes: Sequence[subprocess.Popen[str]], timeout_s: float) -> None:
    failures: list[str] = []
    for process in processes:
        try:
            _, told = process.communicate(timeout=timeout_s)
        except subprocess.TimeoutExpired:
            _kill(process)
            failures.append(f"{process.args} did not end within {timeout_s:g} s")
            continue
        if process.returncode:
            failures.append(told.strip())
    if failures:
        raise Unavailable("; ".join(failures))
