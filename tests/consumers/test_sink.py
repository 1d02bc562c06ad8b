from __future__ import annotations

import io
import json
import random
from collections.abc import Callable, Iterable
from dataclasses import replace
from importlib.resources import files
from itertools import pairwise
from typing import Any, cast

import fastavro
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from sink_rig import Lab

from spanloop.schemas.packed import pack_ids, pack_logprobs, unpack_logprobs
from spanloop.schemas.records import AttemptContext, AttemptEnd, ModelCall, Reward, Row, Segment, Trajectory, Usage
from spanloop.schemas.serde import (
    from_dict,
    parsed_schema,
    schema_json,
)
from spanloop.schemas.topics import TOPICS, Topic

# fastavro's stubs stop short
read_json = cast("Callable[[io.StringIO, Any], Iterable[Any]]", fastavro.json_reader)  # pyright: ignore[reportUnknownMemberType]


def llm(lab: Lab, span_id: str, response: list[int], **changes: Any) -> Any:
    call = ModelCall(
        request="{}",
        prompt_ids=pack_ids([1, 2]),
        response_ids=pack_ids(response),
        usage=Usage(input=2, output=len(response)),
    )
    return lab.span(span_id, call=replace(call, **changes.pop("call", {})), **changes)


# --- every topic


@pytest.mark.parametrize("topic", TOPICS.values(), ids=lambda t: t.name)
def test_the_example_record_of_every_topic_lands_in_its_table(lab: Lab, topic: Topic) -> None:
    example = (files("spanloop.schemas") / "avro" / "examples" / f"{topic.record.__name__}.json").read_text("utf-8")
    (value,) = read_json(io.StringIO(json.dumps(json.loads(example))), parsed_schema(schema_json(topic.record)))
    lab.store(from_dict(topic.record, value))  # pyright: ignore[reportArgumentType]  # fastavro's records are untyped
    table = "v_" + topic.name.replace("-", "_")
    if topic.name in ("assignments", "assemblies"):
        table = table.removeprefix("v_")
    assert lab.one(f"SELECT count() FROM {table}") == (len(value["spans"]) if topic.name == "spans" else 1)
    assert lab.letters.sent == []


# --- once, whatever is repeated


def test_the_same_hundred_spans_inserted_three_times_count_once(lab: Lab) -> None:  # CH-1
    spans = [llm(lab, f"s{i:03}", [7, 8, 9], sequence=i) for i in range(100)]
    messages = [lab.message(lab.batch(*spans[i : i + 10])) for i in range(0, 100, 10)]
    for cuts in ((10,), (10,), (3, 7)):  # as it was, the same again, and with other borders
        start = 0
        for size in cuts:
            lab.sink().write(messages[start : start + size])
            start += size
    assert lab.one("SELECT count() FROM v_spans") == 100
    assert lab.one("SELECT sum(output_tokens) FROM v_calls") == 300
    assert lab.one("SELECT count() FROM spans") < 300  # the second insert was dropped by its token


def test_a_span_closed_after_it_was_stored_open_shows_closed_whatever_came_first(lab: Lab) -> None:  # CH-2
    open_, closed = lab.span(sequence=1), lab.span(sequence=2, end=5, status="ok")
    first, second = lab.message(lab.batch(open_)), lab.message(lab.batch(closed))
    lab.sink().write([second])
    lab.sink().write([first])
    assert lab.rows("SELECT status, duration_ns FROM v_spans") == [("ok", 5_000_000)]
    lab.client.command("OPTIMIZE TABLE spans FINAL")
    assert lab.rows("SELECT status, duration_ns FROM v_spans") == [("ok", 5_000_000)]


@pytest.mark.parametrize("swapped", [False, True])
def test_of_one_span_id_with_two_contents_the_higher_sequence_counts(lab: Lab, swapped: bool) -> None:  # TR-6, TR-7
    messages = [
        lab.message(lab.batch(llm(lab, "s1", [10], sequence=1))),
        lab.message(lab.batch(llm(lab, "s1", [11], sequence=2))),
        lab.message(lab.batch(llm(lab, "s1", [11], sequence=2))),
    ]
    for message in reversed(messages) if swapped else messages:
        lab.sink().write([message])
    assert lab.rows("SELECT reinterpret(response_ids, 'Array(Int32)') FROM v_calls") == [([11],)]


