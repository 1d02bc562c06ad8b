"""What ClickHouse shows of what was sent twice, late, with a wrong clock, or as no number."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
from events import Bench, batch, end, llm, rew, span, span_id
from sink_rig import T0_NS, Lab

from spanloop.producers.attributes import encode
from spanloop.schemas.packed import pack_ids, pack_logprobs, unpack_logprobs
from spanloop.schemas.records import ModelCall, Reward, SpanBatch, Trajectory, Usage


def assembled(*records: SpanBatch | Reward) -> list[Trajectory]:
    """Every revision that the assembler makes of these."""
    bench = Bench()
    bench.give(*records)
    return bench.trajectories()


def test_a_hundred_spans_inserted_three_times_are_a_hundred_of_their_tokens(lab: Lab) -> None:  # CH-1
    call = ModelCall(request="{}", response_ids=pack_ids([7, 8, 9]), usage=Usage(input=2, output=3))
    spans = [lab.span(f"s{i:03}", sequence=i, call=call) for i in range(100)]
    first = lab.message(lab.batch(*spans))
    for offset in (0, 1, 2):  # sent three times: three records, so no insert is taken for a repeated one
        lab.sink().write([replace(first, offset=offset)])
    assert lab.one("SELECT count() FROM v_spans") == 100
    assert lab.rows("SELECT sum(input_tokens), sum(output_tokens) FROM v_calls") == [(200, 300)]
    assert lab.one("SELECT sum(records) FROM v_audit") == 3


def test_a_reward_event_sent_twice_counts_once_and_two_events_count_twice(lab: Lab) -> None:  # CA-9
    one, other = rew(0.3, "s1"), rew(0.5, "s1", rid="rw-2")
    lab.store(one, one)
    lab.store(one, other)
    assert lab.rows("SELECT reward_id, value FROM v_rewards ORDER BY reward_id") == [("rw-1", 0.3), ("rw-2", 0.5)]
    assert lab.one("SELECT sum(value) FROM v_rewards") == 0.8


def test_the_average_reward_of_a_run_is_over_what_are_numbers(lab: Lab) -> None:  # CH-5, CA-2
    attempts: list[Trajectory] = []
    logprobs = [float("-inf"), float("nan")]
    for i, value in enumerate((1.0, float("nan"), 0.0, 0.0)):
        attempt = f"at-{i}"
        call = llm("s1", [1], [2, 3], lp=logprobs, attrs={"k": None})
        records = (batch(call, attempt=attempt, begin=True, end=end()), rew(value, rid=f"rw-{i}", attempt=attempt))
        attempts += assembled(*records)
        lab.store(*records)
    lab.store(*attempts)
    assert lab.one("SELECT avg(final_reward) FROM v_trajectories WHERE run_id = 'run'") == 1 / 3
    assert lab.one("SELECT count() FROM v_trajectories WHERE final_reward IS NULL") == 1
    assert lab.one("SELECT avg(value) FROM v_rewards") == 1 / 3
    assert lab.rows("SELECT reward_id FROM v_rewards WHERE NOT is_finite") == [("rw-1",)]
    stored = unpack_logprobs(bytes.fromhex(lab.one("SELECT hex(logprobs) FROM v_calls LIMIT 1")))
    assert pack_logprobs(stored) == pack_logprobs(logprobs)


def test_a_clock_that_is_behind_is_kept_as_it_was_and_no_duration_is_negative(lab: Lab) -> None:  # TR-4
    root, child = span("s0", None, 0, 1000), llm("s1", [1], [2], parent="s0", start=-500, end=-200)
    records = (batch(root, begin=True), batch(child, producer="b"), rew(1.0, created=1100), batch(end=end()))
    lab.store(*records, *assembled(*records))
    found = lab.rows("SELECT span_id, start_ns, end_ns, duration_ns FROM v_spans")
    assert {name: times for name, *times in found} == {
        span_id("s0"): [T0_NS, T0_NS + 1_000_000_000, 1_000_000_000],
        span_id("s1"): [T0_NS - 500_000_000, T0_NS - 200_000_000, 300_000_000],
    }
    assert lab.one("SELECT created_ns FROM v_rewards") == T0_NS + 1_100_000_000
    assert lab.rows("SELECT flags, row_count, final_reward FROM v_trajectories") == [(["skew"], 1, 1.0)]


def test_of_a_retried_rollout_the_final_attempt_counts_and_the_first_is_kept(lab: Lab) -> None:  # SP-7
    marker = end("timeout", final=False, failure_class="infra")
    records = (
        batch(llm("s1", [1], [2]), begin=True),
        batch(end=marker, producer="controller"),
        batch(llm("s2", [1], [3]), attempt="at-2", begin=True),
        rew(1.0, rid="rw-2", attempt="at-2"),
        batch(attempt="at-2", end=end()),
        rew(0.0),
        batch(end=end()),
    )
    lab.store(*records, *assembled(*records))
    found = lab.rows("SELECT attempt_id, status, final, final_reward FROM v_trajectories ORDER BY attempt_id")
    assert found == [("at-1", "timeout", False, 0.0), ("at-2", "succeeded", True, 1.0)]
    assert lab.one("SELECT count() FROM ends") == 3  # batches without an end marker leave none
    assert lab.rows("SELECT attempt_id, status FROM v_ends ORDER BY attempt_id") == [
        ("at-1", "timeout"),
        ("at-2", "succeeded"),
    ]


def test_a_reward_a_day_after_the_end_is_a_new_revision_and_the_old_one_stays(lab: Lab) -> None:  # CA-11
    day_ms = 24 * 3600 * 1000
    first = (batch(llm("s1", [1], [2]), begin=True), batch(end=end()))
    late = rew(1.0, created=day_ms)
    lab.store(*first, *assembled(*first))
    assert lab.rows("SELECT revision, final_reward FROM v_trajectories") == [(1, None)]
    lab.store(late, assembled(*first, late)[-1])
    assert lab.rows("SELECT revision, final_reward FROM v_trajectories") == [(2, 1.0)]
    assert lab.rows("SELECT revision FROM trajectories FINAL ORDER BY revision") == [(1,), (2,)]


def test_a_reward_of_several_dimensions_counts_by_its_primary_one(lab: Lab) -> None:  # CA-12
    reward = Reward("rw-1", "ro-1", "at-1", dimensions={"acc": 1.0, "cost": -0.2, "fmt": math.nan}, primary="acc")
    lab.store(reward)
    assert lab.rows("SELECT value, is_finite, nonfinite_dimensions FROM v_rewards") == [(1.0, True, ["fmt"])]
    assert lab.rows("SELECT dimensions['acc'], dimensions['cost'] FROM v_rewards") == [(1.0, -0.2)]


def test_bytes_that_are_no_utf8_are_replaced_and_marked(lab: Lab) -> None:  # PS-4
    lab.store(lab.batch(lab.span(attributes=encode({"raw": b"\xff\xfeabc"})[0])))
    assert lab.one("SELECT attributes FROM v_spans") == {"raw": "\ufffd\ufffdabc", "raw.lossy": "true"}


def test_a_null_and_a_nested_attribute_as_the_sdk_sends_them(lab: Lab) -> None:  # PS-1, PS-2
    sent = {"gen_ai.prompt.0.content": None, "k": 1, "tool.args": {"a": [1, {"b": None}]}}
    lab.store(lab.batch(lab.span(attributes=encode(sent)[0])))
    nested = {"tool.args": '{"a":[1,{"b":null}]}', "tool.args.type": "json"}
    assert lab.one("SELECT attributes FROM v_spans") == {"k": "1", **nested}
    assert lab.one("SELECT attributes['gen_ai.prompt.0.content'] FROM v_spans") == ""


@pytest.mark.parametrize("text", ['{"loss":NaN,"step":3}', '{"a":"\\ud800"}', "[1]", '"a"', "no JSON"])
def test_attributes_that_are_no_json_object_are_kept_as_the_text_that_they_are(lab: Lab, text: str) -> None:
    lab.store(lab.batch(lab.span(attributes=text)))
    assert lab.one("SELECT attributes FROM v_spans") == {"spanloop.unparsed": text}


@pytest.mark.parametrize("text", ["{}", "{ }", "", '{"k":null}'])
def test_a_span_without_attributes_has_none(lab: Lab, text: str) -> None:
    lab.store(lab.batch(lab.span(attributes=text)))
    assert lab.one("SELECT attributes FROM v_spans") == {}
