"""Weights given out: a folder that engines load, by rename, then its record in `resources`, acknowledged.

    write <name>.tmp/ ─▶ fsync ─▶ rename to v000007/ ─▶ resources record ─▶ only now version 7 exists

A crash anywhere before the record leaves the version unpublished; the next try writes the same folder again. Version
numbers are never reused: the next one is always the newest published + 1.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from safetensors.torch import save_file  # pyright: ignore[reportUnknownVariableType] its stubs are loose

from .batch import TrainRow
from .step import PolicyTrainer

if TYPE_CHECKING:
    import torch

log = logging.getLogger(__name__)

WEIGHTS_FILE = "model.safetensors"
# Everything in the first model's folder but its weights: configuration, tokenizer, chat template.
NOT_COPIED = ("*.safetensors", "*.safetensors.index.json", "*.bin", "*.pt", "*.pth", "*.gguf")
PROBE_TOKENS = 16
# Where a folder that is replaced lies until it is removed: a name that neither `step-*` nor `v*` matches.
REPLACED = ".replaced"


def stage_folder(target: Path, fill: Callable[[Path], None]) -> Path:
    """Writes and syncs a folder beside `target`, under a name that nothing reads; see `install_folder`."""
    fresh = target.with_name(target.name + ".tmp")
    shutil.rmtree(fresh, ignore_errors=True)
    fresh.mkdir(parents=True)
    fill(fresh)
    for path in sorted(fresh.rglob("*")):
        sync(path)
    sync(fresh)
    return fresh


def install_folder(staged: Path, target: Path) -> None:
    """Renames a staged folder into place: `target` is whole, or not there.

    One that was there before is renamed aside first, for a kill while it is removed would leave half of it.
    """
    replaced = target.with_name(REPLACED)
    shutil.rmtree(replaced, ignore_errors=True)  # left by such a kill
    if target.exists():
        target.rename(replaced)
    staged.rename(target)
    sync(target.parent)
    shutil.rmtree(replaced, ignore_errors=True)


def sync(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def file_digest(path: Path) -> str:
    """sha256 of a file, hex."""
    with path.open("rb") as f:
        found = hashlib.sha256()
        while chunk := f.read(1 << 20):
            found.update(chunk)
    return found.hexdigest()


def stage_weights(target: Path, model_dir: Path, weights: dict[str, torch.Tensor]) -> tuple[Path, str]:
    """A staged Hugging Face folder and the sha256 of its weights file."""

    def fill(folder: Path) -> None:
        shutil.copytree(model_dir, folder, dirs_exist_ok=True, ignore=shutil.ignore_patterns(*NOT_COPIED))
        save_file(weights, folder / WEIGHTS_FILE, metadata={"format": "pt"})

    staged = stage_folder(target, fill)
    return staged, file_digest(staged / WEIGHTS_FILE)


def folder_of(weights_dir: Path, version: int) -> Path:
    """Where a version lies; absolute."""
    return weights_dir.resolve() / f"v{version:06d}"


def prune(weights_dir: Path, keep: int) -> None:
    """Removes all but the newest `keep` folders."""
    for folder in sorted(weights_dir.glob("v*[0-9]"))[:-keep]:
        shutil.rmtree(folder, ignore_errors=True)


def probe_ids(vocabulary: int) -> list[int]:
    """Token ids that tell weights apart: fixed, spread over the vocabulary."""
    return [(3 + 7 * i) % vocabulary for i in range(PROBE_TOKENS)]


def probe(trainer: PolicyTrainer) -> str:
    """JSON {ids, logprobs}: logprobs[i] = log P(ids[i] | ids[:i]) at temperature 1, null at 0."""
    ids = probe_ids(trainer.vocabulary())
    values = trainer.logprobs([plain_row(ids)])[0]
    return json.dumps({"ids": ids, "logprobs": [None, *(float(v) for v in values[1:])]})


def plain_row(ids: Sequence[int]) -> TrainRow:
    """A row that is only looked at."""
    n = len(ids)
    return TrainRow(
        rollout_id="",
        token_ids=np.array(ids, np.int64),
        mask=np.zeros(n, bool),
        logprobs=np.zeros(n),
        advantages=np.zeros(n),
        weights=np.zeros(n),
        staleness=np.zeros(n, np.int64),
    )
