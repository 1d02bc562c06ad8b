"""Answers put together from what engines send: tool calls, and messages in pieces or in parts."""

from __future__ import annotations

import json
from typing import Any

import pytest
from gateway_rig import MakeRig, Rig

from spanloop.infra.scripted_engine import Streamed, Whole

Json = dict[str, Any]

STOP: Json = {"choices": [{"index": 0, "delta": {"content": ""}, "finish_reason": "stop"}]}


def recorded(r: Rig) -> Json:
    """The only call's message."""
    (call,) = r.broker.calls()
    return json.loads(call.response or "")["choices"][0]["message"]


def called(id_: str | None, name: str | None, arguments: str, **fields: object) -> Json:
    """A chunk with one piece of a tool call."""
    function = {"arguments": arguments} if name is None else {"name": name, "arguments": arguments}
    call = {"function": function, **fields} if id_ is None else {"id": id_, "function": function, **fields}
    return {"choices": [{"index": 0, "delta": {"tool_calls": [call]}, "token_ids": [5]}]}


CALLS: list[Json] = [{"choices": [{"index": 0, "delta": {}, "finish_reason": "tool_calls"}]}]
TWO = [("c1", "f", '{"a":1}'), ("c2", "g", '{"b":2}')]


@pytest.mark.parametrize(
    ("parts", "calls"),
    [
        ([called("c1", "f", '{"a":1}'), called("c2", "g", '{"b":2}')], TWO),
        ([called("c1", "f", '{"a":1}', index=0), called("c2", "g", '{"b":2}', index=0)], TWO),
        ([called("c1", "f", '{"a"'), called(None, None, ":1}"), called("c2", "g", '{"b":2}')], TWO),
        ([called("c1", "f", '{"a"'), called("c2", "g", '{"b"'), called("c1", None, ":1}"), called("c2", None, ":2}")],
         TWO),
        ([called("c1", "f", '{"a"', index=0), called("c2", "g", '{"b":2}', index=1),
          called(None, None, ":1}", index=0)], TWO),
        ([called("c1", "f", '{"a"', index=0), called("c1", "f", ":1}", index=0), called("c2", "g", '{"b":2}', index=1)],
         TWO),
        ([called("c1", "f", '{"a"', index=0), called(None, "f", ":1}", index=0)], TWO[:1]),
        ([called("", "f", '{"a":1}'), called("", "f", '{"a":2}')], [("", "f", '{"a":1}'), ("", "f", '{"a":2}')]),
        ([called("c1", "get_", "", index=0), called(None, "it", "{}", index=0)], [("c1", "get_it", "{}")]),
        ([called("x", "f", "{}", index=0), called("x", "f", "{}", index=1)], [("x", "f", "{}"), ("x", "f", "{}")]),
        ([called("c1", "f", '{"a"', index=0), called("c8", None, ":1}", index=0), called("c9", None, "", index=0),
          called("c2", "g", '{"b":2}', index=1)], TWO),
        ([called("c1", "f", '{"a":1}', index=0), called(None, "f", " \n", index=0)],
         [("c1", "f", '{"a":1} \n')]),
    ],
    ids=[
        "each in one chunk", "all of index 0", "pieces without an id", "named only", "numbered", "a name in each piece",
        "a name in each piece without an id", "no ids at all", "a name in pieces", "one id for all",
        "an id for each piece", "a name with the white space behind",
    ],
)  # fmt: skip
def test_streamed_tool_calls_are_kept_apart(rig: MakeRig, parts: list[Json], calls: list[tuple[str, ...]]) -> None:
    r = rig(Streamed([*parts, *CALLS, "[DONE]"]))
    assert r.post(stream=True).status_code == 200
    kept = recorded(r)["tool_calls"]
    assert [(c.get("id", ""), c["function"]["name"], c["function"]["arguments"]) for c in kept] == calls


def test_whole_tool_calls_without_ids_are_kept_apart(rig: MakeRig) -> None:
    calls = [{"function": {"name": name, "arguments": "{}"}} for name in "fg"]
    r = rig(Whole({"choices": [{"index": 0, "message": {"tool_calls": calls}, "finish_reason": "tool_calls"}]}))
    r.post()
    assert [c["function"]["name"] for c in recorded(r)["tool_calls"]] == ["f", "g"]


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("nothing", [None, {}, "", False, [], 0])
def test_an_error_that_is_empty_is_none(rig: MakeRig, nothing: object, stream: bool) -> None:
    said = {"message": {"content": "hi"}, "delta": {"content": "hi"}} if stream else {"message": {"content": "hi"}}
    told = {"error": nothing, "choices": [{"index": 0, **said, "error": nothing, "finish_reason": "stop"}]}
    r = rig(Streamed([told, "[DONE]"]) if stream else Whole(told))
    assert r.post(stream=stream).status_code == 200
    assert recorded(r)["content"] == "hi"


PARTS: list[Json] = [{"type": "text", "text": "hi"}]


@pytest.mark.parametrize(
    ("deltas", "message"),
    [
        ([{"content": PARTS}, {"content": PARTS}], {"content": PARTS * 2}),
        ([{"content": "hi"}, {"content": ""}, {"content": PARTS}], {"content": PARTS * 2}),
        ([{"content": "a"}, {"role": "", "content": "b"}], {"content": "ab"}),
    ],
)
def test_a_message_is_recorded_as_its_pieces_tell_it(rig: MakeRig, deltas: list[Json], message: Json) -> None:
    r = rig(Streamed([*({"choices": [{"index": 0, "delta": d, "token_ids": [1]}]} for d in deltas), STOP, "[DONE]"]))
    r.post(stream=True)
    assert recorded(r) == {"role": "assistant", **message}


def test_content_in_parts_is_recorded_in_parts(rig: MakeRig) -> None:
    r = rig(Whole({"choices": [{"index": 0, "message": {"content": PARTS}, "finish_reason": "stop"}]}))
    r.post()
    assert recorded(r)["content"] == PARTS


def test_a_whole_message_beside_the_last_delta_is_not_said_twice(rig: MakeRig) -> None:
    said = [{"choices": [{"index": 0, "delta": {"content": content}}]} for content in "abc"]
    last: Json = {"choices": [{"index": 0, "delta": {}, "message": {"content": "abc"}, "finish_reason": "stop"}]}
    r = rig(Streamed([*said, last, "[DONE]"]))
    r.post(stream=True)
    assert recorded(r)["content"] == "abc"
