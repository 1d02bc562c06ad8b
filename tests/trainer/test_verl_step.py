"""The optimiser step on verl against plain PyTorch, plain transformers and verl's own CISPO."""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# pyright: reportAttributeAccessIssue=false, reportCallIssue=false, reportMissingTypeStubs=false
# verl and transformers carry no types, torch only some

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from spanloop.trainer.batch import TrainRow, mini_batches
from spanloop.trainer.config import TrainerConfig
from spanloop.trainer.step import PolicyTrainer, make_trainer

MakeRow = Callable[..., TrainRow]
IDS = ([5, 6, 7, 8, 9, 10], [11, 12, 13, 14], [15, 16, 17, 18, 19, 20, 21, 22, 23], [3, 4, 5, 6, 7])


@pytest.fixture
def built(config: TrainerConfig, toy_model: Path) -> Callable[..., PolicyTrainer]:
    """Makes a trainer over the toy policy."""

    def make(**changes: object) -> PolicyTrainer:
        torch.set_num_threads(1)
        return make_trainer(replace(config, model_dir=toy_model, **changes))  # pyright: ignore[reportArgumentType] test

    return make


def rows_of(make_row: MakeRow, **changes: float) -> list[TrainRow]:
    """Four rollouts of unequal length."""
    return [
        make_row(ids, advantage=(-1.0) ** i * (1 + i), weight=0.05, rollout=f"ro-{i}", **changes)
        for i, ids in enumerate(IDS)
    ]


def hf_logprobs(folder: Path, row: TrainRow) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
    """(T,) log-probs of a row by transformers alone."""
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    with torch.no_grad():
        logits = model(input_ids=torch.from_numpy(row.token_ids)[None]).logits[0]
    found = torch.log_softmax(logits / row.temperature, -1)[:-1].gather(1, torch.from_numpy(row.token_ids)[1:, None])
    return np.concatenate([[math.nan], found[:, 0].double().numpy()])


def gradients(trainer: PolicyTrainer, rows: list[TrainRow]) -> dict[str, torch.Tensor]:
    """Gradients of one step, read off the optimiser's first moments: after one Adam step m = (1 − β1) g."""
    trainer.step([rows], seed=1)
    worker = trainer._worker  # pyright: ignore[reportPrivateUsage] reads Adam's moments
    names = dict(worker.engine.module.named_parameters())
    states = worker.engine.optimizer.state
    return {n: states[p]["exp_avg"].full_tensor() / 0.1 for n, p in names.items()}


def test_log_probs_equal_those_of_plain_transformers_at_any_temperature(
    built: Callable[..., PolicyTrainer], make_row: MakeRow, toy_model: Path
) -> None:
    rows = [replace(r, temperature=t) for r, t in zip(rows_of(make_row), (1.0, 0.5, 2.0, 1.0), strict=True)]
    for row, found in zip(rows, built().logprobs(rows), strict=True):
        assert math.isnan(found[0])
        assert np.abs(found[1:] - hf_logprobs(toy_model, row)[1:]).max() < 1e-5


def test_on_policy_data_shows_no_gap_and_ratio_one(
    built: Callable[..., PolicyTrainer], make_row: MakeRow, toy_model: Path
) -> None:
    rows = [replace(r, logprobs=np.where(r.mask, hf_logprobs(toy_model, r), 0.0)) for r in rows_of(make_row)]
    metrics = built().step([rows], seed=1).metrics
    assert metrics["onpolicy_abs_diff_max"] < 1e-5
    assert metrics["ratio_mean"] == pytest.approx(1.0, abs=1e-5)
    assert metrics["tokens"] == sum(r.trained for r in rows)


def test_a_wrong_temperature_shows_as_a_gap(
    built: Callable[..., PolicyTrainer], make_row: MakeRow, toy_model: Path
) -> None:
    rows = [replace(r, logprobs=np.where(r.mask, hf_logprobs(toy_model, r), 0.0)) for r in rows_of(make_row)]
    hot = [replace(r, temperature=0.25) for r in rows]
    assert built().step([hot], seed=1).metrics["onpolicy_abs_diff_max"] > 0.1


