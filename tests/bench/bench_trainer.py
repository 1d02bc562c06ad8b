"""One training step on the toy policy, part by part: 8 groups of 8 rollouts, 9 tokens each; bare PyTorch beside it."""

# pyright: reportUnknownMemberType=false
# transformers and torch are half typed

from __future__ import annotations

import json
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import torch
from transformers import AutoModelForCausalLM

from spanloop.schemas.packed import NAN, pack_ids, pack_logprobs
from spanloop.schemas.records import Call, Row, Segment, Trajectory, VersionRun
from spanloop.trainer.batch import StepContext, TrainRow, mini_batches, plan
from spanloop.trainer.config import TrainerConfig
from spanloop.trainer.groups import ClosedGroup
from spanloop.trainer.step import PolicyTrainer, make_trainer
from spanloop.trainer.tiny import make_policy
from spanloop.trainer.weights import stage_weights

GROUPS, MEMBERS, TOKENS, PROMPT = 8, 8, 9, 5
ROUNDS = 10


def rollout(group: int, sample: int) -> Trajectory:
    ids = [3 + (5 * group + 7 * sample + i) % 60 for i in range(TOKENS)]
    row = Row(
        token_ids=pack_ids(ids),
        mask=bytes([0] * PROMPT + [1] * (TOKENS - PROMPT)),
        logprobs=pack_logprobs([NAN] * PROMPT + [-4.0] * (TOKENS - PROMPT)),
        policy_versions=[VersionRun(1, PROMPT, TOKENS)],
        segments=[Segment(PROMPT, TOKENS, 0)],
    )
    return Trajectory(f"ro-{group}-{sample}", "at", 1, "d", rows=[row], calls=[Call("s")], final_reward=float(sample))


def bare(folder: Path) -> Callable[[list[TrainRow]], None]:
    """The same step without verl: one padded forward pass, AdamW."""
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    optimiser = torch.optim.AdamW(model.parameters(), lr=1e-3)

    def step(rows: list[TrainRow]) -> None:
        ids = torch.tensor([r.token_ids.tolist() for r in rows])
        weight = torch.tensor([(r.weights * r.advantages).tolist() for r in rows])[:, 1:]
        logits: torch.Tensor = model(input_ids=ids).logits
        logp = torch.log_softmax(logits[:, :-1], -1).gather(2, ids[:, 1:, None])[..., 0]
        optimiser.zero_grad()
        (-(weight * logp).sum()).backward()
        optimiser.step()

    return step


def milliseconds(work: Callable[[], object]) -> float:
    """Best wall time of some rounds, after one to warm up."""
    work()
    took: list[float] = []
    for _ in range(ROUNDS):
        start = time.perf_counter()
        work()
        took.append(time.perf_counter() - start)
    return 1000 * min(took)


def main() -> dict[str, float]:
    with tempfile.TemporaryDirectory() as home:
        folder = Path(home)
        make_policy(folder / "model", seed=0)
        config = TrainerConfig(
            run_id="run",
            trainer_id="bench",
            policy="policy",
            model_dir=folder / "model",
            folder=folder / "trainer",
            correction="mu",
            total_steps=1,
        )
        groups = [ClosedGroup(f"g{g}", tuple(rollout(g, s) for s in range(MEMBERS)), MEMBERS) for g in range(GROUPS)]
        start = time.perf_counter()
        trainer: PolicyTrainer = make_trainer(config)
        built = time.perf_counter() - start
        rows = list(plan(groups, config, StepContext(1, 1, {1: 0})).rows)
        peer = bare(folder / "model")
        step = milliseconds(lambda: trainer.step(mini_batches(rows, 1), 1))
        plain = milliseconds(lambda: peer(rows))
        numbers = iter(range(100))

        def save() -> None:
            target = folder / f"checkpoint-{next(numbers)}"
            target.mkdir()
            trainer.save(target)

        return {
            "start_s": built,
            "plan_64_rollouts_ms": milliseconds(lambda: plan(groups, config, StepContext(1, 1, {1: 0}))),
            "step_64_rows_ms": step,
            "bare_torch_step_ms": plain,
            "step_to_bare_ratio": step / plain,
            "logprobs_64_rows_ms": milliseconds(lambda: trainer.logprobs(rows)),
            "checkpoint_ms": milliseconds(save),
            "weights_ms": milliseconds(lambda: stage_weights(folder / "out", config.model_dir, trainer.weights())),
        }


if __name__ == "__main__":
    sys.stdout.write(json.dumps({"figures": main()}) + "\n")
