"""What is read from a request, and what is added to it."""

from __future__ import annotations

import json
from typing import Any

import pytest

from spanloop.producers.gateway_errors import Refused
from spanloop.producers.gateway_json import dumps, loads, number
from spanloop.producers.gateway_policy import GatewayPolicy
from spanloop.producers.gateway_request import Prepared, prepare
from spanloop.schemas.spans import Sampling

USER = {"role": "user", "content": "hi"}


def prepared(policy: GatewayPolicy | None = None, **request: object) -> Prepared:
    return prepare(json.dumps({"messages": [USER], **request}).encode(), policy or GatewayPolicy())


def test_sampling_is_what_the_request_says_and_null_where_it_is_silent() -> None:
    assert prepared().sampling == Sampling()
    full = prepared(temperature=1, top_p=0.9, top_k=5, min_p=0.1, seed=4, max_tokens=7)
    assert full.sampling == Sampling(1.0, 0.9, 5, 0.1, seed=4, max_tokens=7)
    assert prepared(max_tokens=7, max_completion_tokens=8).sampling.max_tokens == 8


@pytest.mark.parametrize(
    ("fields", "penalised"),
    [
        ({"frequency_penalty": 0, "presence_penalty": 0.0, "repetition_penalty": 1}, False),
        ({"frequency_penalty": 0.1}, True),
        ({"presence_penalty": -1}, True),
        ({"repetition_penalty": 1.1}, True),
        ({"logit_bias": {"5": 1}}, True),
        ({"logit_bias": {}}, False),
        ({"allowed_token_ids": [1, 2]}, True),
        ({"bad_words": ["x"]}, True),
        ({"bad_words": [], "min_tokens": 0, "allowed_token_ids": None}, False),
        ({"min_tokens": 5}, True),
        ({"thinking_token_budget": 5}, True),
    ],
)
def test_penalties_are_noticed(fields: dict[str, Any], penalised: bool) -> None:
    assert prepared(**fields).sampling.penalties is penalised


@pytest.mark.parametrize(
    ("fields", "constrained"),
    [
        ({}, False),
        ({"tool_choice": "auto"}, False),
        ({"tool_choice": "none"}, False),
        ({"tool_choice": "required"}, True),
        ({"tool_choice": {"type": "function", "function": {"name": "f"}}}, True),
        ({"tool_choice": {"type": "allowed_tools", "allowed_tools": {"mode": "auto", "tools": []}}}, False),
        ({"tool_choice": {"type": "allowed_tools", "allowed_tools": {"mode": "required", "tools": []}}}, True),
        ({"tool_choice": {"type": "allowed_tools", "mode": "auto", "tools": []}}, False),
        ({"response_format": {"type": "text"}}, False),
        ({"response_format": {"type": "json_object"}}, True),
        ({"structured_outputs": {"regex": "a"}}, True),
        ({"guided_json": {}}, True),
    ],
)
def test_grammars_and_forced_tools_are_noticed(fields: dict[str, Any], constrained: bool) -> None:
    assert prepared(**fields).constrained is constrained


CONTENTS: list[tuple[Any, bool]] = [
    ("text", False),
    ([{"type": "text", "text": "hi"}], False),
    ([{"type": "text", "text": "hi"}, {"type": "image_url", "image_url": {"url": "data:"}}], True),
    ([{"type": "input_audio", "input_audio": {"data": ""}}], True),
    ([{"type": "video_url", "video_url": {"url": "data:"}}], True),
    ([{"type": "file", "file": {"file_id": "f"}}], True),
    ([{"image_url": {"url": "data:"}}], True),
    ([{"type": "text", "text": "hi", "uuid": "u", "image_url": {"url": "data:"}}], True),
    ([{"type": "tool_result", "content": [{"type": "text"}, {"type": "image_url", "image_url": {}}]}], True),
    ([{"type": "tool_result", "content": [{"type": "text", "text": "hi"}]}], False),
    ([{"type": "tool_result", "content": "hi"}, "hi", {"text": "hi"}, {"type": "refusal", "refusal": "no"}], False),
    ([{"type": "input_text", "text": "hi"}, {"type": "output_text", "text": "hi"}], False),
    ([{"type": "thinking", "thinking": "hm"}, {"type": "reasoning", "reasoning": "hm"}], False),
    ([{"type": ["text"]}], True),
]


