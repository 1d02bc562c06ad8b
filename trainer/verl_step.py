"""The optimiser step on verl 0.9.1's TrainingWorker, in this process: FSDP2 over one rank, no Ray actors.

Rows go through whole, as nested (B, j) tensors; log-prob of token t comes out at position t − 1.
Import this module through `step.make_trainer`, which tells verl the device first.
"""

# pyright: reportMissingTypeStubs=false, reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false, reportUnknownParameterType=false
# verl and tensordict carry no types

from __future__ import annotations

import logging
import math
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from verl.trainer.config import CheckpointConfig
from verl.utils import tensordict_utils as tu
from verl.utils.checkpoint import fsdp_checkpoint_manager
from verl.workers.config import FSDPEngineConfig, FSDPOptimizerConfig, HFModelConfig, TrainingWorkerConfig
from verl.workers.engine import EngineRegistry, FSDPEngineWithLMHead
from verl.workers.engine_workers import TrainingWorker

from .batch import Floats, TrainRow
from .config import TrainerConfig, named
from .loss import LOSSES, StepStats, Tokens
from .step import Device, StepResult

if TYPE_CHECKING:
    from tensordict import TensorDict


def _made(path: str) -> str:
    Path(path).mkdir(parents=True, exist_ok=True)
    return path


# verl's nested tensors make it tell of a renaming inside torch, which is nobody's here to act on.
logging.getLogger("torch.fx._symbolic_trace").setLevel(logging.ERROR)

# verl's own, for ranks that race, leaves a lock in the temporary folder for every folder; here there is one rank.
fsdp_checkpoint_manager.local_mkdir_safe = _made  # pyright: ignore[reportPrivateImportUsage] it imports it by name

DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16}


@EngineRegistry.register(model_type="language_model", backend=["fsdp2"], device="cpu")
class CpuEngine(FSDPEngineWithLMHead):
    """verl's FSDP2 engine, registered for the CPU as well."""


@dataclass(slots=True)
class RowLoss:
    """verl's loss function: sums the chosen token loss over trained tokens and keeps statistics."""

    config: TrainerConfig
    stats: StepStats

    def __call__(
        self, model_output: dict[str, torch.Tensor], data: TensorDict, dp_group: object = None
    ) -> tuple[torch.Tensor, dict[str, Any]]:
        del dp_group
        logprobs = model_output["log_probs"].values()
        # token t's log-prob is at t − 1; position 0 is never trained, so no row reaches into the one before
        mask = torch.roll(data["loss_mask"].values(), -1)

        def picked(name: str) -> torch.Tensor:
            return torch.roll(data[name].values(), -1)[mask]

        tokens = Tokens(
            logprobs[mask], picked("behaviour"), picked("advantages"), picked("weights"), picked("staleness")
        )
        corrected = tokens if self.config.correction == "mu" else tokens.as_onpolicy()
        clip = self.config.clip
        loss = (tokens.weights * named("loss", LOSSES, self.config.loss)(corrected, clip)).sum() * data["dp_size"]
        if not mask.any():
            loss = loss + 0.0 * logprobs.sum()  # a micro-batch of padding still takes part in the backward pass
        self.stats.add(tokens, clip, loss)
        return loss, {}


