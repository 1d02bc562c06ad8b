"""Starts and ends an embedded engine as a child process."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

from .child_process import ChildProcess

# Importing torch and transformers takes most of it: seconds on a quiet machine, far more on one that is busy.
START_TIMEOUT_S = 180.0


class EngineProcess(ChildProcess):
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
        command = ["spanloop.infra.embedded_engine", "--model", str(model_dir)]
        command += ["--served-model-name", served_model_name, "--port", str(port), "--seed", str(seed)]
        command += ["--frozen"] if frozen else []
        command += [] if max_model_len is None else ["--max-model-len", str(max_model_len)]
        command += ["--logprobs-mode", "raw_logprobs"] if raw_logprobs else []
        super().__init__(
            command,
            name=f"the embedded engine on {model_dir}",
            health="/health",
            log=tempfile.TemporaryFile() if log is None else log.open("w+b"),  # noqa: SIM115 - closed by close()
            timeout_s=timeout_s,
            environment={**os.environ, "OMP_NUM_THREADS": str(threads), "HF_HUB_OFFLINE": "1"},
        )
