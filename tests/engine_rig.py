"""What tests of the embedded engine ask it over HTTP, and how a stream and a whole answer compare."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import httpx

USER = [{"role": "user", "content": "get 7?"}]
MAX_LEN = 64
Json = dict[str, Any]


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
