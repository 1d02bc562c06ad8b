import json
import math
from typing import Any

import pytest
from events import Bench, batch, end, rew, span
from hypothesis import given
from hypothesis import strategies as st

from spanloop.schemas.messages import of_request
from spanloop.schemas.model_attributes import call_of
from spanloop.schemas.packed import pack_ids, unpack_ids, unpack_logprobs
from spanloop.schemas.records import VersionRun
from spanloop.schemas.semconv import POLICY_VERSION


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


@pytest.mark.parametrize(
    "wrong",
    [
        "none",
        [1.5],
        [True],
        ["1"],
        [1 << 31],
        {"a": 1},
        None,
        "[1, [2]]",
        "[" * 100_000,
        "[" * 900 + "]" * 900,
        "9" * 5000,
    ],
)
def test_what_are_no_ids_counts_as_not_reported(wrong: object) -> None:
    call = call_of({"prompt_ids": wrong, "response_ids": [3]})
    assert call is not None
    assert (call.prompt_ids, call.policy, call.flags) == (None, None, ["no_token_ids"])


def test_log_probs_that_are_no_finite_numbers_are_counted() -> None:
    given = [-0.5, None, math.nan, -math.inf, 1e300]
    call = call_of({"prompt_ids": [1], "response_ids": [1, 2, 3, 4, 5], "logprobs": given})
    assert call is not None
    assert (unpack_logprobs(call.logprobs or b"")[0], call.nonfinite_logprobs) == (-0.5, 4)
    found = assembled({"prompt_ids": [1], "response_ids": [2], "logprobs": [math.nan]}).last()
    assert "nonfinite_logprobs" in found.flags


@pytest.mark.parametrize("wrong", [[True], [10**400], ["-0.5"], [-0.5, -0.5]])
def test_what_are_no_log_probs_counts_as_not_reported(wrong: object) -> None:
    call = call_of({"prompt_ids": [1], "response_ids": [2], "logprobs": wrong})
    assert call is not None
    assert call.logprobs is None


@pytest.mark.parametrize(
    ("version", "runs"), [(7, [VersionRun(7, 0, 1)]), (True, []), (2**70, []), (-1, []), ("7", [])]
)
def test_what_is_no_policy_version_is_none(version: object, runs: list[VersionRun]) -> None:
    call = call_of({"prompt_ids": [1], "response_ids": [2], POLICY_VERSION: version})
    assert call is not None
    assert call.policy_versions == runs
