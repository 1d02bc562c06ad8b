"""A conversation read from a request or from attributes: roles are derived where they can only be one."""

from __future__ import annotations

import json

from spanloop.schemas.messages import answers, conversation, entries, of_request


def test_roles_are_derived_and_an_entry_without_one_is_skipped_with_a_warning() -> None:
    # SP-11
    entries = [
        {"role": "user", "content": "q"},
        {"tool_calls": [{"id": "c1", "function": {"name": "f", "arguments": "{}"}}]},
        {"tool_call_id": "c1", "content": "r"},
        {"content": "?"},
    ]
    found = of_request(json.dumps({"messages": entries}))
    assert [message["role"] for message in found.messages] == ["user", "assistant", "tool"]
    assert [message.get("content") for message in found.messages] == ["q", None, "r"]
    assert len(found.warnings) == 1
    assert "message 3 has no role" in found.warnings[0]


def test_flattened_attributes_are_the_same_conversation() -> None:
    attributes = {
        "gen_ai.prompt.10.content": "?",
        "gen_ai.prompt.2.tool_call_id": "c1",
        "gen_ai.prompt.2.content": "r",
        "gen_ai.prompt.0.role": "user",
        "gen_ai.prompt.0.content": "q",
        "gen_ai.prompt.1.tool_calls.0.name": "f",
        "gen_ai.promptly": "no entry",
    }
    found = conversation(entries(attributes))
    assert [message["role"] for message in found.messages] == ["user", "assistant", "tool"]
    assert len(found.warnings) == 1


def test_an_entry_that_is_no_object_is_skipped_with_a_warning() -> None:
    found = of_request('{"messages": ["hi", {"role": "user", "content": null}]}')
    assert found.messages == [{"role": "user", "content": None}]
    assert "message 0" in found.warnings[0]


def test_a_request_without_messages_is_an_empty_conversation() -> None:
    assert of_request('{"prompt": "x"}').messages == []
    assert of_request("[]").messages == []
    assert of_request("{").warnings == ["the request is no JSON"]


DEEP = "[" * 100_000
MANY_DIGITS = "1" * 5000


def test_no_text_can_stop_its_reader() -> None:
    for value in (DEEP, MANY_DIGITS, f'{{"messages": {MANY_DIGITS}}}'):
        assert of_request(value).warnings == ["the request is no JSON"]
        assert answers(value) == []
    for depth in range(800, 1000):  # about as deep as can be read at all
        of_request(f'{{"messages": [{"[" * depth}{"]" * depth}]}}')
    for position in ("\u00b2", "\u0663", MANY_DIGITS):
        assert entries({f"gen_ai.prompt.{position}.content": "q"}) == []


def test_answers_are_the_messages_of_all_choices() -> None:
    body = {"choices": [{"message": {"content": "a"}}, {"message": {"role": "assistant", "content": None}}]}
    assert [message["content"] for message in answers(json.dumps(body))] == ["a", None]
    assert [message["role"] for message in answers(json.dumps(body))] == ["assistant", "assistant"]


def test_a_missing_cut_or_failed_response_has_no_answers() -> None:
    assert [*answers(None), *answers("{"), *answers('{"error": "busy"}'), *answers("[]")] == []
