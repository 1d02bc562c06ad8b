"""Write-ahead capture: nothing complete reaches the agent before the broker has it."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import httpx
import pytest
from gateway_rig import DEADLINE_S, MakeRig
from openai import InternalServerError
from waiting import until

from spanloop.infra.scripted_engine import Whole
from spanloop.schemas.records import DeadLetter, SpanBatch
from spanloop.schemas.serde import decode_body, schema_json

ANSWER = Whole({
    "id": "c", "model": "policy", "prompt_token_ids": [1],
    "choices": [{
        "index": 0, "message": {"role": "assistant", "content": "a"}, "finish_reason": "stop", "token_ids": [2],
    }],
})  # fmt: skip


def in_background(work: Callable[[], Any]) -> tuple[threading.Thread, list[Any]]:
    results: list[Any] = []
    thread = threading.Thread(target=lambda: results.append(work()))
    thread.start()
    return thread, results


def test_an_answer_waits_for_the_brokers_acknowledgement(rig: MakeRig) -> None:
    r = rig(ANSWER)
    r.broker.gate.clear()
    thread, results = in_background(r.post)
    until(r.broker.arrived.is_set)
    assert results == []
    r.broker.gate.set()
    thread.join(DEADLINE_S)
    assert results[0].status_code == 200
    assert [call.delivered for call in r.broker.calls()] == [True]


def test_without_acknowledgement_the_call_fails_and_a_correction_follows(rig: MakeRig) -> None:
    r = rig(ANSWER)
    r.broker.down = True
    with pytest.raises(InternalServerError, match="withheld") as caught:
        r.openai().chat.completions.create(model="policy", messages=[{"role": "user", "content": "hi"}])
    assert caught.value.status_code == 503
    first, second = r.broker.spans()
    assert first.span_id == second.span_id
    assert second.sequence > first.sequence
    assert [call.delivered for call in r.broker.calls()] == [True, False]
    assert r.broker.calls()[0].response_ids == r.broker.calls()[1].response_ids
    assert (first.status, second.status) == ("ok", "error")
    assert r.broker.batches()[0].producer_id == r.broker.batches()[1].producer_id


def test_an_acknowledgement_that_takes_too_long_fails_the_call(rig: MakeRig) -> None:
    r = rig(ANSWER, ack_timeout_s=0.05)
    r.broker.gate.clear()
    got = r.post()
    assert (got.status_code, got.json()["error"]["code"], got.headers["retry-after"]) == (503, "not_recorded", "1")
    assert [call.delivered for call in r.broker.calls()] == [True, False]


def test_a_client_that_goes_while_the_answer_is_held_is_corrected_to_undelivered(rig: MakeRig) -> None:
    r = rig(ANSWER)
    r.broker.gate.clear()
    with pytest.raises(httpx.ReadTimeout):
        httpx.post(
            f"{r.base_url}/chat/completions",
            json={"model": "policy", "messages": [{"role": "user", "content": "hi"}]},
            timeout=httpx.Timeout(DEADLINE_S, read=0.3),
        )
    until(lambda: len(r.broker.records) == 2)
    assert [call.delivered for call in r.broker.calls()] == [True, False]
    assert r.broker.spans()[1].status_message == "cancelled"


def test_the_same_request_after_a_failure_is_marked_and_another_is_not(rig: MakeRig) -> None:
    r = rig(Whole({"error": {"message": "no"}}, 500), ANSWER)
    r.post()
    r.post(temperature=0.5)
    r.post()
    r.post()
    assert [call.client_retry for call in r.broker.calls()] == [False, False, True, False]


def test_sequences_rise_over_all_calls(rig: MakeRig) -> None:
    r = rig(ANSWER)
    for _ in range(3):
        r.post()
    assert [span.sequence for span in r.broker.spans()] == [0, 1, 2]
    assert [batch.first_sequence for batch in r.broker.batches()] == [0, 1, 2]


def test_a_call_of_an_unknown_attempt_is_served_into_no_rollout_where_the_policy_says_so(rig: MakeRig) -> None:
    # GW-16
    r = rig(ANSWER, unknown_attempts="serve")
    body = {"model": "policy", "messages": [{"role": "user", "content": "hi"}]}
    assert httpx.post(f"{r.url}/rollout/ro-9/attempt/at-9/v1/chat/completions", json=body).status_code == 200
    (letter,) = r.broker.records
    assert isinstance(letter, DeadLetter)
    assert (letter.reason, letter.key, letter.topic) == ("unknown_attempt", b"ro-9", "spans")
    kept = decode_body(SpanBatch, letter.raw or b"", schema_json(SpanBatch))
    assert (kept.rollout_id, kept.attempt_id, len(kept.spans)) == ("ro-9", "at-9", 1)


def test_a_late_call_of_an_ended_attempt_is_refused_without_reading_on(rig: MakeRig) -> None:
    # GW-16
    r = rig(ANSWER)
    r.end()
    got = r.post()
    assert (got.status_code, got.json()["error"]["code"]) == (404, "unknown_attempt")
    assert "has ended" in got.json()["error"]["message"]
    assert r.read_to_end == 0
    assert r.broker.records == []


def test_an_attempt_found_by_reading_on_is_served(rig: MakeRig) -> None:
    r = rig(ANSWER)
    r.dispatch_unseen("ro-9", "at-9")
    body = {"model": "policy", "messages": [{"role": "user", "content": "hi"}]}
    assert httpx.post(f"{r.url}/rollout/ro-9/attempt/at-9/v1/chat/completions", json=body).status_code == 200
    assert r.read_to_end == 1
    assert r.broker.batches()[0].rollout_id == "ro-9"