def test_gradients_equal_those_of_plain_pytorch(
    built: Callable[..., PolicyTrainer], make_row: MakeRow, toy_model: Path
) -> None:
    from transformers import AutoModelForCausalLM

    rows = rows_of(make_row)
    found = gradients(built(max_grad_norm=1e9), rows)
    model = AutoModelForCausalLM.from_pretrained(toy_model, dtype=torch.float32)
    for row in rows:
        ids = torch.from_numpy(row.token_ids)
        logp = torch.log_softmax(model(input_ids=ids[None]).logits[0], -1)[:-1].gather(1, ids[1:, None])[:, 0]
        mask = torch.from_numpy(row.mask)[1:]
        ratio = torch.exp(logp.detach() - torch.from_numpy(row.logprobs)[1:].float()).clamp(0, 5)
        weight = torch.from_numpy(row.weights * row.advantages)[1:].float()
        (-(ratio * weight * logp)[mask]).sum().backward()
    for name, p in model.named_parameters():
        assert p.grad is not None, name
        assert torch.allclose(found[name], p.grad, atol=1e-6, rtol=1e-4), name


def test_the_loss_equals_verls_own_cispo(built: Callable[..., PolicyTrainer], make_row: MakeRow) -> None:
    rows = rows_of(make_row)
    total = sum(r.trained for r in rows)
    rows = [replace(r, weights=np.where(r.mask, 1 / total, 0.0)) for r in rows]
    trainer = built()
    logps = trainer.logprobs(rows)
    loss = trainer.step([rows], seed=1).loss

    from verl.trainer.ppo.core_algos import compute_policy_loss_cispo
    from verl.workers.config import FSDPActorConfig

    cfg = FSDPActorConfig(
        strategy="fsdp2", rollout_n=1, ppo_micro_batch_size_per_gpu=8, clip_ratio_low=1.0, clip_ratio_high=4.0
    )
    pad = max(map(len, IDS))

    def padded(values: list[np.ndarray[tuple[int], np.dtype[np.float64]]]) -> torch.Tensor:
        return torch.tensor(np.stack([np.pad(v, (0, pad - len(v))) for v in values]), dtype=torch.float32)

    verls, _ = compute_policy_loss_cispo(
        padded([r.logprobs for r in rows]),
        padded([np.nan_to_num(x) for x in logps]),
        padded([r.advantages for r in rows]),
        padded([r.mask.astype(float) for r in rows]),
        config=cfg,
    )
    assert loss == pytest.approx(float(verls), rel=1e-5)


def test_log_probs_shifted_by_ln_2_halve_every_gradient(built: Callable[..., PolicyTrainer], make_row: MakeRow) -> None:
    full = gradients(built(max_grad_norm=1e9), rows_of(make_row, logprob=-4.0))
    half = gradients(built(max_grad_norm=1e9), rows_of(make_row, logprob=-4.0 + math.log(2)))
    for name, g in full.items():
        assert torch.allclose(half[name], g / 2, atol=1e-7, rtol=1e-4), name
    assert max(float(g.abs().max()) for g in full.values()) > 1e-4


def test_a_ratio_over_the_clip_counts_as_the_clip(built: Callable[..., PolicyTrainer], make_row: MakeRow) -> None:
    far = gradients(built(max_grad_norm=1e9), rows_of(make_row, logprob=-40.0))
    farther = gradients(built(max_grad_norm=1e9), rows_of(make_row, logprob=-80.0))
    assert all(torch.equal(far[n], farther[n]) for n in far)


def test_without_correction_the_behaviour_log_probs_change_nothing(
    built: Callable[..., PolicyTrainer], make_row: MakeRow
) -> None:
    one = gradients(built(correction="none", max_grad_norm=1e9), rows_of(make_row, logprob=-4.0))
    two = gradients(built(correction="none", max_grad_norm=1e9), rows_of(make_row, logprob=-7.0))
    assert all(torch.equal(one[n], two[n]) for n in one)


def test_ppo_leaves_alone_what_moved_beyond_its_clip(built: Callable[..., PolicyTrainer], make_row: MakeRow) -> None:
    def largest(logprob: float, sign: float) -> float:
        rows = [replace(r, advantages=sign * np.abs(r.advantages)) for r in rows_of(make_row, logprob=logprob)]
        found = gradients(built(loss="ppo", clip=(0.8, 1.28), max_grad_norm=1e9), rows)
        return max(float(g.abs().max()) for g in found.values())

    # the fresh model gives each of these tokens about e^-4: π/μ is far above the clip, then far below it
    assert largest(-8.0, +1.0) == 0.0
    assert largest(-8.0, -1.0) > 0.0
    assert largest(-0.1, -1.0) == 0.0
    assert largest(-0.1, +1.0) > 0.0


