"""Answers as engines were seen to send them, letter by letter."""

from __future__ import annotations

import json
from typing import Any

import pytest
from gateway_rig import MakeRig

from spanloop.infra.scripted_engine import Streamed, Whole
from spanloop.producers.gateway_stream import Hold
from spanloop.schemas.packed import unpack_ids
from spanloop.schemas.spans import ModelCall, Usage

Json = dict[str, Any]

STOP: Json = {"choices": [{"delta": {"content": ""}, "finish_reason": "stop"}]}  # without an index
USAGE = {"prompt_tokens": 26, "completion_tokens": 3}
USAGE_CHUNK: Json = {"choices": [], "usage": USAGE}
ODD_CHUNK: Json = {"choices": [{"index": 0, "delta": {}}], "usage": USAGE}


def chunk(content: str, *ids: int, **top: object) -> Json:
    return {"choices": [{"index": 0, "delta": {"content": content}, "token_ids": list(ids)}], **top}


ABC = [chunk("a", 10, prompt_token_ids=[1, 2]), chunk("b", 11), chunk("c", 12)]


def stored(call: ModelCall) -> Json:
    return json.loads(call.response or "")["choices"][0]


def sent(stream: bytes) -> list[str]:
    return [part.removeprefix(b"data: ").decode() for part in stream.split(b"\n\n") if part]


@pytest.mark.parametrize("last", [USAGE_CHUNK, ODD_CHUNK])
def test_a_trailing_usage_chunk_behind_a_finish_without_index_counts_once(rig: MakeRig, last: Json) -> None:  # GW-2
    raw = b"data: " + json.dumps(last).encode() + b"\n\n"
    r = rig(Streamed([*ABC, STOP, raw, "[DONE]"]))
    got = r.post(stream=True, stream_options={"include_usage": True})
    finish, usage, done = sent(got.content)[3:]
    assert (json.loads(finish), json.loads(usage), done) == (STOP, last, "[DONE]")
    assert raw in got.content
    (call,) = r.broker.calls()
    assert call.usage == Usage(input=26, output=3)
    assert unpack_ids(call.response_ids or b"") == [10, 11, 12]
    assert stored(call) == {
        "index": 0,
        "message": {"role": "assistant", "content": "abc"},
        "finish_reason": "stop",
    }


def test_a_tool_call_without_role_type_and_content_is_passed_on_and_asked_again_as_it_came(
    rig: MakeRig,
) -> None:  # GW-4
    message: Json = {
        "content": None,
        "tool_calls": [{"id": "c1", "function": {"name": "f", "arguments": '{"a":1}'}}],
    }
    choice = {"index": 0, "message": message, "finish_reason": "tool_calls", "token_ids": list(range(12))}
    r = rig(Whole({"prompt_token_ids": [1, 2, 3], "choices": [choice]}))
    assert r.post().json()["choices"][0]["message"] == message
    (call,) = r.broker.calls()
    assert unpack_ids(call.response_ids or b"") == list(range(12))
    assert stored(call)["message"]["content"] is None
    assert stored(call)["message"]["tool_calls"][0]["function"] == {"name": "f", "arguments": '{"a":1}'}
    history = [{"role": "user", "content": "hi"}, {"role": "assistant", **message}]
    for turn in (history[1], stored(call)["message"]):
        r.post(messages=[history[0], turn, {"role": "tool", "tool_call_id": "c1", "content": "2"}])
    assert [q["messages"][1]["content"] for q in r.engine.requests[1:]] == [None, None]


