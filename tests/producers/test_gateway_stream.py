"""Streamed answers: chunks pass as they come, the end waits for the broker."""

from __future__ import annotations

import asyncio
import itertools
import json
import re
import threading
from collections.abc import AsyncIterator, Iterator
from typing import Any

import httpx
import pytest
from gateway_rig import DEADLINE_S, MakeRig, Rig
from hypothesis import example, given
from hypothesis import strategies as st
from openai import APIError
from waiting import until

from spanloop.infra.scripted_engine import Streamed
from spanloop.producers.gateway_stream import Braces, Hold, data_of, events
from spanloop.schemas.packed import unpack_ids, unpack_logprobs
from spanloop.schemas.spans import Usage, VersionRun

Json = dict[str, Any]

STOP: Json = {"choices": [{"index": 0, "delta": {"content": ""}, "finish_reason": "stop"}]}


def text(content: str, *ids: int, **choice: object) -> Json:
    """A chunk as vLLM writes it where log-probs and ids were asked for."""
    logprobs = {"content": [{"token": "t", "logprob": -0.25} for _ in ids]}
    body = {"index": 0, "delta": {"content": content}, "logprobs": logprobs, "token_ids": list(ids), **choice}
    return {"id": "c1", "object": "chat.completion.chunk", "created": 7, "model": "policy", "choices": [body]}


def tool(arguments: str | None, index: int = 0, name: str | None = None) -> Json:
    function = {"arguments": arguments} if name is None else {"name": name, "arguments": arguments}
    call = {"index": index, "function": function, **({} if name is None else {"id": f"c{index}", "type": "function"})}
    return {"id": "c1", "choices": [{"index": 0, "delta": {"tool_calls": [call]}, "token_ids": [5]}]}


def data(stream: bytes) -> list[str]:
    """The data of each event."""
    return [part.removeprefix(b"data: ").decode() for part in stream.split(b"\n\n") if part]


def chunks_of(stream: bytes) -> list[Json]:
    return [json.loads(part) for part in data(stream) if part != "[DONE]"]


class Reading:
    """A streamed call read on a thread: what has come so far."""

    def __init__(self, r: Rig, **request: object) -> None:
        self.events: list[str] = []
        self.done = threading.Event()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._read, args=(r, request))
        self._thread.start()

    def _read(self, r: Rig, request: dict[str, object]) -> None:
        body = {"model": "policy", "messages": [{"role": "user", "content": "hi"}], "stream": True, **request}
        with httpx.stream("POST", f"{r.base_url}/chat/completions", json=body, timeout=DEADLINE_S) as response:
            for line in response.iter_lines():
                if line:
                    self.events.append(line.removeprefix("data: "))
        self.done.set()

    def join(self) -> None:
        self._thread.join(DEADLINE_S)
        assert not self._thread.is_alive()


def test_a_stream_without_usage_is_recorded_with_ids_and_unknown_usage(rig: MakeRig) -> None:
    # GW-1
    r = rig(Streamed([{**text("a", 10), "prompt_token_ids": [1, 2]}, text("b", 11), text("c", 12, 13), STOP, "[DONE]"]))
    got = r.post(stream=True)
    assert data(got.content)[-1] == "[DONE]"
    seen = chunks_of(got.content)
    assert [c["choices"][0]["delta"]["content"] for c in seen] == ["a", "b", "c", ""]
    assert all("token_ids" not in c["choices"][0] and "prompt_token_ids" not in c for c in seen)
    assert all(c["choices"][0].get("logprobs") is None for c in seen)
    assert r.engine.requests[0]["stream_options"] == {"include_usage": True}
    (span,) = r.broker.spans()
    (call,) = r.broker.calls()
    assert got.headers["x-spanloop-span-id"] == span.span_id
    assert (unpack_ids(call.prompt_ids or b""), unpack_ids(call.response_ids or b"")) == ([1, 2], [10, 11, 12, 13])
    assert unpack_logprobs(call.logprobs or b"") == [-0.25] * 4
    assert (call.usage, call.finish_reason, call.delivered) == (Usage(), "stop", True)
    assert call.policy_versions == [VersionRun(3, 0, 4)]
    stored = json.loads(call.response or "")
    assert stored["choices"] == [
        {"index": 0, "message": {"role": "assistant", "content": "abc"}, "finish_reason": "stop"}
    ]
    assert "usage" not in stored


USAGE_CHUNK: Json = {"choices": [], "usage": {"prompt_tokens": 26, "completion_tokens": 3}}
ODD_CHUNK: Json = {
    "choices": [{"index": 0, "delta": {}}],
    "usage": {"prompt_tokens": 26, "completion_tokens": 3},
}