class VerlTrainer:
    """A PolicyTrainer on verl's TrainingWorker."""

    def __init__(self, config: TrainerConfig, device: Device) -> None:
        self._config = config
        self._device = device
        if device == "cpu":
            torch.set_num_threads(config.cpu_threads)
        torch.manual_seed(config.seed)
        self._worker = TrainingWorker(_worker_config(config, device))
        self._worker.reset()

    def step(self, parts: Sequence[Sequence[TrainRow]], seed: int) -> StepResult:
        stats = StepStats()
        self._worker.set_loss_fn(RowLoss(self._config, stats))
        torch.manual_seed(seed)
        rows = [row for part in parts for row in part]
        data = self._tensors(rows)
        tu.assign_non_tensor(
            data,
            num_mini_batch=len(parts),
            epochs=1,
            seed=seed,
            dataloader_kwargs={"shuffle": False},
            global_batch_size=len(parts[0]),
        )
        with warnings.catch_warnings():
            # after a first step without an update, the schedule (a constant) is rightly ahead of the optimiser
            warnings.filterwarnings("ignore", "Detected call of `lr_scheduler.step", UserWarning)
            metrics = tu.get(self._worker.train_mini_batch(data), "metrics")
        norms = [float(x) for x in np.ravel(metrics["grad_norm"])]
        skipped = [n for n in norms if not math.isfinite(n)]  # verl applies each part or skips it by itself
        return StepResult(
            loss=math.fsum(stats.losses) / len(parts),
            grad_norm=max(norms, key=lambda n: (not math.isfinite(n), n)),
            skipped=len(skipped) == len(norms),
            metrics=_metrics(stats) | {"parts_skipped": float(len(skipped))},
        )

    def logprobs(self, rows: Sequence[TrainRow]) -> list[Floats]:
        data = self._tensors(rows)
        tu.assign_non_tensor(data, compute_loss=False, global_token_num=None)
        found = self._worker.infer_batch(data)["log_probs"]
        shifted = [np.roll(x.detach().cpu().numpy().astype(np.float64), 1) for x in found.unbind()]
        for values in shifted:
            values[0] = math.nan
        return shifted

    def weights(self) -> dict[str, torch.Tensor]:
        params, _ = self._worker.engine.get_per_tensor_param()
        tied = bool(self._worker.model_config.hf_config.tie_word_embeddings)
        dtype = DTYPES[self._config.dtype]
        return {
            name: tensor.detach().to("cpu", dtype, copy=True).contiguous()
            for name, tensor in params
            if not (tied and name == "lm_head.weight")
        }

    def save(self, folder: Path) -> None:
        self._worker.save_checkpoint(str(folder))

    def load(self, folder: Path) -> None:
        self._worker.load_checkpoint(str(folder))

    def vocabulary(self) -> int:
        return int(self._worker.model_config.hf_config.vocab_size)

    def _tensors(self, rows: Sequence[TrainRow]) -> TensorDict:
        longest = max(len(row.token_ids) for row in rows)
        return tu.get_tensordict(
            {
                "input_ids": _nested([torch.from_numpy(r.token_ids.copy()) for r in rows]),
                "position_ids": _nested([torch.arange(len(r.token_ids)) for r in rows]),
                "loss_mask": _nested([torch.from_numpy(r.mask.copy()) for r in rows]),
                "behaviour": _nested([torch.from_numpy(r.logprobs).float() for r in rows]),
                "advantages": _nested([torch.from_numpy(r.advantages).float() for r in rows]),
                "weights": _nested([torch.from_numpy(r.weights).float() for r in rows]),
                "staleness": _nested([torch.from_numpy(r.staleness.copy()) for r in rows]),
                "temperature": torch.tensor([r.temperature for r in rows], dtype=torch.float32),
            },
            {
                "pad_token_id": 0,
                "calculate_entropy": False,
                "max_token_len_per_gpu": max(self._config.micro_batch_tokens, longest),
            },
        )


def _nested(rows: list[torch.Tensor]) -> torch.Tensor:
    return torch.nested.as_nested_tensor(rows, layout=torch.jagged)


def _metrics(stats: StepStats) -> dict[str, float]:
    tokens, fresh = max(stats.tokens, 1), max(stats.onpolicy_tokens, 1)
    return {
        "tokens": float(stats.tokens),
        "clip_fraction": stats.clipped / tokens,
        "ratio_mean": stats.ratio_sum / tokens,
        "onpolicy_tokens": float(stats.onpolicy_tokens),
        "onpolicy_abs_diff_max": stats.onpolicy_max,
        "onpolicy_abs_diff_mean": stats.onpolicy_sum / fresh,
    }


def _worker_config(config: TrainerConfig, device: Device) -> TrainingWorkerConfig:
    """fp32 throughout on the CPU; on CUDA fp32 master weights, the forward pass in the configured type, rows packed."""
    param = config.dtype if device == "cuda" else "fp32"
    return TrainingWorkerConfig(
        model_type="language_model",
        model_config=HFModelConfig(
            path=str(config.model_dir),
            use_remove_padding=device == "cuda",
            enable_gradient_checkpointing=device == "cuda",
            override_config={"attn_implementation": "sdpa"},  # flash-attention has no wheel to rely on
        ),
        engine_config=FSDPEngineConfig(
            strategy="fsdp2",
            use_torch_compile=False,
            model_dtype="fp32",
            mixed_precision={"param_dtype": param, "reduce_dtype": "fp32", "buffer_dtype": "fp32"},
            use_dynamic_bsz=True,
            max_token_len_per_gpu=config.micro_batch_tokens,
            infer_max_token_len_per_gpu=config.micro_batch_tokens,
        ),
        optimizer_config=FSDPOptimizerConfig(
            lr=config.lr,
            total_training_steps=config.total_steps,
            lr_warmup_steps=0,
            weight_decay=0.0,
            clip_grad=config.max_grad_norm,
        ),
        checkpoint_config=CheckpointConfig(
            save_contents=["model", "optimizer", "extra"], load_contents=["model", "optimizer", "extra"]
        ),
    )
