"""Lives of a trainer, each a process of its own, forked from this one, which has imported what takes most of a start.

A line of JSON on standard input is a life: the environment and configuration it gets, and where it kills itself, if
anywhere. Its exit status, negative for a signal, is a line on standard output.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
from pathlib import Path
from typing import Any

import torch

from spanloop.infra.settings import Settings
from spanloop.trainer.config import TrainerConfig
from spanloop.trainer.loop import Point, TrainerService
from spanloop.trainer.step import choose_device


def live(life: dict[str, Any]) -> None:
    """A trainer from its start to its end or its kill."""
    os.environ.update(life["environment"])
    given, kill = life["config"], life["kill"]
    for name in ("model_dir", "folder"):
        given[name] = Path(given[name])

    def hook(point: Point, step: int) -> None:
        if [point, step] == kill:
            os.kill(os.getpid(), signal.SIGKILL)

    TrainerService(Settings(), TrainerConfig(**given), hook=hook).run(threading.Event())


def main() -> None:
    torch.set_num_threads(1)
    choose_device()
    from spanloop.trainer import verl_step

    del verl_step
    for line in sys.stdin:
        child = os.fork()
        if child == 0:
            live(json.loads(line))
            os._exit(0)
        status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        sys.stdout.write(f"{status}\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