def test_a_streamed_tool_call_keeps_a_null_content_null(rig: MakeRig) -> None:  # GW-4
    first = {"role": "assistant", "content": None, "tool_calls": [{"index": 0, "id": "c1", "function": {"name": "f"}}]}
    rest = {"tool_calls": [{"index": 0, "function": {"arguments": '{"a":1}'}}]}
    parts = [{"choices": [{"index": 0, "delta": d, "token_ids": [1] * 6}]} for d in (first, rest)]
    nothing: dict[str, object] = {}
    finish = {"choices": [{"index": 0, "delta": nothing, "finish_reason": "tool_calls"}]}
    r = rig(Streamed([*parts, finish, "[DONE]"]))
    r.post(stream=True)
    (call,) = r.broker.calls()
    assert stored(call)["message"]["content"] is None
    assert len(unpack_ids(call.response_ids or b"")) == 12


@pytest.mark.parametrize(("ids", "packed", "flag"), [([], b"", "empty"), (None, None, "no_token_ids")])
def test_a_streamed_answer_without_tokens_is_told_apart_from_one_without_ids(
    rig: MakeRig, ids: list[int] | None, packed: bytes | None, flag: str
) -> None:  # SP-19
    finish: Json = {
        "index": 0,
        "delta": {"content": ""},
        "finish_reason": "stop",
        **({} if ids is None else {"token_ids": ids}),
    }
    r = rig(Streamed([{"choices": [finish]}, {"choices": [], "usage": {"completion_tokens": 0}}, "[DONE]"]))
    assert r.post(stream=True).status_code == 200
    (call,) = r.broker.calls()
    assert (call.response_ids, call.finish_reason, call.usage.output, call.flags) == (packed, "stop", 0, [flag])
    assert call.delivered


def test_usage_that_every_chunk_repeats_counts_once(rig: MakeRig) -> None:  # GW-2
    running = [{**part, "usage": {"prompt_tokens": 26, "completion_tokens": n}} for n, part in enumerate(ABC, 1)]
    r = rig(Streamed([*running, {**STOP, "usage": USAGE}, USAGE_CHUNK, "[DONE]"]))
    r.post(stream=True, stream_options={"include_usage": True})
    (call,) = r.broker.calls()
    assert call.usage == Usage(input=26, output=3)


@pytest.mark.parametrize(
    "odd",
    [
        [b"data:\n\n", *ABC, b"data: \n\n", STOP, "[DONE]"],
        [*ABC, STOP, b"data: [DONE] \n\n"],
        [*(b"data: " + json.dumps(part).encode() + b"\n\r\n" for part in ABC), STOP, "[DONE]"],
        [b"\xef\xbb\xbfdata: " + json.dumps(ABC[0]).encode() + b"\n\n", *ABC[1:], STOP, "[DONE]"],
    ],
    ids=["empty data as a keep-alive", "a space behind the end", "mixed line ends", "a byte order mark"],
)
def test_a_stream_in_an_odd_form_is_read_like_any_other(rig: MakeRig, odd: list[Json | str | bytes]) -> None:
    r = rig(Streamed(odd))
    got = r.post(stream=True)
    assert got.status_code == 200
    assert b"token_ids" not in got.content
    (call,) = r.broker.calls()
    assert (call.delivered, call.finish_reason) == (True, "stop")
    assert unpack_ids(call.response_ids or b"") == [10, 11, 12]
    assert stored(call)["message"]["content"] == "abc"


def test_an_answer_may_end_without_a_finish_reason(rig: MakeRig) -> None:
    r = rig(Streamed([*ABC, "[DONE]"]))
    assert sent(r.post(stream=True).content)[-1] == "[DONE]"
    (call,) = r.broker.calls()
    assert (call.delivered, call.finish_reason, len(unpack_ids(call.response_ids or b""))) == (True, None, 3)


def test_an_empty_finish_reason_is_none() -> None:
    hold = Hold()
    assert not hold.starts_at({"choices": [{"index": 0, "delta": {"content": "a"}, "finish_reason": ""}]})
    assert hold.starts_at(STOP)


OVERFLOW = "The input (6859 tokens) is longer than the model's context length (4608 tokens)."


