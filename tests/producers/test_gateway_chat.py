"""Whole answers: what the agent gets, what the engine is asked, what is recorded."""

from __future__ import annotations

import json
from typing import Any

import httpx
import pytest
from gateway_rig import MakeRig, answer, choice
from openai import APIStatusError
from waiting import until

from spanloop.infra.scripted_engine import Whole
from spanloop.schemas.packed import unpack_ids, unpack_logprobs
from spanloop.schemas.spans import Usage, VersionRun

NAN, INF = float("nan"), float("inf")
TOOL_CALL = {"id": "c1", "type": "function", "function": {"name": "f", "arguments": '{"a":1}'}}


def strictly(response: httpx.Response) -> dict[str, Any]:
    def refuse(name: str) -> float:
        raise ValueError(f"{name} is no JSON")

    return json.loads(response.content, parse_constant=refuse)


def test_each_call_is_counted_and_timed_once_with_what_became_of_it(rig: MakeRig) -> None:
    r = rig(answer(choice([10])), Whole({"error": {"message": "no"}}, status=400))
    assert [r.post().status_code, r.post().status_code] == [200, 400]
    until(lambda: len(r.meter.added) == 4)
    labels = [{"policy": "policy", "outcome": outcome} for outcome in ("delivered", "failed")]
    assert [(n, told) for n, _, told in r.meter.added] == [
        (name, told) for told in labels for name in ("spanloop.gateway.calls", "spanloop.gateway.duration")
    ]


def test_the_agent_gets_what_it_would_get_without_us_and_the_record_gets_the_rest(rig: MakeRig) -> None:
    versions = [{"version": "3", "start": 0, "end": 2}]
    r = rig(
        answer({**choice([10, 11]), "weight_versions": versions}, usage={"prompt_tokens": 3, "completion_tokens": 2})
    )
    got = r.post(temperature=0.7, max_tokens=9)
    body = got.json()
    assert body["choices"] == [
        {"index": 0, "message": {"role": "assistant", "content": "hello"}, "finish_reason": "stop", "logprobs": None}
    ]
    assert "prompt_token_ids" not in body
    assert body["usage"] == {"prompt_tokens": 3, "completion_tokens": 2}
    assert r.engine.requests[0]["logprobs"] is True
    assert r.engine.requests[0]["return_token_ids"] is True
    assert "stream_options" not in r.engine.requests[0]
    (span,) = r.broker.spans()
    call = r.broker.calls()[0]
    assert (span.name, span.kind, span.status) == ("chat policy", "client", "ok")
    assert got.headers["x-spanloop-span-id"] == span.span_id
    assert got.headers["x-spanloop-policy-version"] == "3"
    assert unpack_ids(call.prompt_ids or b"") == [1, 2, 3]
    assert unpack_ids(call.response_ids or b"") == [10, 11]
    assert unpack_logprobs(call.logprobs or b"") == [-0.5, -0.5]
    assert (call.policy, call.policy_versions) == ("policy", [VersionRun(3, 0, 2)])
    assert call.usage == Usage(input=3, output=2)
    assert (call.sampling.temperature, call.sampling.max_tokens, call.sampling.top_p) == (0.7, 9, None)
    assert (call.tries, call.delivered, call.truncated, call.client_retry, call.flags) == (1, True, False, False, [])
    stored = json.loads(call.response or "")
    assert stored["choices"][0] == {
        "index": 0,
        "message": {"role": "assistant", "content": "hello"},
        "finish_reason": "stop",
    }
    assert "prompt_token_ids" not in stored
    assert json.loads(call.request) == {
        "model": "policy",
        "messages": [{"role": "user", "content": "hi"}],
        "temperature": 0.7,
        "max_tokens": 9,
    }


def test_what_the_agent_asked_for_itself_stays_in_the_answer(rig: MakeRig) -> None:
    r = rig(answer(choice([10])))
    body = r.post(logprobs=True, return_token_ids=True).json()
    assert body["prompt_token_ids"] == [1, 2, 3]
    assert body["choices"][0]["token_ids"] == [10]
    assert body["choices"][0]["logprobs"]["content"][0]["logprob"] == -0.5


