"""The embedded engine's network: what it draws, its log-probs, and the weights it takes."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any, cast

import httpx
import pytest
import torch
from engine_rig import USER, Json, chat, reload, whole
from safetensors.torch import load_file, save_file  # pyright: ignore[reportUnknownVariableType] its stubs are loose

from spanloop.infra.engine_process import EngineProcess
from spanloop.trainer.tiny import make_policy


def test_a_seed_gives_the_same_tokens_again_and_another_seed_others(http: httpx.Client) -> None:
    first, again, other = (chat(http, seed=seed, max_tokens=30, ignore_eos=True) for seed in (1, 1, 2))
    assert first["choices"][0]["token_ids"] == again["choices"][0]["token_ids"]
    assert first["choices"][0]["token_ids"] != other["choices"][0]["token_ids"]


def test_choices_of_one_request_are_different_samples(http: httpx.Client) -> None:
    answer = chat(http, n=4, seed=3, max_tokens=20, ignore_eos=True)
    assert [c["index"] for c in answer["choices"]] == [0, 1, 2, 3]
    assert len({tuple(c["token_ids"]) for c in answer["choices"]}) == 4
    assert answer["usage"] == {"prompt_tokens": 6, "completion_tokens": 80, "total_tokens": 86}


def test_temperature_zero_takes_the_likeliest_token(http: httpx.Client) -> None:
    choice = chat(http, temperature=0, top_logprobs=1, max_tokens=5, ignore_eos=True)["choices"][0]
    assert all(entry["token"] == entry["top_logprobs"][0]["token"] for entry in choice["logprobs"]["content"])


def test_top_k_one_leaves_a_certain_token(http: httpx.Client) -> None:
    choice = chat(http, temperature=2.0, top_k=1, ignore_eos=True)["choices"][0]
    greedy = chat(http, temperature=0, ignore_eos=True)["choices"][0]
    assert choice["token_ids"] == greedy["token_ids"]
    assert [e["logprob"] for e in choice["logprobs"]["content"]] == [0.0] * 8


def test_top_p_leaves_the_fewest_tokens_that_reach_it(http: httpx.Client) -> None:
    def top(**fields: Any) -> list[float]:
        content = chat(http, max_tokens=1, top_logprobs=20, **fields)["choices"][0]["logprobs"]["content"]
        return [math.exp(entry["logprob"]) for entry in content[0]["top_logprobs"]]

    first, second, *_ = top()
    both = first + second
    assert top(top_p=first + second / 2) == pytest.approx([first / both, second / both], rel=1e-4)


def test_raw_logprobs_are_of_the_unscaled_distribution(model: Path, http: httpx.Client) -> None:
    with EngineProcess(model, raw_logprobs=True) as raw, httpx.Client(base_url=raw.url, timeout=60) as client:
        cards = client.get("/v1/models").json()["data"]
        assert cards[0]["logprobs_mode"] == "raw_logprobs"
        choice = chat(client, temperature=2.0, seed=1)["choices"][0]
    prompt = chat(http)["prompt_token_ids"]
    body = {"prompt": prompt + choice["token_ids"], "max_tokens": 0, "prompt_logprobs": 0}
    scored = http.post("/v1/completions", json=body).json()["choices"][0]["prompt_logprobs"][len(prompt) :]
    expected = [next(iter(cast("dict[str, Json]", entry).values()))["logprob"] for entry in scored]
    assert [e["logprob"] for e in choice["logprobs"]["content"]] == pytest.approx(expected, abs=1e-4)


def _changed(model: Path, folder: Path, change: str) -> Path:
    weights = load_file(model / "model.safetensors")
    first = "lm_head.weight"
    if change == "name":
        weights["lm_head.other"] = weights.pop(first)
    elif change == "shape":
        # the last tensor in the file is the wrong one, so that a loader which copies as it reads is caught
        weights = {name: tensor + 1 for name, tensor in weights.items()}
        last = max(weights)
        weights[last] = torch.zeros(3, 3)
    folder.mkdir()
    save_file(weights, folder / "model.safetensors")
    if change == "garbage":
        (folder / "model.safetensors").write_bytes(b"no safetensors")
    return folder


@pytest.mark.parametrize("change", ["name", "shape", "garbage", "missing", "relative"])
def test_bad_weights_are_refused_and_the_old_ones_go_on_serving(
    http: httpx.Client, model: Path, tmp_path: Path, change: str
) -> None:
    before = whole(chat(http, seed=1)["choices"][0])
    if change == "missing":
        folder: Path | str = tmp_path / "nowhere"
    elif change == "relative":
        folder = "policy"
    else:
        folder = _changed(model, tmp_path / "bad", change)
    answer = reload(http, folder)
    assert answer.status_code == 500
    assert "old weights go on serving" in answer.json()["error"]["message"]
    assert whole(chat(http, seed=1)["choices"][0]) == before


def test_weights_that_give_no_distribution_fail_the_request_not_the_engine(
    http: httpx.Client, model: Path, tmp_path: Path
) -> None:
    weights = {name: tensor * float("nan") for name, tensor in load_file(model / "model.safetensors").items()}
    save_file(weights, tmp_path / "model.safetensors")
    assert reload(http, tmp_path).status_code == 200
    assert http.post("/v1/chat/completions", json={"messages": USER}).status_code == 500
    assert reload(http, model).status_code == 200
    assert chat(http)["choices"][0]["token_ids"]


def test_a_frozen_engine_takes_new_versions_and_keeps_its_weights(model: Path, tmp_path: Path) -> None:
    make_policy(tmp_path, 1)
    with EngineProcess(model, frozen=True) as frozen, httpx.Client(base_url=frozen.url, timeout=60) as client:
        before = whole(chat(client, seed=1)["choices"][0])
        assert reload(client, tmp_path).status_code == 200
        client.post("/update_weight_version", json={"new_version": "2"})
        after = whole(chat(client, seed=1)["choices"][0])
    assert after.pop("versions") == [{"version": "2", "start": 0, "end": len(after["ids"])}]
    before.pop("versions")
    assert after == before