@pytest.mark.parametrize("last", [USAGE_CHUNK, ODD_CHUNK])
def test_usage_in_a_trailing_chunk_counts_once_and_is_passed_on_unchanged(rig: MakeRig, last: Json) -> None:
    # GW-2
    raw = b"data: " + json.dumps(last).encode() + b"\n\n"
    r = rig(Streamed([text("abc", 1, 2, 3), STOP, raw, "[DONE]"]))
    got = r.post(stream=True, stream_options={"include_usage": True})
    assert raw in got.content
    (call,) = r.broker.calls()
    assert call.usage == Usage(input=26, output=3)
    assert json.loads(call.response or "")["choices"][0]["message"]["content"] == "abc"


def test_a_usage_chunk_that_only_we_asked_for_does_not_reach_the_agent(rig: MakeRig) -> None:
    r = rig(Streamed([{**text("a", 1), "usage": None}, STOP, USAGE_CHUNK, "[DONE]"]))
    got = r.post(stream=True)
    assert all("usage" not in chunk for chunk in chunks_of(got.content))
    assert len(data(got.content)) == 3
    assert r.broker.calls()[0].usage == Usage(input=26, output=3)


def test_usage_that_the_engine_sends_unasked_stays(rig: MakeRig) -> None:
    r = rig(Streamed([text("a", 1), STOP, ODD_CHUNK, "[DONE]"]))
    assert ODD_CHUNK in chunks_of(r.post(stream=True).content)


def test_a_null_argument_delta_adds_nothing(rig: MakeRig) -> None:
    # TR-9
    r = rig(Streamed([tool(None, name="f"), tool('{"a":1}'), STOP, "[DONE]"]))
    got = r.openai().chat.completions.create(model="policy", messages=[{"role": "user", "content": "hi"}], stream=True)
    pieces = [c.choices[0].delta.tool_calls[0] for c in got if c.choices and c.choices[0].delta.tool_calls]
    assert [piece.function.arguments for piece in pieces if piece.function] == [None, '{"a":1}']
    message = json.loads(r.broker.calls()[0].response or "")["choices"][0]["message"]
    assert message["content"] == ""
    assert message["tool_calls"] == [
        {"type": "function", "id": "c0", "function": {"name": "f", "arguments": '{"a":1}'}}
    ]


def test_the_finish_waits_for_the_broker_while_text_flows(rig: MakeRig) -> None:
    r = rig(Streamed([text("a", 1), text("b", 2), STOP, USAGE_CHUNK, "[DONE]"]))
    r.broker.gate.clear()
    reading = Reading(r)
    until(r.broker.arrived.is_set)
    until(lambda: len(reading.events) == 2)
    assert [json.loads(event)["choices"][0]["delta"]["content"] for event in reading.events] == ["a", "b"]
    assert not reading.done.is_set()
    (call,) = r.broker.calls()
    assert (call.delivered, call.finish_reason) == (True, "stop")
    r.broker.gate.set()
    reading.join()
    assert reading.events[-1] == "[DONE]"
    assert json.loads(reading.events[-2])["choices"][0]["finish_reason"] == "stop"
    assert len(r.broker.records) == 1


def test_the_event_that_completes_a_tool_call_waits_too(rig: MakeRig) -> None:
    more = threading.Event()
    r = rig(Streamed([tool('{"a"', name="f"), tool(":1}"), more, STOP, "[DONE]"]))
    r.broker.gate.clear()
    reading = Reading(r)
    until(lambda: len(reading.events) == 1)
    more.set()
    until(r.broker.arrived.is_set)
    assert len(reading.events) == 1
    r.broker.gate.set()
    reading.join()
    arguments = [json.loads(e)["choices"][0]["delta"] for e in reading.events[:-1]]
    assert [a["tool_calls"][0]["function"]["arguments"] for a in arguments if "tool_calls" in a] == ['{"a"', ":1}"]


def test_with_the_broker_down_the_agent_never_sees_the_finish(rig: MakeRig) -> None:
    r = rig(Streamed([text("a", 1), STOP, "[DONE]"]))
    r.broker.down = True
    seen: list[Any] = []
    with pytest.raises(APIError, match="withheld"):
        seen.extend(
            chunk.choices[0].finish_reason
            for chunk in r.openai().chat.completions.create(
                model="policy", messages=[{"role": "user", "content": "hi"}], stream=True
            )
        )
    raw = r.post(stream=True).content
    assert b'"stop"' not in raw
    assert b"[DONE]" not in raw
    assert json.loads(data(raw)[-1])["error"]["code"] == "not_recorded"


def test_a_client_that_goes_cancels_the_engine_and_leaves_what_came(rig: MakeRig) -> None:
    # GW-8
    never = threading.Event()
    r = rig(Streamed([text("a", 10), text("b", 11), never, text("c", 12), text("d", 13), STOP, "[DONE]"]))
    body = {"model": "policy", "messages": [{"role": "user", "content": "hi"}], "stream": True}
    with httpx.stream("POST", f"{r.base_url}/chat/completions", json=body) as response:
        lines: Iterator[str] = (line for line in response.iter_lines() if line)
        assert [json.loads(next(lines)[6:])["choices"][0]["delta"]["content"] for _ in range(2)] == ["a", "b"]
    until(r.engine.cancelled.is_set)
    until(r.broker.arrived.is_set)
    (span,) = r.broker.spans()
    (call,) = r.broker.calls()
    assert (span.status, span.status_message) == ("error", "cancelled")
    assert (unpack_ids(call.response_ids or b""), call.delivered, call.finish_reason) == ([10, 11], False, None)
    assert json.loads(call.response or "")["choices"][0]["message"]["content"] == "ab"
    assert (call.policy_versions, call.flags) == ([VersionRun(3, 0, 2)], [])