def test_a_tool_call_without_content_keeps_its_null(rig: MakeRig) -> None:
    # GW-4
    r = rig(answer(choice(list(range(12)), content=None, tool_calls=[TOOL_CALL])))
    assert r.post().json()["choices"][0]["message"] == {
        "role": "assistant",
        "content": None,
        "tool_calls": [TOOL_CALL],
    }
    call = r.broker.calls()[0]
    assert len(unpack_ids(call.response_ids or b"")) == 12
    message = json.loads(call.response or "")["choices"][0]["message"]
    assert message == {"role": "assistant", "content": None, "tool_calls": [TOOL_CALL]}
    r.post(
        messages=[{"role": "user", "content": "hi"}, message, {"role": "tool", "tool_call_id": "c1", "content": "2"}]
    )
    assert r.engine.requests[1]["messages"][1] == message


def test_empty_and_missing_tool_calls_in_the_history_are_one_request(rig: MakeRig) -> None:
    # GW-5
    r = rig(answer(choice([1])))
    said: dict[str, object] = {"role": "assistant", "content": "a"}
    histories: list[dict[str, object]] = [said, {**said, "tool_calls": []}, {**said, "tool_calls": None}]
    for history in histories:
        r.post(messages=[{"role": "user", "content": "hi"}, history, {"role": "user", "content": "go on"}])
    first, second, third = r.engine.requests
    assert first == second == third
    assert len({call.request for call in r.broker.calls()}) == 1
    assert first["messages"][1] == said


def test_bad_logprobs_reach_the_agent_as_strict_json_and_the_record_as_missing(rig: MakeRig) -> None:
    # GW-7
    content = [{"token": "t", "logprob": value} for value in (-0.1, NAN, -INF, None)]
    r = rig(answer({**choice([1, 2, 3, 4]), "logprobs": {"content": content}}))
    for asked in ({}, {"logprobs": True}):
        got = r.post(**asked)
        assert got.status_code == 200
        strictly(got)
    for call in r.broker.calls():
        logprobs = unpack_logprobs(call.logprobs or b"")
        assert logprobs[0] == pytest.approx(-0.1)
        assert [x != x for x in logprobs] == [False, True, True, True]
        assert (call.nonfinite_logprobs, call.flags) == (3, ["nonfinite_logprobs"])


def test_a_503_is_tried_again_as_one_call(rig: MakeRig) -> None:
    # GW-9
    r = rig(Whole({"error": "loading"}, 503), answer(choice([1])), retry_pause_s=0.0)
    assert r.post().status_code == 200
    (call,) = r.broker.calls()
    assert call.tries == 2
    assert len(r.engine.requests) == 2


def test_a_503_that_stays_reaches_the_agent_as_it_is(rig: MakeRig) -> None:
    r = rig(Whole(b'{"error":{"message":"paused"}}', 503, {"retry-after": "7"}), retry_pause_s=0.0, max_tries=2)
    got = r.post()
    assert (got.status_code, got.content) == (503, b'{"error":{"message":"paused"}}')
    assert got.headers["retry-after"] == "7"
    assert r.broker.calls()[0].tries == 2


@pytest.mark.parametrize("status", [400, 429, 500, 502])
def test_no_other_refusal_is_tried_again(rig: MakeRig, status: int) -> None:
    r = rig(Whole({"error": {"message": "no"}}, status), retry_pause_s=0.0)
    assert r.post().status_code == status
    assert len(r.engine.requests) == 1


