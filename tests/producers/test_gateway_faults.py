"""What engines send that is no clean answer: errors in several shapes, ends that are missing, odd log-probs."""

from __future__ import annotations

import json
import math
import socket
import threading
from array import array
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from gateway_rig import USER, MakeRig, answer, choice
from waiting import until

from spanloop.infra.scripted_engine import Streamed, Whole
from spanloop.producers.gateway_answer import Choice
from spanloop.producers.gateway_errors import Refused, told
from spanloop.producers.gateway_stream import Hold, names_error
from spanloop.schemas.packed import unpack_logprobs

Json = dict[str, Any]

KEY = "sk-PROVIDER-SECRET"
OVERFLOW = "The input (6859 tokens) is longer than the model's context length (4608 tokens)."


def chunk(content: str, index: int = 0, finish_reason: str | None = None) -> Json:
    said = {"index": index, "delta": {"content": content}, "finish_reason": finish_reason, "token_ids": [1]}
    return {"choices": [said]}


@pytest.fixture
def malformed() -> Iterator[str]:
    """The URL of an engine whose answers have a header line too long for any client."""
    server = socket.create_server(("127.0.0.1", 0))

    def serve() -> None:
        while True:
            try:
                connection, _ = server.accept()
            except OSError:  # closed: the test is over
                return
            with connection:
                connection.recv(1 << 16)
                connection.sendall(b"HTTP/1.1 200 OK\r\nx-a: " + b"y" * 9000 + b"\r\ncontent-length: 0\r\n\r\n")

    thread = threading.Thread(target=serve)
    thread.start()
    yield f"http://127.0.0.1:{server.getsockname()[1]}"
    server.shutdown(socket.SHUT_RDWR)
    server.close()
    thread.join()


def test_an_answer_that_is_no_http_does_not_tell_the_providers_key(rig: MakeRig, malformed: str) -> None:
    r = rig(Whole({}), upstream_url=malformed, upstream_key=KEY, max_tries=1)
    got, models = r.post(), r.http.get(f"{r.url}/v1/models")
    (span,) = r.broker.spans()
    assert (got.status_code, models.status_code) == (502, 502)
    for text in (got.text, models.text, span.status_message):
        assert "ClientResponseError" in text
        assert KEY not in text


def test_an_errors_text_holds_no_header_that_could_not_be_written() -> None:
    with pytest.raises(UnicodeEncodeError) as caught:
        f"{KEY}\udc80".encode()
    assert KEY not in told(caught.value)


@pytest.mark.parametrize(("message", "status"), [("boom", 502), (OVERFLOW, 400)])
@pytest.mark.parametrize("form", ["whole", "streamed", "named"])
def test_an_error_in_an_older_shape_is_an_error(rig: MakeRig, message: str, status: int, form: str) -> None:
    body: Json = {"object": "error", "message": message, "code": 400}
    named = f"event: error\ndata: {json.dumps({'message': message})}\n\n".encode()
    r = rig(Whole(body) if form == "whole" else Streamed([body if form == "streamed" else named, "[DONE]"]))
    got = r.post(stream=form != "whole")
    assert got.status_code == status
    assert message in got.text
    (span,) = r.broker.spans()
    (call,) = r.broker.calls()
    assert (span.status, call.delivered, "context_overflow" in call.flags) == ("error", False, status == 400)


@pytest.mark.parametrize(
    ("event", "is_error"),
    [
        (b"event: error\r\ndata: {}\r\n\r\n", True),
        (b"data: {}\nevent:error\n\n", True),
        (b"event: message\ndata: {}\n\n", False),
        (b'data: {"content":"event: error"}\n\n', False),
        (b"event: errors\ndata: {}\n\n", False),
    ],
)
def test_only_a_line_of_its_own_names_an_event_an_error(event: bytes, is_error: bool) -> None:
    assert names_error(event) is is_error