@pytest.mark.parametrize(("content", "multimodal"), CONTENTS)
def test_images_and_audio_are_noticed(content: Any, multimodal: bool) -> None:
    assert prepared(messages=[{"role": "user", "content": content}]).multimodal is multimodal


def test_what_is_asked_for_can_be_turned_off_for_providers_that_refuse_it() -> None:
    off = GatewayPolicy(ask_logprobs=False, ask_token_ids=False, ask_usage=False)
    request = {"messages": [USER], "stream": True}
    found = prepare(json.dumps(request).encode(), off)
    assert json.loads(found.body) == request
    assert found.wants_usage


def test_the_agents_own_fields_survive_what_is_added() -> None:
    sent = json.loads(prepared(stream=True, stream_options={"x": 1}, top_logprobs=5, logprobs=True, unknown=[1]).body)
    assert sent["stream_options"] == {"x": 1, "include_usage": True}
    assert (sent["top_logprobs"], sent["unknown"], sent["logprobs"]) == (5, [1], True)


def test_equal_requests_have_equal_digests_and_others_do_not() -> None:
    assert prepared(seed=1).digest == prepared(seed=1).digest != prepared(seed=2).digest


def test_text_that_is_no_unicode_survives() -> None:
    body = b'{"messages":[{"role":"user","content":"\\ud800"}]}'
    assert json.loads(prepare(body, GatewayPolicy()).recorded)["messages"][0]["content"] == "\ud800"


@pytest.mark.parametrize("seed", [2**63, -(2**63) - 1, 2**64, 2**64 + 1, 10**400])
def test_integers_past_64_bits_reach_the_engine_exactly_and_the_record_as_unknown(seed: int) -> None:
    found = prepared(seed=seed, top_k=2**31, max_tokens=2**31, temperature=seed, tools=[{"maximum": seed}])
    for sent in (json.loads(found.body), json.loads(found.recorded)):
        assert (sent["seed"], sent["temperature"], sent["tools"]) == (seed, seed, [{"maximum": seed}])
    sampling = found.sampling
    assert (sampling.seed, sampling.top_k, sampling.max_tokens) == (None, None, None)
    assert sampling.temperature == (None if seed == 10**400 else float(seed))


@pytest.mark.parametrize("depth", [300, 1000, 5000])
def test_a_body_nested_too_deep_is_refused(depth: int) -> None:
    nested = b"[" * depth + b"]" * depth
    with pytest.raises(Refused, match="more than 250 levels"):
        prepare(b'{"messages":[{"role":"user","content":"\\ud800"}],"x":' + nested + b"}", GatewayPolicy())
    with pytest.raises(Refused, match="more than 250 levels"):
        prepare(b'{"messages":[{"role":"user","content":"hi"}],"x":' + nested + b"}", GatewayPolicy())


def test_many_brackets_side_by_side_are_no_depth() -> None:
    assert prepared(x=[[0]] * 1000, text="[" * 1000, odd="\ud800").choices == 1


def test_json_is_strict_whatever_else_is_in_it() -> None:
    odd = loads(b'{"a":NaN,"b":"\\ud800","c":[1e400,-Infinity],"d":18446744073709551616}')
    assert json.loads(dumps(odd)) == {"a": None, "b": "\ud800", "c": [None, None], "d": 2**64}
    assert number(10**400) is None


def test_a_request_that_no_record_could_hold_is_refused_in_time() -> None:
    content = "x" * (8 << 20)
    assert prepared(messages=[{"role": "user", "content": content}]).choices == 1
    with pytest.raises(Refused, match=r"the request takes 8388.* with n=2 is recorded up to 7864320"):
        prepared(messages=[{"role": "user", "content": content}], n=2)


def test_a_model_name_that_is_no_unicode_can_be_recorded() -> None:
    assert prepared(model="a\ud800").model == "a\ufffd"
