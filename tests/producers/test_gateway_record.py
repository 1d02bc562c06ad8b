"""Write-ahead capture: nothing complete reaches the agent before the broker has it."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import httpx
import pytest
from gateway_rig import DEADLINE_S, MakeRig
from openai import APIStatusError, InternalServerError
from waiting import until

from spanloop.infra.scripted_engine import Streamed, Whole
from spanloop.schemas.records import DeadLetter, SpanBatch
from spanloop.schemas.serde import decode_body, schema_json
from spanloop.schemas.spans import Usage, VersionRun

MESSAGE = {"role": "assistant", "content": "a"}
CHOICE: dict[str, Any] = {"index": 0, "message": MESSAGE, "finish_reason": "stop", "token_ids": [2]}
BODY: dict[str, Any] = {"id": "c", "model": "policy", "prompt_token_ids": [1], "choices": [CHOICE]}
ANSWER = Whole(BODY)


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


HUGE: list[dict[str, Any]] = [
    {"usage": {"prompt_tokens": 2**63, "completion_tokens": 2**70}},
    {"choices": [{**CHOICE, "weight_versions": [{"version": 2**63, "start": 0, "end": 1}]}]},
    {"choices": [{**CHOICE, "weight_versions": [{"version": 1, "start": 0, "end": 2**31}]}]},
    {"choices": [{**CHOICE, "index": 2**40, "finish_reason": "st\ud83dop"}], "model": "m\ud83d"},
    {"choices": [{**CHOICE, "logprobs": {"content": [{"logprob": -(10**400)}]}}]},
]


@pytest.mark.parametrize("odd", HUGE)
def test_what_no_record_can_hold_costs_its_field_and_not_the_call(rig: MakeRig, odd: dict[str, Any]) -> None:
    r = rig(Whole({**BODY, **odd}))
    assert r.post().status_code == 200
    (call,) = r.broker.calls()
    assert call.delivered
    assert call.usage == Usage()
    assert call.policy_versions == [VersionRun(3, 0, 1)]
    assert (call.finish_reason or "")[:2] == "st"


@pytest.mark.parametrize("depth", [300, 5000])
@pytest.mark.parametrize("stream", [False, True])
def test_an_answer_nested_too_deep_is_refused_and_recorded(rig: MakeRig, depth: int, stream: bool) -> None:
    body = b'{"choices":[{"message":{"x":' + b"[" * depth + b"]" * depth + b"}}]}"
    r = rig(Streamed([b"data: " + body + b"\n\n"]) if stream else Whole(body))
    got = r.post(stream=stream)
    assert (got.status_code, got.json()["error"]["code"]) == (502, "upstream_broken")
    (span,) = r.broker.spans()
    assert span.status == "error"
    assert "more than 250 levels" in span.status_message


def test_an_image_that_no_record_could_hold_is_refused_before_any_engine_is_asked(rig: MakeRig) -> None:
    r = rig(ANSWER)
    url = "data:image/png;base64," + "A" * (17 << 20)
    with pytest.raises(APIStatusError, match="send less of it") as caught:
        r.openai(retries=2).chat.completions.create(
            model="policy",
            messages=[{"role": "user", "content": [{"type": "image_url", "image_url": {"url": url}}]}],
        )
    assert caught.value.status_code == 413
    assert (r.engine.requests, r.broker.records) == ([], [])


def test_an_answer_that_no_record_could_hold_is_refused_for_good_and_its_call_recorded(rig: MakeRig) -> None:
    r = rig(Whole({**BODY, "choices": [{**CHOICE, "message": {"content": "x" * (17 << 20)}}]}))
    with pytest.raises(APIStatusError, match="withheld") as caught:
        r.openai(retries=2).chat.completions.create(model="policy", messages=[{"role": "user", "content": "hi"}])
    assert (caught.value.status_code, len(r.engine.requests)) == (413, 1)
    (span,) = r.broker.spans()
    (call,) = r.broker.calls()
    assert (span.status, call.delivered, call.response, call.response_ids) == ("error", False, None, None)
    assert httpx.get(f"{r.url}/health").json()["unrecorded"] == 0


def test_a_broken_off_answer_that_no_record_could_hold_leaves_its_call(rig: MakeRig) -> None:
    chunk = {"choices": [{"index": 0, "delta": {"content": "x" * (17 << 20)}}]}
    r = rig(Streamed([chunk], cut=True))
    r.post(stream=True)
    (call,) = r.broker.calls()
    assert (call.delivered, call.response) == (False, None)
    assert httpx.get(f"{r.url}/health").json()["unrecorded"] == 0


def test_a_call_that_fails_in_the_gateway_itself_is_recorded(rig: MakeRig, monkeypatch: pytest.MonkeyPatch) -> None:
    r = rig(ANSWER)

    def broken(engine: object) -> int:
        raise RuntimeError(f"no version of {engine}")

    monkeypatch.setattr(r.engines, "served_by", broken)
    got = r.post()
    assert (got.status_code, got.json()["error"]["code"]) == (500, "internal_error")
    (span,) = r.broker.spans()
    assert (span.status, span.call is not None and span.call.delivered) == ("error", False)
    assert "no version of" in span.status_message
