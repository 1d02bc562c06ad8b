"""The engine's log-probs are those of the weights it says it serves: the oracle that everything off-policy rests on."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from pathlib import Path
from typing import Any

import httpx
import pytest
import torch
from transformers import AutoModelForCausalLM

from spanloop.infra.engine_process import EngineProcess
from spanloop.trainer.tiny import make_policy

TOLERANCE = 1e-4
Json = dict[str, Any]


@pytest.fixture(scope="module")
def versions(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Two policies that differ in every weight."""
    folders = [tmp_path_factory.mktemp(f"v{seed}") for seed in (0, 1)]
    for seed, folder in enumerate(folders):
        make_policy(folder, seed)
    return folders


@pytest.fixture(scope="module")
def engine(versions: list[Path]) -> Iterator[EngineProcess]:
    with EngineProcess(versions[0]) as running:
        yield running


@pytest.fixture
def http(engine: EngineProcess, versions: list[Path]) -> Iterator[httpx.Client]:
    """A client of the engine with version 1's weights, stamped 1."""
    with httpx.Client(base_url=engine.url, timeout=60) as client:
        serve(client, versions[0], "1")
        yield client


def serve(client: httpx.Client, folder: Path, version: str) -> None:
    """The loader's order of things."""
    body = {"method": "reload_weights", "kwargs": {"weights_path": str(folder)}}
    for path, content in (
        ("/pause?mode=wait", {}),
        ("/collective_rpc", body),
        ("/reset_prefix_cache", {}),
        ("/update_weight_version", {"new_version": version}),
        ("/resume", {}),
    ):
        client.post(path, json=content).raise_for_status()


@cache
def network(folder: Path) -> Any:
    return AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)  # pyright: ignore[reportUnknownMemberType] transformers' stubs


def reference(folder: Path, prompt: Sequence[int], response: Sequence[int], temperature: float) -> list[float]:
    """log softmax(logits / T) of plain transformers, one sequence, no cache, no padding."""
    model = network(folder)
    ids = torch.tensor([[*prompt, *response]])
    with torch.no_grad():
        logits: torch.Tensor = model(input_ids=ids).logits[0, len(prompt) - 1 : -1]
    chosen = torch.log_softmax(logits / temperature, -1).gather(1, torch.tensor(response)[:, None])
    return [float(x) for x in chosen[:, 0]]


def body(text: str, **fields: Any) -> Json:
    messages = [{"role": "user", "content": text}]
    return {"messages": messages, "logprobs": True, "return_token_ids": True, "max_tokens": 12, **fields}


def ask(client: httpx.Client, text: str, **fields: Any) -> tuple[list[int], list[int], list[float], Json]:
    """(prompt ids, response ids, log-probs, the choice's last part), streamed or not."""
    request = body(text, **fields)
    if not fields.get("stream"):
        answer = client.post("/v1/chat/completions", json=request).raise_for_status().json()
        parts, prompt = answer["choices"], answer["prompt_token_ids"]
    else:
        with client.stream("POST", "/v1/chat/completions", json=request) as streamed:
            lines = [line.removeprefix("data: ") for line in streamed.iter_lines() if line.startswith("data: {")]
        chunks = [json.loads(line) for line in lines]
        parts, prompt = [c for chunk in chunks for c in chunk["choices"]], chunks[0]["prompt_token_ids"]
    ids = [i for part in parts for i in part.get("token_ids", [])]
    logprobs = [e["logprob"] for part in parts if part["logprobs"] for e in part["logprobs"]["content"]]
    return prompt, ids, logprobs, parts[-1]


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("temperature", [1.0, 0.6, 1.7])
def test_logprobs_are_those_of_the_distribution_drawn_from(
    http: httpx.Client, versions: list[Path], temperature: float, stream: bool
) -> None:
    prompt, ids, logprobs, _ = ask(http, "get 7?", temperature=temperature, stream=stream)
    assert len(ids) == len(logprobs) > 0
    assert logprobs == pytest.approx(reference(versions[0], prompt, ids, temperature), abs=TOLERANCE)


def test_a_batch_of_other_lengths_and_temperatures_changes_no_logprob(http: httpx.Client, versions: list[Path]) -> None:
    def one(i: int) -> tuple[float, tuple[list[int], list[int], list[float], Json]]:
        temperature = (1.0, 0.5, 2.0)[i % 3]
        text = "get 7? " * (1 + i % 7)
        fields: Json = {"max_tokens": 5 + 9 * (i % 5), "ignore_eos": True, "stream": i % 2 == 1}
        return temperature, ask(http, text, temperature=temperature, **fields)

    with ThreadPoolExecutor(24) as pool:
        answers = list(pool.map(one, range(48)))
    assert len({len(prompt) for _, (prompt, _, _, _) in answers}) == 7
    for temperature, (prompt, ids, logprobs, _) in answers:
        assert logprobs == pytest.approx(reference(versions[0], prompt, ids, temperature), abs=TOLERANCE)


def test_sampled_frequencies_are_the_probabilities(http: httpx.Client, versions: list[Path]) -> None:
    draws = 4000
    answers = [
        http.post("/v1/chat/completions", json=body("7", max_tokens=1, n=100, temperature=0.3, seed=i)).json()
        for i in range(draws // 100)
    ]
    ids = [c["token_ids"][0] for answer in answers for c in answer["choices"]]
    prompt = answers[0]["prompt_token_ids"]
    for token in sorted(set(ids), key=ids.count)[-5:]:
        expected = float(torch.tensor(reference(versions[0], prompt, [token], 0.3)).exp())
        spread = (expected * (1 - expected) / draws) ** 0.5
        assert abs(ids.count(token) / draws - expected) < 5 * spread  # one run in a million, and the seeds are fixed


def test_after_a_reload_the_logprobs_are_the_new_weights(http: httpx.Client, versions: list[Path]) -> None:
    serve(http, versions[1], "2")
    prompt, ids, logprobs, last = ask(http, "get 3?", ignore_eos=True)
    assert logprobs == pytest.approx(reference(versions[1], prompt, ids, 1.0), abs=TOLERANCE)
    old = reference(versions[0], prompt, ids, 1.0)
    assert max(abs(a - b) for a, b in zip(logprobs, old, strict=True)) > 100 * TOLERANCE
    assert last["weight_versions"] == [{"version": "2", "start": 0, "end": 12}]


def test_answers_around_a_reload_name_the_weights_that_drew_them(http: httpx.Client, versions: list[Path]) -> None:
    """Calls keep coming while version 2 is loaded: each is wholly of one version, and of the one it names."""

    def one(i: int) -> tuple[list[int], list[int], list[float], Json]:
        if i == 40:
            serve(http, versions[1], "2")
        return ask(http, "get 5?", ignore_eos=True, stream=i % 2 == 0, seed=i)

    with ThreadPoolExecutor(8) as pool:
        answers = list(pool.map(one, range(80)))
    seen: set[str] = set()
    for prompt, ids, logprobs, last in answers:
        (run,) = last["weight_versions"]
        assert (run["start"], run["end"]) == (0, len(ids))
        seen.add(run["version"])
        assert logprobs == pytest.approx(reference(versions[int(run["version"]) - 1], prompt, ids, 1.0), abs=TOLERANCE)
    assert seen == {"1", "2"}
