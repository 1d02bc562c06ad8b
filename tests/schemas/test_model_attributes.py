import json
from typing import Any

import pytest
from events import Bench, batch, end, rew, span
from hypothesis import given
from hypothesis import strategies as st

from spanloop.schemas.messages import of_request
from spanloop.schemas.model_attributes import call_of
from spanloop.schemas.packed import pack_ids, unpack_ids


def nested(ids: list[int]) -> list[list[int]]:
    return [ids]


def assembled(attributes: dict[str, Any]) -> Bench:
    bench = Bench()
    one = span("s1", label="chat_model.llm", attrs=attributes, call=call_of(attributes))
    bench.give(batch(one, begin=True), rew(1.0), batch(end=end()))
    return bench


def test_a_call_under_any_name_is_one_triplet() -> None:  # TR-11
    (row,) = assembled({"prompt_ids": [1, 2], "response_ids": [3]}).last().rows
    assert (unpack_ids(row.token_ids), list(row.mask)) == ([1, 2, 3], [0, 0, 1])


def test_the_same_span_without_ids_is_none_and_says_why() -> None:  # TR-11
    found = assembled({"gen_ai.prompt": "[]"}).last()
    assert (found.rows, [c.excluded for c in found.calls]) == ([], ["no_token_ids"])


def test_a_call_told_by_flattened_attributes_keeps_its_messages_with_roles_that_can_be_told() -> None:  # SP-11
    prompt = {
        "gen_ai.prompt.0.role": "user",
        "gen_ai.prompt.0.content": "q",
        "gen_ai.prompt.1.tool_calls.0.id": "c1",
        "gen_ai.prompt.2.tool_call_id": "c1",
        "gen_ai.prompt.2.content": "r",
        "gen_ai.prompt.3.content": "?",
    }
    attributes = {"prompt_ids": [1, 2], "response_ids": [3], **prompt}
    call = call_of(attributes)
    assert call is not None
    found = of_request(call.request)
    assert [message["role"] for message in found.messages] == ["user", "assistant", "tool"]
    assert len(found.warnings) == 1
    assert len(assembled(attributes).last().rows) == 1


@pytest.mark.parametrize("attributes", [None, {}, {"gen_ai.operation.name": "chat"}, {"k": 1}])
def test_what_carries_neither_ids_nor_a_prompt_is_no_call(attributes: dict[str, Any] | None) -> None:
    assert call_of(attributes) is None


@given(st.lists(st.integers(0, 200_000), min_size=2), st.sampled_from([list, tuple, json.dumps, nested]))
def test_ids_are_read_in_every_form_that_libraries_give_them(ids: list[int], form: Any) -> None:
    call = call_of({"prompt_token_ids": form(ids), "response_token_ids": [1]})
    assert call is not None
    assert call.prompt_ids == pack_ids(ids)


@pytest.mark.parametrize("wrong", ["none", [1.5], [True], ["1"], [1 << 31], {"a": 1}, None, "[1, [2]]"])
def test_what_are_no_ids_counts_as_not_reported(wrong: object) -> None:
    call = call_of({"prompt_ids": wrong, "response_ids": [3]})
    assert call is not None
    assert (call.prompt_ids, call.policy, call.flags) == (None, None, ["no_token_ids"])