@pytest.mark.parametrize(
    ("top", "choices", "told", "status"),
    [
        ({"error": {"message": "boom", "code": 500}}, [], "boom", 502),
        ({"error": {"message": OVERFLOW}}, [], "longer than the model's context length", 400),
        ({"error": {"code": 502, "message": "provider died"}}, [{"finish_reason": "error"}], "provider died", 502),
        ({}, [{"error": {"code": 502, "message": "provider died"}}], "provider died", 502),
        ({}, [{"finish_reason": "error"}], '"error"', 502),
    ],
)
@pytest.mark.parametrize("stream", [False, True])
def test_an_error_sent_as_an_answer_is_an_error(
    rig: MakeRig, top: Json, choices: list[Json], told: str, status: int, stream: bool
) -> None:
    kind = "delta" if stream else "message"
    body = {"id": "c", **top, "choices": [{"index": 0, kind: {"content": ""}, "token_ids": [1], **c} for c in choices]}
    r = rig(Streamed([body, "[DONE]"]) if stream else Whole(body))
    got = r.post(stream=stream)
    assert got.status_code == status
    assert told in got.text.replace("\\", "")
    if not stream:
        assert got.json() == body
    (span,) = r.broker.spans()
    (call,) = r.broker.calls()
    assert (span.status, call.delivered, call.response_ids) == ("error", False, None)
    assert ("context_overflow" in call.flags) == (status == 400)


def test_an_error_behind_the_first_chunks_ends_the_stream_as_an_error(rig: MakeRig) -> None:
    error: Json = {
        "error": {"message": "provider died"},
        "choices": [{"index": 0, "delta": {}, "finish_reason": "error"}],
    }
    r = rig(Streamed([ABC[0], error, "[DONE]"]))
    assert json.loads(sent(r.post(stream=True).content)[-1])["error"]["code"] == "upstream_broken"
    (call,) = r.broker.calls()
    assert (call.delivered, call.finish_reason, unpack_ids(call.response_ids or b"")) == (False, None, [10])


@pytest.mark.parametrize("stream", [False, True])
def test_an_answer_without_choices_is_no_answer(rig: MakeRig, stream: bool) -> None:
    r = rig(Streamed([USAGE_CHUNK, "[DONE]"]) if stream else Whole({"id": "c", "choices": [], "usage": USAGE}))
    got = r.post(stream=stream)
    assert (got.status_code, got.json()["error"]["code"]) == (502, "upstream_broken")
    (call,) = r.broker.calls()
    assert (call.delivered, call.response, call.usage) == (False, None, Usage(input=26, output=3))


@pytest.mark.parametrize(
    ("ids", "counted", "flags"),
    [
        ([[10, 11, 12]], 3, []),
        ([[10]], 3, ["token_count_mismatch"]),
        ([[10, 11], [12]], 3, []),
        ([[10, 11], [12]], 4, ["token_count_mismatch"]),
        ([[10, 11], None], 4, []),
        ([[10]], None, []),
    ],
)
def test_ids_that_do_not_add_up_to_the_engines_count_are_flagged(
    rig: MakeRig, ids: list[list[int] | None], counted: int | None, flags: list[str]
) -> None:
    choices = [
        {"index": i, "message": {"content": "a"}, "finish_reason": "stop", "token_ids": found}
        for i, found in enumerate(ids)
    ]
    r = rig(Whole({"prompt_token_ids": [1, 2], "choices": choices, "usage": {"completion_tokens": counted}}))
    r.post(n=len(ids))
    assert [[f for f in call.flags if f != "no_token_ids"] for call in r.broker.calls()] == [flags] * len(ids)


def test_a_prompt_that_is_counted_otherwise_is_flagged(rig: MakeRig) -> None:  # an image has fewer ids than tokens
    r = rig(Streamed([*ABC, STOP, USAGE_CHUNK, "[DONE]"]))
    r.post(stream=True)
    assert r.broker.calls()[0].flags == ["prompt_count_mismatch"]