@settings(max_examples=4, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(cuts=st.lists(st.integers(1, 39), max_size=4), seed=st.integers(0, 99))
def test_views_do_not_depend_on_how_batches_were_cut_or_repeated(lab: Lab, cuts: list[int], seed: int) -> None:
    prefix = f"ro-{random.Random(str((cuts, seed))).getrandbits(64):016x}"
    messages = [
        lab.message(lab.batch(lab.span(f"{i % 30:016x}", sequence=i, name=f"n{i}"), rollout_id=prefix))
        for i in range(40)
    ]
    borders = [0, *sorted(set(cuts)), 40]
    parts = [messages[a:b] for a, b in pairwise(borders)]
    again = random.Random(seed).sample(parts, k=len(parts))  # a crash before the commit: all of it once more
    for part in [*parts, messages[: borders[1]], *again]:
        lab.sink().write(part)
    expected = sorted((f"{i % 30:016x}", f"n{i}") for i in range(10, 40))
    assert sorted(lab.rows(f"SELECT span_id, name FROM v_spans WHERE rollout_id = '{prefix}'")) == expected


@pytest.mark.parametrize("in_another_partition", [False, True])
def test_the_newest_revision_is_the_one_row_of_an_attempt(lab: Lab, in_another_partition: bool) -> None:  # CH-14
    made, late = (
        Trajectory("ro-1", "at-1", n, f"d{n}", AttemptContext(run_id="r"), final_reward=reward)
        for n, reward in ((3, None), (4, 1.0))
    )
    newest, older = lab.message(late), lab.message(made)
    if in_another_partition:  # where its offset is lower says nothing
        newest = replace(newest, partition=2)
    lab.sink().write([newest])
    lab.sink().write([older])
    assert lab.rows("SELECT revision, final_reward FROM v_trajectories") == [(4, 1.0)]
    assert lab.one("SELECT count() FROM trajectories") == 2  # what was trained on can still be looked up


# --- exact values


def test_nanoseconds_read_back_exactly(lab: Lab) -> None:  # CH-3
    lab.store(lab.batch(lab.span(start_ns=1_760_000_000_123_456_789)))
    assert lab.one("SELECT start_ns FROM v_spans") == 1_760_000_000_123_456_789
    assert lab.one("SELECT toString(start) FROM v_spans") == "2025-10-09 08:53:20.123456789"


def test_a_span_that_ends_before_it_starts_has_a_negative_duration(lab: Lab) -> None:  # CH-12
    lab.store(lab.batch(lab.span(start=500, end=400)))
    assert lab.one("SELECT duration_ns FROM v_spans") == -100_000_000


def test_nulls_and_numbers_that_are_none_are_stored_and_averages_stay_finite(lab: Lab) -> None:  # CH-5
    logprobs = pack_logprobs([float("-inf"), float("nan")])
    lab.store(
        lab.batch(llm(lab, "s1", [1, 2], attributes='{"k":null}', call={"logprobs": logprobs})),
        Reward("rw-1", "ro-1", value=float("nan")),
        Reward("rw-2", "ro-1", value=0.5),
        Reward("rw-3", "ro-1", dimensions={"exact": 1.0}, primary="exact"),
        Reward("rw-4", "ro-1"),
    )
    rewards = lab.rows("SELECT reward_id, value, is_finite FROM v_rewards ORDER BY reward_id")
    assert rewards == [("rw-1", None, False), ("rw-2", 0.5, True), ("rw-3", 1.0, True), ("rw-4", None, True)]
    assert lab.one("SELECT avg(value) FROM v_rewards") == 0.75
    stored = unpack_logprobs(bytes.fromhex(lab.one("SELECT hex(logprobs) FROM v_calls")))
    assert stored[0] == float("-inf")
    assert stored[1] != stored[1]
    assert lab.one("SELECT mapContains(attributes, 'k') FROM v_spans") == 0


def test_a_null_attribute_is_absent_and_its_neighbours_stay(lab: Lab) -> None:  # PS-1
    lab.store(lab.batch(lab.span(attributes='{"gen_ai.prompt.0.content":null,"k":1}')))
    assert lab.one("SELECT attributes FROM v_spans") == {"k": "1"}
    assert lab.one("SELECT attributes['gen_ai.prompt.0.content'] FROM v_spans") == ""


def test_a_nested_attribute_is_its_canonical_json(lab: Lab) -> None:  # PS-2
    nested = '{"a":[1,{"b":null}]}'
    attributes = json.dumps({"tool.args": nested, "tool.args.type": "json"})
    lab.store(lab.batch(lab.span("s1", attributes=attributes), lab.span("s2", attributes=f'{{"tool.args":{nested}}}')))
    assert lab.rows("SELECT attributes['tool.args'] FROM v_spans ORDER BY span_id") == [(nested,), (nested,)]
    assert lab.one("SELECT attributes['tool.args.type'] FROM v_spans WHERE span_id = 's1'") == "json"


def test_a_step_that_is_no_model_call_has_no_tokens_and_no_ids(lab: Lab) -> None:
    lab.store(lab.batch(lab.span("s1"), llm(lab, "s2", [])))
    assert lab.rows("SELECT is_call, prompt_ids IS NULL, output_tokens FROM v_spans ORDER BY span_id") == [
        (False, 1, None),
        (True, 0, 0),
    ]


def test_the_first_end_marker_of_an_attempt_counts(lab: Lab) -> None:
    ends = [AttemptEnd("succeeded", 5, final=True), AttemptEnd("timeout", 9)]
    lab.store(*(lab.batch(end=end) for end in ends))
    assert lab.rows("SELECT status, end_ns, final FROM v_ends") == [("succeeded", 5, True)]
    assert lab.one("SELECT count() FROM v_spans") == 0


def test_rows_and_calls_of_a_trajectory_can_be_asked_one_by_one(lab: Lab) -> None:
    row = Row(pack_ids([1, 2, 3]), b"\0\1\1", pack_logprobs([None, -0.5, -0.25]), segments=[Segment(1, 3, 0)])
    lab.store(Trajectory("ro-1", "at-1", 1, "d", rows=[row, replace(row, truncated=True)]))
    rows = lab.rows("SELECT row, tokens, trained_tokens, truncated FROM v_trajectory_rows ORDER BY row")
    assert rows == [(0, 3, 2, False), (1, 3, 2, True)]
