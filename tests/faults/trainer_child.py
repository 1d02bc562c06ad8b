"""One life of a trainer as a process of its own: `trainer_child.py CONFIG.json [POINT STEP]` kills itself there."""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
from pathlib import Path

import torch

from spanloop.infra.settings import Settings
from spanloop.trainer.config import TrainerConfig
from spanloop.trainer.loop import Point, TrainerService


def main(config_path: str, *kill: str) -> None:
    torch.set_num_threads(1)
    given = json.loads(Path(config_path).read_text())
    for name in ("model_dir", "folder"):
        given[name] = Path(given[name])

    def hook(point: Point, step: int) -> None:
        if kill and (point, str(step)) == kill:
            os.kill(os.getpid(), signal.SIGKILL)

    TrainerService(Settings(), TrainerConfig(**given), hook=hook).run(threading.Event())


if __name__ == "__main__":
    main(*sys.argv[1:])