@pytest.mark.parametrize(
    ("parts", "delivered"),
    [
        ([chunk("a"), chunk("b", 1), chunk("", 0, "stop"), "[DONE]"], False),
        ([chunk("a", 0, "stop")], False),
        ([chunk("a", 0, "stop"), chunk("b", 1, "stop")], True),
        ([chunk("a", 0, "stop"), "[DONE]"], True),
    ],
    ids=["one of two unfinished at the end", "one of two, no end", "two, no end", "an engine that gives one only"],
)
def test_a_stream_is_whole_once_all_its_answers_are(rig: MakeRig, parts: list[Json | str], delivered: bool) -> None:
    r = rig(Streamed(parts))
    assert ("upstream_broken" in r.post(stream=True, n=2).text) is not delivered
    assert {call.delivered for call in r.broker.calls()} == {delivered}


@pytest.mark.parametrize(
    ("given", "kept"),
    [
        ([-0.5, -9999.0], [-0.5, None]),
        ([-0.5, -10000.0], [-0.5, None]),
        ([0.5, -0.5], [None, -0.5]),
        ([0.0005, -0.5], [0.0005, -0.5]),
        ([-0.5, math.nan], [-0.5, None]),
        ([math.inf, -math.inf], [None, None]),
        ([-0.5], [-0.5, None]),
        ([-0.1, -0.2, -0.3], [None, None]),
    ],
)
def test_what_is_no_log_prob_counts_as_missing(given: list[float], kept: list[float | None]) -> None:
    found, missing = Choice(0, ids=array("i", [1, 2]), logprobs=array("f", given)).finite_logprobs()
    assert found is not None
    assert [None if math.isnan(x) else pytest.approx(x) for x in found] == kept
    assert missing == kept.count(None)


