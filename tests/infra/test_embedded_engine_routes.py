"""The engine's OpenAI routes, as the gateway uses them."""

from __future__ import annotations

from typing import Any

import httpx
import pytest
from engine_rig import MAX_LEN, USER, Json, chat, chat_stream, joined, whole


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