@pytest.mark.parametrize("status", [400, 413, 422])
def test_a_prompt_that_is_too_long_is_told_to_the_agent_and_never_trained(rig: MakeRig, status: int) -> None:
    # GW-10; whose other words are in test_outcome.py
    text = b'{"error":{"message":"maximum context length 4608, requested 6859","type":"BadRequestError","code":400}}'
    r = rig(Whole(text, status))
    got = r.post()
    assert (got.status_code, got.content) == (status, text)
    with pytest.raises(APIStatusError, match="maximum context length 4608"):
        r.openai().chat.completions.create(model="policy", messages=[{"role": "user", "content": "hi"}])
    assert len(r.engine.requests) == 2
    for span in r.broker.spans():
        assert (span.status, span.status_message) == ("error", "context_overflow")
        assert span.call is not None
        assert span.call.flags == ["context_overflow"]
        assert (span.call.response, span.call.response_ids, span.call.delivered) == (None, None, False)


def test_two_choices_are_two_spans_that_share_the_prompt(rig: MakeRig) -> None:
    # GW-11
    usage = {"prompt_tokens": 3, "completion_tokens": 3}
    r = rig(answer(choice([10, 11], content="a"), choice([20], index=1, content="b"), usage=usage))
    got = r.post(n=2)
    first, second = r.broker.spans()
    assert len(r.broker.batches()) == 1
    assert got.headers["x-spanloop-span-id"] == first.span_id != second.span_id
    assert (second.sequence, first.trace_id) == (first.sequence + 1, second.trace_id)
    a, b = r.broker.calls()
    assert (a.choice, b.choice, a.choices, b.choices) == (0, 1, 2, 2)
    assert a.prompt_ids == b.prompt_ids
    assert (unpack_ids(a.response_ids or b""), unpack_ids(b.response_ids or b"")) == ([10, 11], [20])
    assert (a.usage.output, b.usage.output) == (3, None)
    assert json.loads(b.response or "")["choices"][0]["message"]["content"] == "b"


def test_cached_tokens_are_part_of_the_input_not_on_top_of_it(rig: MakeRig) -> None:
    # GW-12
    usage = {"prompt_tokens": 17903, "completion_tokens": 1, "prompt_tokens_details": {"cached_tokens": 17817}}
    r = rig(answer(choice([1]), usage=usage))
    r.post()
    stored = r.broker.calls()[0].usage
    assert stored == Usage(input=17903, cached_input=17817, output=1)
    assert (stored.input or 0) - (stored.cached_input or 0) == 86


def test_an_empty_answer_and_an_answer_without_ids_are_told_apart(rig: MakeRig) -> None:
    # SP-19
    r = rig(answer(choice([]), usage={"completion_tokens": 0}), answer(choice(None)))
    r.post()
    r.post()
    empty, unknown = r.broker.calls()
    assert (empty.response_ids, empty.usage.output, empty.flags) == (b"", 0, ["empty"])
    assert (unknown.response_ids, unknown.flags) == (None, ["no_token_ids"])


def test_the_heartbeats_version_stands_in_where_the_engine_reports_none(rig: MakeRig) -> None:
    r = rig(answer(choice([1, 2])))
    r.post()
    assert r.broker.calls()[0].policy_versions == [VersionRun(3, 0, 2)]


def test_a_parent_comes_from_traceparent_and_a_malformed_one_is_none(rig: MakeRig) -> None:
    r = rig(answer(choice([1])))
    trace, parent = "a" * 32, "b" * 16
    request = {"model": "policy", "messages": [{"role": "user", "content": "hi"}]}
    r.http.post("/chat/completions", json=request, headers={"traceparent": f"00-{trace}-{parent}-01"})
    r.http.post("/chat/completions", json=request, headers={"traceparent": "00-xyz"})
    first, second = r.broker.spans()
    assert (first.trace_id, first.parent_span_id) == (trace, parent)
    assert (second.trace_id, second.parent_span_id) == ("2" * 32, None)


def test_an_answer_that_is_no_json_is_an_error_and_no_call(rig: MakeRig) -> None:
    r = rig(Whole(b"<html>"))
    got = r.post()
    assert (got.status_code, got.json()["error"]["code"]) == (502, "upstream_broken")
    assert [(s.status, c.response, c.delivered) for s, c in zip(r.broker.spans(), r.broker.calls(), strict=True)] == [
        ("error", None, False)
    ]