def test_more_log_probs_than_ids_are_not_paired_with_them(rig: MakeRig) -> None:
    ids: list[list[int] | None] = [[1], None, [3]]
    parts: list[Json | str] = [
        {
            "choices": [
                {"index": 0, "delta": {"content": "a"}, "token_ids": i, "logprobs": {"content": [{"logprob": x}]}}
            ]
        }
        for i, x in zip(ids, (-0.1, -0.2, -0.3), strict=True)
    ]
    r = rig(Streamed([*parts, {"choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]}, "[DONE]"]))
    r.post(stream=True)
    (call,) = r.broker.calls()
    assert all(math.isnan(x) for x in unpack_logprobs(call.logprobs or b""))
    assert (call.flags, call.nonfinite_logprobs) == (["nonfinite_logprobs", "token_count_mismatch"], 2)


def test_prompt_log_probs_that_the_agent_asked_for_stay_in_its_answer(rig: MakeRig) -> None:
    r = rig(answer(choice([4]) | {"prompt_logprobs": [None]}, prompt_logprobs=[None]))
    got = r.post(prompt_logprobs=1).json()
    assert (got["prompt_logprobs"], got["choices"][0]["prompt_logprobs"]) == ([None], [None])
    assert "prompt_token_ids" not in got


@pytest.mark.parametrize(("arguments", "kept"), [({"a": [1, None]}, '{"a":[1,null]}'), ({}, "{}"), ([1], "[1]")])
@pytest.mark.parametrize("kind", ["message", "delta"])
def test_arguments_that_are_no_text_are_recorded_as_json(rig: MakeRig, kind: str, arguments: object, kept: str) -> None:
    function = {"name": "f", "arguments": arguments, "strict": True}
    said: Json = {"index": 0, kind: {"tool_calls": [{"function": function}]}, "finish_reason": "tool_calls"}
    r = rig(Streamed([{"choices": [said]}, "[DONE]"]) if kind == "delta" else Whole({"choices": [said]}))
    r.post(stream=kind == "delta")
    (call,) = r.broker.calls()
    (recorded,) = json.loads(call.response or "")["choices"][0]["message"]["tool_calls"]
    assert recorded["function"] == {"name": "f", "arguments": kept, "strict": True}


def test_a_tool_call_whose_arguments_are_an_object_is_held() -> None:
    call = {"index": 0, "function": {"name": "f", "arguments": {"a": 1}}}
    assert Hold().starts_at({"choices": [{"index": 0, "delta": {"tool_calls": [call]}}]})


@pytest.mark.parametrize(("status", "marked"), [(400, False), (429, False), (503, False), (500, True), (504, True)])
def test_a_request_that_the_engine_refused_may_come_again_unmarked(rig: MakeRig, status: int, marked: bool) -> None:
    r = rig(Whole({"error": {"message": "no"}}, status), answer(choice([4])), max_tries=1)
    r.post()
    r.post()
    assert [call.client_retry for call in r.broker.calls()] == [False, marked]


def test_a_call_for_which_there_was_no_engine_may_come_again_unmarked(rig: MakeRig) -> None:
    r = rig(answer(choice([4])), engine_wait_s=0.0)
    r.gone(r.engine.url)
    assert r.post().status_code == 503
    r.beat(r.engine.url)
    r.post()
    assert [call.client_retry for call in r.broker.calls()] == [False, False]


def test_a_call_whose_engine_could_not_be_reached_may_come_again_unmarked(rig: MakeRig, dead_url: str) -> None:
    r = rig(answer(choice([4])), max_tries=1)
    r.gone(r.engine.url)
    r.beat(dead_url)
    assert r.post().status_code == 502
    r.gone(dead_url)
    r.beat(r.engine.url)
    r.post()
    assert [call.client_retry for call in r.broker.calls()] == [False, False]


def test_a_call_whose_client_went_while_the_engine_was_silent_is_marked_when_it_comes_again(rig: MakeRig) -> None:
    r = rig(answer(choice([4])))
    r.gone(r.engine.url)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        url = f"http://127.0.0.1:{silent.getsockname()[1]}"
        r.beat(url)
        with pytest.raises(httpx.ReadTimeout):
            httpx.post(f"{r.base_url}/chat/completions", json={"model": "policy", "messages": [USER]}, timeout=0.3)
        until(lambda: r.broker.records)
        r.gone(url)
    r.beat(r.engine.url)
    r.post()
    assert [call.client_retry for call in r.broker.calls()] == [False, True]


@pytest.mark.parametrize("second", ['{"a":1}', {"a": 1}, ' {"a":1}'])
def test_an_empty_object_of_arguments_may_be_the_beginning_of_others(rig: MakeRig, second: object) -> None:
    functions: list[Json] = [{"name": "f", "arguments": {}}, {"arguments": second}]
    deltas: list[Json | str | bytes] = [
        {"choices": [{"index": 0, "delta": {"tool_calls": [{"index": 0, "function": function}]}}]}
        for function in functions
    ]
    hold = Hold()
    first = deltas[0]
    assert isinstance(first, dict)
    assert not hold.starts_at(first)
    r = rig(Streamed([*deltas, {"choices": [{"index": 0, "delta": {}, "finish_reason": "tool_calls"}]}, "[DONE]"]))
    r.post(stream=True)
    (call,) = r.broker.calls()
    (recorded,) = json.loads(call.response or "")["choices"][0]["message"]["tool_calls"]
    assert (recorded["function"]["name"], recorded["function"]["arguments"].strip()) == ("f", '{"a":1}')


def test_an_error_event_that_says_nothing_is_an_error(rig: MakeRig) -> None:
    r = rig(Streamed([chunk("a"), b"event: error\n\n", "[DONE]"]))
    r.post(stream=True)
    assert [call.delivered for call in r.broker.calls()] == [False]


@pytest.mark.parametrize("user", ["me:secret@", "me:sec@ret@"])
def test_an_errors_text_names_no_user_of_a_url(user: str) -> None:
    text = f"http://{user}host:1/v1?mail=a@b.c is gone"
    assert told(ValueError(text)) == "ValueError: http://host:1/v1?mail=a@b.c is gone"
    assert Refused("upstream_broken", text).message == "http://host:1/v1?mail=a@b.c is gone"


@pytest.fixture
def dead_url() -> str:
    """An address where nobody listens."""
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        return f"http://127.0.0.1:{bound.getsockname()[1]}"
