"""The embedded engine through its HTTP interface, as the gateway and the loader use it."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from pathlib import Path
from typing import Any, cast

import httpx
import pytest
import torch
from safetensors.torch import load_file, save_file  # pyright: ignore[reportUnknownVariableType] its stubs are loose

from spanloop.infra.engine_process import EngineProcess
from spanloop.schemas.errors import Unavailable
from spanloop.trainer.tiny import make_policy

USER = [{"role": "user", "content": "get 7?"}]
MAX_LEN = 64
Json = dict[str, Any]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("policy")
    make_policy(folder, 0)
    return folder


@pytest.fixture(scope="module")
def engine(model: Path) -> Iterator[EngineProcess]:
    with EngineProcess(model, max_model_len=MAX_LEN) as running:
        yield running


@pytest.fixture
def http(engine: EngineProcess, model: Path) -> Iterator[httpx.Client]:
    """A client; afterwards the engine runs and has its first weights again."""
    with httpx.Client(base_url=engine.url, timeout=60) as client:
        yield client
        reload(client, model)
        client.post("/update_weight_version", json={"new_version": "default"})
        client.post("/resume")


def reload(client: httpx.Client, folder: Path | str) -> httpx.Response:
    body = {"method": "reload_weights", "kwargs": {"weights_path": str(folder)}}
    return client.post("/collective_rpc", json=body)


def chat(client: httpx.Client, **fields: Any) -> Json:
    body = {"messages": USER, "max_tokens": 8, "logprobs": True, "return_token_ids": True, **fields}
    answer = client.post("/v1/chat/completions", json=body)
    assert answer.status_code == 200, answer.text
    return answer.json()


def chat_stream(client: httpx.Client, **fields: Any) -> list[Json]:
    body = {"messages": USER, "max_tokens": 8, "logprobs": True, "return_token_ids": True, **fields, "stream": True}
    with client.stream("POST", "/v1/chat/completions", json=body) as answer:
        assert answer.headers["content-type"].startswith("text/event-stream")
        lines = [line.removeprefix("data: ") for line in answer.iter_lines() if line]
    assert lines[-1] == "[DONE]"
    return [json.loads(line) for line in lines[:-1]]


def joined(chunks: list[Json], index: int) -> Json:
    """What a stream adds up to, in the form of a choice."""
    parts = [c for chunk in chunks for c in chunk["choices"] if c["index"] == index]
    return {
        "text": "".join(p["delta"].get("content") or "" for p in parts),
        "ids": [i for p in parts for i in p.get("token_ids", [])],
        "logprobs": [e["logprob"] for p in parts if p["logprobs"] for e in p["logprobs"]["content"]],
        "finish": [p["finish_reason"] for p in parts if p["finish_reason"]],
        "versions": parts[-1]["weight_versions"],
    }


def whole(choice: Json) -> Json:
    return {
        "text": choice["message"]["content"],
        "ids": choice["token_ids"],
        "logprobs": [e["logprob"] for e in choice["logprobs"]["content"]],
        "finish": [choice["finish_reason"]],
        "versions": choice["weight_versions"],
    }


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


@pytest.mark.parametrize(
    "fields", [{"seed": 5}, {"seed": 6, "n": 2}, {"seed": 7, "max_tokens": 40, "ignore_eos": True, "stop": ["a", "12"]}]
)
def test_a_stream_adds_up_to_the_whole_answer(http: httpx.Client, fields: Json) -> None:
    answer, chunks = chat(http, **fields), chat_stream(http, **fields)
    for choice in answer["choices"]:
        streamed, expected = joined(chunks, choice["index"]), whole(choice)
        assert streamed.pop("logprobs") == pytest.approx(expected.pop("logprobs"), abs=1e-5)
        assert streamed == expected
    assert chunks[0]["prompt_token_ids"] == answer["prompt_token_ids"]
    assert all("prompt_token_ids" not in chunk for chunk in chunks[1:])


def test_a_stream_brings_usage_when_asked(http: httpx.Client) -> None:
    assert all("usage" not in chunk for chunk in chat_stream(http, seed=1))
    last = chat_stream(http, seed=1, stream_options={"include_usage": True})[-1]
    assert last["choices"] == []
    assert last["usage"] == chat(http, seed=1)["usage"]


def test_a_stop_string_ends_the_text_but_its_tokens_are_reported(http: httpx.Client) -> None:
    free = chat(http, seed=9, max_tokens=20, ignore_eos=True)["choices"][0]
    text = free["message"]["content"]
    stop = text[4:6]
    choice = chat(http, seed=9, max_tokens=20, ignore_eos=True, stop=stop)["choices"][0]
    assert choice["message"]["content"] == text[: text.index(stop)]
    assert choice["finish_reason"] == "stop"
    assert choice["stop_reason"] == stop
    assert choice["token_ids"] == free["token_ids"][: len(choice["token_ids"])]
    assert len(choice["token_ids"]) >= text.index(stop) + 2


def test_ids_and_logprobs_come_only_when_asked_for(http: httpx.Client) -> None:
    answer = chat(http, logprobs=False, return_token_ids=False)
    assert "prompt_token_ids" not in answer
    assert "token_ids" not in answer["choices"][0]
    assert answer["choices"][0]["logprobs"] is None
    assert answer["choices"][0]["weight_versions"][0]["version"] == "default"


def test_too_long_a_request_is_refused_in_vllms_words(http: httpx.Client) -> None:
    answer = http.post("/v1/chat/completions", json={"messages": USER, "max_tokens": 64})
    assert answer.status_code == 400
    assert answer.json()["error"] == {
        "message": "This model's maximum context length is 64 tokens. However, you requested 70 tokens (6 in the "
        "messages, 64 in the completion). Please reduce the length of the messages or completion.",
        "type": "BadRequestError",
        "param": None,
        "code": 400,
    }


def test_without_max_tokens_the_answer_may_fill_the_context(http: httpx.Client) -> None:
    choice = chat(http, max_tokens=None, ignore_eos=True)["choices"][0]
    assert (len(choice["token_ids"]), choice["finish_reason"]) == (MAX_LEN - 6, "length")


def test_empty_and_missing_tool_calls_render_alike(http: httpx.Client) -> None:  # GW-5
    def prompt(**fields: Any) -> list[int]:
        history = [*USER, {"role": "assistant", "content": "7", **fields}, {"role": "tool", "content": " 2!"}]
        return chat(http, messages=history)["prompt_token_ids"]

    assert prompt(tool_calls=[]) == prompt() == prompt(tool_calls=None)
    assert prompt(content=None) == prompt(content="")


def test_text_parts_are_joined_and_images_refused(http: httpx.Client) -> None:
    parts = [{"role": "user", "content": [{"type": "text", "text": "get 7?"}]}]
    assert chat(http, messages=parts)["prompt_token_ids"] == chat(http)["prompt_token_ids"]
    image = [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}]
    assert http.post("/v1/chat/completions", json={"messages": image}).status_code == 400


@pytest.mark.parametrize(
    ("fields", "status", "word"),
    [
        ({"min_p": 0.1}, 400, "min_p"),
        ({"presence_penalty": 1}, 400, "presence_penalty"),
        ({"temperature": -1}, 400, "temperature"),
        ({"tool_choice": "required"}, 400, "tool calls"),
        ({"messages": []}, 400, "messages"),
        ({"model": "other"}, 404, "other"),
    ],
)
def test_what_is_not_served_is_refused(http: httpx.Client, fields: Json, status: int, word: str) -> None:
    answer = http.post("/v1/chat/completions", json={"messages": USER, **fields})
    assert answer.status_code == status
    assert word in answer.json()["error"]["message"]


def test_pause_drains_what_runs_and_queues_what_comes(http: httpx.Client) -> None:
    with ThreadPoolExecutor(2) as pool:
        body = {"messages": USER, "max_tokens": 50, "ignore_eos": True, "stream": True, "return_token_ids": True}
        with http.stream("POST", "/v1/chat/completions", json=body) as running:
            lines = running.iter_lines()
            next(lines)  # it runs
            assert http.post("/pause?mode=wait").json() == {"status": "paused"}
            rest = [json.loads(line.removeprefix("data: ")) for line in lines if line.startswith("data: {")]
        assert sum(len(c["choices"][0].get("token_ids", [])) for c in rest) == 50
        assert http.get("/is_paused").json() == {"is_paused": True}
        queued = pool.submit(chat, http)
        http.post("/update_weight_version", json={"new_version": "8"})
        http.post("/resume")
        versions = {v["version"] for v in queued.result(60)["choices"][0]["weight_versions"]}
        # it may have come before or after the resume, never before the stamp that follows the drain
        assert versions == {"8"}


def test_pause_keep_shows_both_versions_in_one_answer(http: httpx.Client) -> None:
    body = {"messages": USER, "max_tokens": 58, "ignore_eos": True, "stream": True, "return_token_ids": True}
    with http.stream("POST", "/v1/chat/completions", json=body) as running:
        lines = running.iter_lines()
        next(line for line in lines if '"token_ids"' in line and '"content":""' not in line)
        http.post("/pause?mode=keep")
        http.post("/update_weight_version", json={"new_version": "9"})
        http.post("/resume")
        chunks = [json.loads(line.removeprefix("data: ")) for line in lines if line.startswith("data: {")]
    runs = chunks[-1]["choices"][0]["weight_versions"]
    assert runs[0]["start"] == 0
    assert runs[-1]["end"] == 58
    assert [r["version"] for r in runs] in (["default", "9"], ["default"])  # it may have ended before the pause
    assert all(a["end"] == b["start"] for a, b in pairwise(runs))


def test_pause_abort_cuts_answers_off(http: httpx.Client) -> None:
    body = {"messages": USER, "max_tokens": 58, "ignore_eos": True, "stream": True, "n": 64}
    with http.stream("POST", "/v1/chat/completions", json=body) as running:
        lines = running.iter_lines()
        next(lines)
        http.post("/pause?mode=abort")
        ends = [line for line in lines if '"finish_reason":"' in line]
    assert len(ends) == 64
    assert all('"finish_reason":"abort"' in line or '"finish_reason":"length"' in line for line in ends)


def test_scoring_is_answered_while_paused(http: httpx.Client) -> None:
    http.post("/pause?mode=wait")
    body = {"prompt": [4, 5, 6, 7], "max_tokens": 0, "echo": True, "prompt_logprobs": 0}
    scored = http.post("/v1/completions", json=body).json()["choices"][0]["prompt_logprobs"]
    assert scored[0] is None
    assert [list(entry) for entry in scored[1:]] == [["5"], ["6"], ["7"]]


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


def test_an_engine_that_cannot_start_says_why(tmp_path: Path) -> None:
    with pytest.raises(Unavailable, match=r"config\.json|model_type|not a valid"):
        EngineProcess(tmp_path)
