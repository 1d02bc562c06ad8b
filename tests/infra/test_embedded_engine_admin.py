"""The engine's admin routes, as the loader uses them."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise

import httpx
from engine_rig import USER, chat


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
        next(line for line in lines if '"delta":{"content":' in line)  # the roles come before anything runs
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
