"""Starts and ends an embedded engine as a child process."""

from __future__ import annotations

import os
import select
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from types import TracebackType

import httpx

from ..schemas.errors import Unavailable

# Importing torch and transformers takes most of it: seconds on a quiet machine, far more on one that is busy.
START_TIMEOUT_S = 180.0
STOP_TIMEOUT_S = 10.0
POLL_S = 0.2
LOG_TAIL = 2000


class EngineProcess:
    """Serves a model folder from a child process until closed; `url` is where. A context manager.

    The child ends with its parent, also when that is killed. Raises Unavailable, with the end of the child's log, where
    it does not answer in time.
    """

    def __init__(
        self,
        model_dir: Path,
        *,
        port: int = 0,
        served_model_name: str = "policy",
        frozen: bool = False,
        seed: int = 0,
        max_model_len: int | None = None,
        raw_logprobs: bool = False,
        threads: int = 1,
        log: Path | None = None,
        timeout_s: float = START_TIMEOUT_S,
    ) -> None:
        """`threads` are torch's; `log` takes the child's standard error, a temporary file by default."""
        command = [sys.executable, "-m", "spanloop.infra.embedded_engine", "--with-stdin"]
        command += ["--model", str(model_dir), "--served-model-name", served_model_name]
        command += ["--port", str(port), "--seed", str(seed)]
        command += ["--frozen"] if frozen else []
        command += [] if max_model_len is None else ["--max-model-len", str(max_model_len)]
        command += ["--logprobs-mode", "raw_logprobs"] if raw_logprobs else []
        environment = {**os.environ, "OMP_NUM_THREADS": str(threads), "HF_HUB_OFFLINE": "1"}
        self._log = tempfile.TemporaryFile() if log is None else log.open("w+b")  # noqa: SIM115 - closed by close()
        self._child = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._log,
            env=environment,
            start_new_session=True,
        )
        try:
            self.url = self._wait_ready(timeout_s)
        except BaseException:
            self.close()
            raise

    @property
    def pid(self) -> int:
        """The child's process id."""
        return self._child.pid

    def close(self) -> None:
        """Ends the child, in seconds at most."""
        self._child.terminate()
        try:
            self._child.wait(STOP_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            self._child.kill()
            self._child.wait()
        for pipe in (self._child.stdin, self._child.stdout, self._log):
            if pipe is not None:
                pipe.close()

    def __enter__(self) -> EngineProcess:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _wait_ready(self, timeout_s: float) -> str:
        deadline = time.monotonic() + timeout_s
        out = self._child.stdout
        while time.monotonic() < deadline and out is not None:
            if select.select([out], [], [], POLL_S)[0]:
                url = out.readline().decode().strip()
                if url and httpx.get(f"{url}/health", timeout=max(1.0, deadline - time.monotonic())).is_success:
                    return url
            if self._child.poll() is not None:
                break
        raise Unavailable(
            f"the embedded engine did not answer within {timeout_s:g} s "
            f"(exit status {self._child.poll()}): {self._tail()}"
        )

    def _tail(self) -> str:
        self._log.seek(0)
        return self._log.read().decode(errors="replace")[-LOG_TAIL:].strip()
