"""Policy versions: what the trainer publishes, and what it finds published by its own former runs."""

from __future__ import annotations

import json
import logging
import shutil
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from ..infra.clock import Clock
from ..schemas.errors import Fenced
from ..schemas.records import Resource
from .config import TrainerConfig
from .journal import Journal
from .step import PolicyTrainer
from .weights import folder_of, install_folder, probe, prune, stage_weights, sync

log = logging.getLogger(__name__)


class Publisher:
    """Gives out the weights of one trainer as versions of its policy."""

    def __init__(
        self, config: TrainerConfig, journal: Journal, trainer: PolicyTrainer, epochs: Sequence[int], clock: Clock
    ) -> None:
        """`epochs`: every writer epoch of this trainer so far, its present one last."""
        self._config = config
        self._journal = journal
        self._trainer = trainer
        self._epochs = epochs
        self._clock = clock

    def publish(self, step: int, parent: Resource | None) -> Resource:
        """The version that holds the weights after `step`: a new one, or the one a former run of it published.

        The returned record has the digest of the weights as they are here; where a replay on a GPU came out a little
        different, the published folder stays, and the next version names the new digest as its parent's.
        Raises Fenced, DeliveryFailed, OSError; the version then has not advanced.
        """
        self._journal.refresh(to_end=True)
        lineage = self._journal.lineage
        if lineage.epoch > self._epochs[-1]:
            raise Fenced(
                f"policy {self._config.policy!r} has a newer writer (epoch {lineage.epoch}, this one has "
                f"{self._epochs[-1]}); stop one of the two trainers, or give this one a policy of its own"
            )
        known = lineage.published(step, None if parent is None else parent.version, self._epochs)
        version = lineage.newest + 1 if known is None else known.version
        target = folder_of(self._config.weights_dir, version)
        staged, sha256 = stage_weights(target, self._config.model_dir, self._trainer.weights())
        if known is not None:
            return _again(known, staged, sha256)
        install_folder(staged, target)
        resource = self._record(version, step, target, sha256, parent)
        self._journal.write(resource)
        lineage.add(resource)
        prune(self._config.weights_dir, self._config.keep_weights)
        return resource

    def _record(self, version: int, step: int, folder: Path, sha256: str, parent: Resource | None) -> Resource:
        return Resource(
            name=self._config.policy,
            version=version,
            kind="policy",
            uri=str(folder),
            sha256=sha256,
            parent_version=None if parent is None else parent.version,
            parent_sha256=None if parent is None else parent.sha256,
            epoch=self._epochs[-1],
            probe=probe(self._trainer),
            run_id=self._config.run_id,
            step=step,
            created_ns=self._clock.now_ns(),
        )


def _again(known: Resource, staged: Path, sha256: str) -> Resource:
    """A version that is published already: its folder is put back if it is gone, else left to who reads it."""
    target = Path(known.uri or "")
    if known.sha256 == sha256 and not target.exists():
        install_folder(staged, target)
    else:
        shutil.rmtree(staged)
    if known.sha256 != sha256:
        log.warning(
            "version %d was published with digest %s, its replay gives %s: not bit-equal, as happens on a GPU",
            *(known.version, known.sha256, sha256),
        )
    return replace(known, sha256=sha256)


def next_epoch(path: Path, highest: int) -> list[int]:
    """This trainer's writer epochs, a new one above `highest` added; kept in a file so that it knows its own later."""
    own: list[int] = json.loads(path.read_text("utf-8")) if path.exists() else []
    own.append(max([highest, *own]) + 1)
    path.parent.mkdir(parents=True, exist_ok=True)
    fresh = path.with_suffix(".tmp")
    fresh.write_text(json.dumps(own), "utf-8")
    sync(fresh)
    fresh.rename(path)
    return own
