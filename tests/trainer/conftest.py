"""A 140k-parameter policy, trajectories made by hand, and a configuration around them."""

# pyright: reportUnknownMemberType=false
# transformers' save_pretrained is half typed

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import pytest

from spanloop.schemas.packed import NAN, pack_ids, pack_logprobs
from spanloop.schemas.records import (
    AttemptContext,
    Call,
    Credit,
    RewardRef,
    Row,
    Sampling,
    Segment,
    Trajectory,
    VersionRun,
)
from spanloop.trainer.batch import TrainRow
from spanloop.trainer.config import TrainerConfig

os.environ.setdefault("OMP_NUM_THREADS", "1")

T0 = 1_760_000_000_000_000_000
PROMPT, ANSWER = (5, 6, 7), (8, 9)


def make_toy(folder: Path) -> Path:
    """Writes the policy: Qwen2, vocabulary 64, hidden size 64, 2 layers, 4 heads."""
    import torch
    from transformers import Qwen2Config, Qwen2ForCausalLM

    torch.set_num_threads(1)
    torch.manual_seed(0)
    config = Qwen2Config(
        vocab_size=64,
        hidden_size=64,
        intermediate_size=256,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=4,
        max_position_embeddings=256,
        tie_word_embeddings=False,
        bos_token_id=1,
        eos_token_id=2,
        pad_token_id=0,
    )
    Qwen2ForCausalLM(config).save_pretrained(folder)
    return folder


@pytest.fixture(scope="session")
def toy_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folder of the policy."""
    return make_toy(tmp_path_factory.mktemp("toy"))


@pytest.fixture
def config(tmp_path: Path) -> TrainerConfig:
    """A configuration; tests change it with dataclasses.replace."""
    return TrainerConfig(
        run_id="run",
        trainer_id="tr",
        policy="policy",
        model_dir=tmp_path / "model",
        folder=tmp_path / "trainer",
        correction="mu",
        total_steps=4,
        groups_per_batch=2,
    )


def trajectory(
    reward: float | None,
    *,
    group: str = "g",
    sample: int = 0,
    size: int = 4,
    attempt: int = 1,
    revision: int = 3,
    final: bool = True,
    version: int | None = 1,
    calls: int = 1,
    own: Sequence[float | None] | None = None,
    credit: Credit | None = None,
    sampling: Sampling | None = None,
    logprob: float = -1.0,
    awaits: Sequence[str] = (),
    rewards: Sequence[RewardRef] = (),
    run: str = "run",
) -> Trajectory:
    """One attempt: a row in which each call answers ANSWER to PROMPT."""
    rollout = f"ro-{group}-{sample}"
    ids = list(PROMPT + ANSWER) * calls
    width = len(PROMPT + ANSWER)
    segments = [Segment(k * width + len(PROMPT), (k + 1) * width, k) for k in range(calls)]
    mask = [int(any(s.start <= i < s.end for s in segments)) for i in range(len(ids))]
    row = Row(
        token_ids=pack_ids(ids),
        mask=bytes(mask),
        logprobs=pack_logprobs([logprob if m else NAN for m in mask]),
        policy="policy",
        policy_versions=[] if version is None else [VersionRun(version, s.start, s.end) for s in segments],
        segments=segments,
        sampling=sampling or Sampling(temperature=1.0),
    )
    own = list(own) if own is not None else [None] * calls
    return Trajectory(
        rollout_id=rollout,
        attempt_id=f"at-{group}-{sample}-{attempt}",
        revision=revision,
        input_digest=f"digest-{group}-{sample}-{attempt}-{revision}",
        context=AttemptContext(
            run_id=run,
            group_id=group,
            sample=sample,
            group_size=size,
            credit=credit or Credit(),
            await_rewards=list(awaits),
            reward_deadline_s=10.0,
            attempt_number=attempt,
        ),
        status="succeeded",
        final=final,
        rows=[row],
        calls=[Call(span_id=f"{k:016x}", policy="policy", step_reward=own[k]) for k in range(calls)],
        rewards=list(rewards),
        final_reward=reward,
        end_ns=T0,
    )


def train_row(
    ids: Sequence[int],
    *,
    prompt: int = 3,
    advantage: float = 1.0,
    weight: float = 1.0,
    logprob: float = -4.0,
    temperature: float = 1.0,
    rollout: str = "ro",
) -> TrainRow:
    """A row whose tokens from `prompt` on are trained."""
    mask = np.arange(len(ids)) >= prompt
    return TrainRow(
        rollout_id=rollout,
        token_ids=np.array(ids, np.int64),
        mask=mask,
        logprobs=np.where(mask, logprob, 0.0),
        advantages=np.where(mask, advantage, 0.0),
        weights=np.where(mask, weight, 0.0),
        staleness=np.zeros(len(ids), np.int64),
        temperature=temperature,
    )


@pytest.fixture(scope="session")
def make_trajectory() -> Callable[..., Trajectory]:
    """See `trajectory`."""
    return trajectory


@pytest.fixture(scope="session")
def make_row() -> Callable[..., TrainRow]:
    """See `train_row`."""
    return train_row
