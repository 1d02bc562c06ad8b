"""`trainee.py FOLDER RUN_ID GROUPS`: the real trainer service with a policy of three numbers instead of a model.

Feed, groups, batches, checkpoints, publishing and decisions are those of `spanloop train`; only the optimiser is a toy.
"""

from __future__ import annotations

import sys
from pathlib import Path

from trainer_rig import ToyTrainer

from spanloop.infra import process
from spanloop.trainer import loop
from spanloop.trainer.config import TrainerConfig

TRAINER_ID = "trainee"
NEVER = 10**9
# Bounds the rollouts under way; faults must find a queue behind them, not an idle loop.
CREDIT = 48


def config(folder: Path, run_id: str, groups: int) -> TrainerConfig:
    """Nothing is ever too stale or too late: what is trained is what the log holds."""
    model = folder / "model"
    model.mkdir(parents=True, exist_ok=True)
    (model / "config.json").write_text("{}")
    return TrainerConfig(
        run_id=run_id,
        trainer_id=TRAINER_ID,
        policy="policy",
        model_dir=model,
        folder=folder / "trainer",
        correction="mu",
        total_steps=NEVER,
        groups_per_batch=groups,
        max_staleness=NEVER,
        checkpoint_every=4,
        group_deadline_s=NEVER,
        credit=CREDIT,
        no_engine_s=None,
    )


def make(_: TrainerConfig) -> ToyTrainer:
    """Instead of verl's."""
    return ToyTrainer()


if __name__ == "__main__":
    loop.make_trainer = make
    toy = config(Path(sys.argv[1]), sys.argv[2], int(sys.argv[3]))
    process.main(lambda settings: loop.TrainerService(settings, toy), leave_s=None)