@pytest.mark.parametrize("cut", [True, False])
def test_a_stream_that_ends_before_its_answer_is_an_error_and_undelivered(rig: MakeRig, cut: bool) -> None:
    r = rig(Streamed([text("a", 1)], cut=cut))
    with pytest.raises(APIError):
        list(
            r.openai().chat.completions.create(
                model="policy", messages=[{"role": "user", "content": "hi"}], stream=True
            )
        )
    (call,) = r.broker.calls()
    assert (call.delivered, call.finish_reason, unpack_ids(call.response_ids or b"")) == (False, None, [1])


def test_versions_and_two_choices_are_kept_apart_in_a_stream(rig: MakeRig) -> None:
    runs = [{"version": "2", "start": 0, "end": 1}, {"version": "4", "start": 1, "end": 2}]
    second = {"index": 1, "finish_reason": "length"}
    r = rig(
        Streamed([
            text("a", 1),
            text("x", 9, **second),
            text("", 2, finish_reason="stop", weight_versions=runs),
            "[DONE]",
        ])
    )  # fmt: skip
    got = r.post(stream=True, n=2)
    assert all("weight_versions" not in c["choices"][0] for c in chunks_of(got.content))
    a, b = r.broker.calls()
    assert a.policy_versions == [VersionRun(2, 0, 1), VersionRun(4, 1, 2)]
    assert (unpack_ids(a.response_ids or b""), unpack_ids(b.response_ids or b"")) == ([1, 2], [9])
    assert (b.choice, b.truncated, b.policy_versions) == (1, True, [VersionRun(3, 0, 1)])


def test_bad_logprobs_in_a_stream_are_strict_json_for_the_agent(rig: MakeRig) -> None:
    nan = float("nan")
    chunk = text("a", 1)
    chunk["choices"][0]["logprobs"]["content"][0]["logprob"] = nan
    r = rig(Streamed([chunk, STOP, "[DONE]"]))
    assert b"NaN" not in r.post(stream=True, logprobs=True, return_token_ids=True).content
    assert r.broker.calls()[0].nonfinite_logprobs == 1


async def cut_up(pieces: list[bytes]) -> list[bytes]:
    async def chunks() -> AsyncIterator[bytes]:
        for piece in pieces:
            yield piece

    return [event async for batch in events(chunks(), 1 << 20) for event in batch]


@given(
    st.lists(st.sampled_from([b"data: {}", b": ping", b"event: x\ndata: 1", b"data: a\r\ndata: b"]), min_size=1),
    st.sampled_from([b"\n\n", b"\r\n\r\n", b"\n\r\n", b"\r\n\n", b"\r\r"]),
    st.lists(st.integers(0, 200)),
)
def test_events_do_not_depend_on_where_the_network_cuts(lines: list[bytes], end: bytes, cuts: list[int]) -> None:
    whole = [line + end for line in lines]
    stream = b"".join(whole)
    places = sorted({min(cut, len(stream)) for cut in cuts} | {0, len(stream)})
    pieces = [stream[a:b] for a, b in itertools.pairwise(places)]
    assert asyncio.run(cut_up(pieces)) == whole


@given(st.lists(st.sampled_from([b"data:", b" ", b"a", b"\n", b"\r", b"\n\n"])).map(b"".join))
@example(b"data: a\r\ndata:b\r\n\r\n")
@example(b": ping\n\n")
def test_data_lines_are_joined_and_comments_have_none(event: bytes) -> None:
    lines = [line[5:] for line in re.split(rb"\r\n|\r|\n", event) if line.startswith(b"data:")]
    assert data_of(event) == (b"\n".join(line.removeprefix(b" ") for line in lines).strip() or None)


OBJECTS = st.recursive(
    st.none() | st.integers() | st.text(alphabet='ab"\\{}[]'),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(alphabet='a"\\{}'), inner, max_size=3),
)


@given(st.dictionaries(st.text(alphabet='a"\\{}[]'), OBJECTS, max_size=4), st.integers(1, 5))
def test_an_object_is_complete_exactly_at_its_last_brace(value: Json, step: int) -> None:
    whole = json.dumps(value)
    braces = Braces()
    pieces = [whole[i : i + step] for i in range(0, len(whole), step)]
    assert [braces.feed(piece) for piece in pieces] == [False] * (len(pieces) - 1) + [True]


def test_a_further_tool_call_completes_the_one_before_whatever_its_arguments_are() -> None:
    hold = Hold()
    assert not hold.starts_at(tool("", 0, "f"))
    assert hold.starts_at(tool("", 1, "g"))