def test_ppo_without_correction_is_reinforce(built: Callable[..., PolicyTrainer], make_row: MakeRow) -> None:
    rows = rows_of(make_row, logprob=-9.0)
    ppo = gradients(built(loss="ppo", clip=(0.8, 1.28), correction="none", max_grad_norm=1e9), rows)
    plain = gradients(built(loss="reinforce", correction="none", max_grad_norm=1e9), rows)
    assert all(torch.allclose(ppo[n], plain[n], atol=1e-7, rtol=1e-4) for n in plain)


def test_micro_batches_change_nothing(built: Callable[..., PolicyTrainer], make_row: MakeRow) -> None:
    whole = gradients(built(max_grad_norm=1e9), rows_of(make_row))
    cut = gradients(built(max_grad_norm=1e9, micro_batch_tokens=9), rows_of(make_row))
    for name, g in whole.items():
        assert torch.allclose(cut[name], g, atol=1e-7, rtol=1e-4), name


def test_rows_that_train_nothing_change_nothing(built: Callable[..., PolicyTrainer], make_row: MakeRow) -> None:
    rows = rows_of(make_row)
    idle = [replace(r, mask=np.zeros(len(r.mask), bool)) for r in rows[:2]]
    plain = gradients(built(max_grad_norm=1e9), rows)
    padded = gradients(built(max_grad_norm=1e9), rows + idle)
    for name, g in plain.items():
        assert torch.allclose(padded[name], g, atol=1e-7, rtol=1e-4), name


def test_mini_batches_make_one_optimiser_step_each(built: Callable[..., PolicyTrainer], make_row: MakeRow) -> None:
    trainer = built()
    trainer.step(mini_batches(rows_of(make_row), 3), seed=1)
    worker = trainer._worker  # pyright: ignore[reportPrivateUsage] reads Adam's counter
    assert {int(s["step"]) for s in worker.engine.optimizer.state.values()} == {3}


def test_a_gradient_that_is_not_finite_leaves_the_weights_as_they_are(
    built: Callable[..., PolicyTrainer], make_row: MakeRow
) -> None:
    trainer = built()
    before = trainer.weights()
    rows = rows_of(make_row)
    broken = replace(rows[0], logprobs=np.where(rows[0].mask, math.nan, 0.0))
    result = trainer.step([[broken, *rows[1:]]], seed=1)
    assert result.skipped
    assert not math.isfinite(result.grad_norm)
    assert all(torch.equal(before[n], w) for n, w in trainer.weights().items())
    assert not trainer.step([rows], seed=2).skipped
    assert any(not torch.equal(before[n], w) for n, w in trainer.weights().items())


def test_of_several_parts_one_without_a_finite_gradient_is_left_out_and_counted(
    built: Callable[..., PolicyTrainer], make_row: MakeRow
) -> None:
    trainer = built()
    before = trainer.weights()
    rows = rows_of(make_row)
    broken = replace(rows[0], logprobs=np.where(rows[0].mask, math.nan, 0.0))
    result = trainer.step([[broken], [rows[1]]], seed=1)
    assert (result.skipped, result.metrics["parts_skipped"]) == (False, 1.0)
    assert any(not torch.equal(before[n], w) for n, w in trainer.weights().items())
    result = trainer.step([[broken], [broken]], seed=2)
    assert (result.skipped, result.metrics["parts_skipped"]) == (True, 2.0)


def test_a_resumed_trainer_goes_on_bit_for_bit(
    built: Callable[..., PolicyTrainer], make_row: MakeRow, tmp_path: Path
) -> None:
    first = built()
    rows = rows_of(make_row)
    first.step([rows], seed=1)
    first.save(tmp_path / "saved")
    first.step([rows], seed=2)
    second = built(seed=9)
    second.load(tmp_path / "saved")
    second.step([rows], seed=2)
    wanted = first.weights()
    assert all(torch.equal(wanted[n], w) for n, w in second.weights().items())
