"""What the loop asks of whatever holds the weights, and which device that is on.

`verl_step.VerlTrainer` is the one used; tests drive the loop with a small one of their own.
"""

from __future__ import annotations

import contextlib
import os
import sys
import threading
import warnings
from collections.abc import Generator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Literal, Protocol, TextIO, cast

from .batch import Floats, TrainRow
from .config import TrainerConfig

if TYPE_CHECKING:
    import torch

Device = Literal["cuda", "cpu"]


@dataclass(frozen=True, slots=True)
class StepResult:
    """What an optimiser step did."""

    loss: float
    grad_norm: float  # before clipping; of several parts the largest
    skipped: bool = False  # no part's gradient was finite: weights are as before
    metrics: dict[str, float] = field(default_factory=dict[str, float])


class PolicyTrainer(Protocol):
    """A policy's weights and optimiser."""

    def step(self, parts: Sequence[Sequence[TrainRow]], seed: int) -> StepResult:
        """One optimiser step per part, in order. A part whose gradient is not finite leaves the weights as they are."""
        ...

    def logprobs(self, rows: Sequence[TrainRow]) -> list[Floats]:
        """(T,) per row: log-prob of each token under today's weights and the row's temperature; [0] is NaN."""
        ...

    def weights(self) -> dict[str, torch.Tensor]:
        """Hugging Face name -> full tensor on the CPU, in the published type."""
        ...

    def save(self, folder: Path) -> None:
        """Writes weights, optimiser and random state into an empty folder."""
        ...

    def load(self, folder: Path) -> None:
        """Puts back what `save` wrote; the next step is then bit-equal on a CPU."""
        ...

    def vocabulary(self) -> int:
        """How many token ids there are."""
        ...


def choose_device() -> Device:
    """Picks CUDA where there is one, else the CPU, and tells verl, by the environment. Call it before verl is imported.

    The trainer is one process (world size 1): the rendezvous variables only fill in what verl insists on.
    """
    import torch

    device: Device = "cuda" if torch.cuda.is_available() else "cpu"
    wanted = {"RANK": "0", "WORLD_SIZE": "1", "LOCAL_RANK": "0", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "0"}
    wanted |= {"VERL_LOGGING_LEVEL": "ERROR", "TOKENIZERS_PARALLELISM": "false", "GLOO_SOCKET_IFNAME": "lo"}
    if device == "cpu":
        wanted |= {"VERL_PLATFORM": "cpu", "VERL_USE_EXTERNAL_MODULES": "spanloop.trainer.cpu_platform"}
    for name, value in wanted.items():
        os.environ.setdefault(name, value)
    return device


def prepare_device() -> Device:
    """Chooses a device and makes the process group that verl wants."""
    import torch

    device = choose_device()
    if not torch.distributed.is_initialized():
        backend = "cpu:gloo,cuda:nccl" if device == "cuda" else "gloo"
        # one process, so a store in memory does: no port is opened
        store = torch.distributed.HashStore()  # pyright: ignore[reportPrivateImportUsage] public by its documentation
        torch.distributed.init_process_group(backend, store=store, rank=0, world_size=1)
    return device


class QuietHere:
    """A sys.stdout that drops what this thread writes: verl prints sizes and memory while it builds."""

    def __init__(self, real: TextIO) -> None:
        self._real = real
        self._thread = threading.get_ident()

    def write(self, text: str) -> int:
        """Drops the text in the thread that made this; others' goes through."""
        return len(text) if threading.get_ident() == self._thread else self._real.write(text)

    def __getattr__(self, name: str) -> object:
        return getattr(self._real, name)


def import_verl() -> None:
    """Imports verl, Ray and transformers: seconds in which a signal is not to wait. Needs no process group."""
    choose_device()
    with _quiet():
        from . import verl_step

        del verl_step


def make_trainer(config: TrainerConfig) -> PolicyTrainer:
    """The verl trainer over `config.model_dir`. Takes seconds, most of them `import_verl`'s."""
    device = prepare_device()
    with _quiet():
        from transformers.utils.logging import disable_progress_bar

        from .verl_step import VerlTrainer

        disable_progress_bar()
        return VerlTrainer(config, device)


@contextlib.contextmanager
def _quiet() -> Generator[None]:
    quiet = cast("TextIO", QuietHere(sys.stdout))
    with warnings.catch_warnings(), contextlib.redirect_stdout(quiet):
        warnings.simplefilter("ignore")  # verl warns of every optional backend that is not installed
        yield
