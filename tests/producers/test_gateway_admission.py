"""Who may call, with what, and which engine takes it."""

from __future__ import annotations

import httpx
import pytest
from gateway_rig import MakeRig, Rig, answer, choice
from openai import InternalServerError, NotFoundError

from spanloop.producers import keys


def test_an_unknown_attempt_is_refused_only_after_the_log_was_read_to_its_end(rig: MakeRig) -> None:
    # GW-16
    r = rig(answer(choice([1])))
    got = httpx.post(
        f"{r.url}/rollout/ro-9/attempt/at-9/v1/chat/completions", json={"messages": [{"role": "user", "content": "hi"}]}
    )
    assert (got.status_code, got.json()["error"]["code"]) == (404, "unknown_attempt")
    assert r.read_to_end == 1
    assert r.engine.requests == []
    assert r.broker.records == []


def test_a_known_attempt_under_another_rollout_is_refused(rig: MakeRig) -> None:
    r = rig(answer(choice([1])))
    base = r.base_url.replace("ro-" + "1" * 32, "ro-other")
    with pytest.raises(NotFoundError, match="unknown"):
        r.openai().with_options(base_url=base).chat.completions.create(
            model="policy", messages=[{"role": "user", "content": "hi"}]
        )
    assert r.broker.records == []


def test_a_key_binds_a_call_to_its_attempt(rig: MakeRig) -> None:
    r = rig(answer(choice([1])))
    key = keys.mint("s3cret", "ro-" + "1" * 32, "at-" + "2" * 32)
    for scheme in ("bearer ", "BEARER  ", ""):
        headers = {"authorization": f"{scheme}{key}"}
        body = {"messages": [{"role": "user", "content": "hi"}]}
        assert httpx.post(f"{r.url}/v1/chat/completions", json=body, headers=headers).status_code == 200
    client = r.openai().with_options(base_url=f"{r.url}/v1", api_key=key)
    client.chat.completions.create(model="policy", messages=[{"role": "user", "content": "hi"}])
    assert r.broker.batches()[0].attempt_id == "at-" + "2" * 32
    assert "authorization" not in r.engine.headers[0]


@pytest.mark.parametrize("key", ["EMPTY", "sk-spanloop-x.y", keys.mint("other", "ro-1", "at-1")])
def test_a_key_that_was_not_signed_by_us_is_refused(rig: MakeRig, key: str) -> None:
    r = rig(answer(choice([1])))
    got = httpx.post(f"{r.url}/v1/chat/completions", json={}, headers={"authorization": f"Bearer {key}"})
    assert (got.status_code, got.json()["error"]["code"]) == (401, "invalid_key")


def test_a_key_of_one_attempt_does_not_open_anothers_path(rig: MakeRig) -> None:
    r = rig(answer(choice([1])))
    key = keys.mint("s3cret", "ro-other", "at-other")
    got = r.http.post("/chat/completions", json={}, headers={"authorization": f"Bearer {key}"})
    assert (got.status_code, got.json()["error"]["code"]) == (401, "invalid_key")


def test_without_an_engine_the_error_names_what_is_missing(rig: MakeRig) -> None:
    r = rig(answer(choice([1])), engine_wait_s=0.0)
    with pytest.raises(InternalServerError, match="no live engine serves model 'other'; there is policy version 3"):
        r.openai().chat.completions.create(model="other", messages=[{"role": "user", "content": "hi"}])
    (span,) = r.broker.spans()
    assert (span.status, span.call is not None and span.call.delivered) == ("error", False)


def test_a_call_moves_on_to_a_live_engine_when_one_cannot_be_reached(rig: MakeRig) -> None:
    r = rig(answer(choice([1])), retry_pause_s=0.0)
    dead = preferred(r)
    assert r.post().status_code == 200
    (call,) = r.broker.calls()
    assert (call.tries, call.engine) == (2, f"en-{r.engine.url}")
    assert dead != r.engine.url


def preferred(r: Rig) -> str:
    """Adds an engine that refuses connections and that the attempt would be given first."""
    for port in range(1, 100):
        r.beat(dead := f"http://127.0.0.1:{port}")
        if (chosen := r.engines.choose("at-" + "2" * 32, "policy", None)) is not None and chosen.url == dead:
            return dead
        r.gone(dead)
    raise AssertionError("no port was preferred")


def test_when_no_engine_can_be_reached_the_tries_are_bounded(rig: MakeRig) -> None:
    r = rig(answer(choice([1])), retry_pause_s=0.0, max_tries=3)
    r.gone(r.engine.url)
    r.beat("http://127.0.0.1:1")
    got = r.post()
    assert (got.status_code, got.json()["error"]["code"]) == (502, "upstream_broken")
    assert r.broker.calls()[0].tries == 3


@pytest.mark.parametrize(
    ("body", "status", "code"),
    [
        (b"{", 400, "invalid_request"),
        (b"[]", 400, "invalid_request"),
        (b'{"messages":[]}', 400, "invalid_request"),
        (b'{"messages":[{"role":"user","content":"hi"}],"n":0}', 400, "invalid_request"),
        (b'{"messages":[' + b"[" * 400 + b"]" * 400 + b"]}", 400, "invalid_request"),
        (b'{"messages":[{"role":"user","content":"' + b"x" * 2000 + b'"}]}', 413, "too_large"),
    ],
)
def test_a_bad_request_is_refused_in_openais_shape(rig: MakeRig, body: bytes, status: int, code: str) -> None:
    r = rig(answer(choice([1])), max_request_bytes=1000)
    got = r.http.post("/chat/completions", content=body)
    error = got.json()["error"]
    assert (got.status_code, error["code"]) == (status, code)
    assert set(error) == {"message", "type", "param", "code"}


def test_too_many_calls_at_once_are_refused(rig: MakeRig) -> None:
    r = rig(answer(choice([1])), max_calls=0)
    got = r.post()
    assert (got.status_code, got.headers["retry-after"], got.json()["error"]["code"]) == (429, "1", "too_many_calls")


@pytest.mark.parametrize("path", ["/v1/responses", "/v1/messages", "/nothing"])
def test_other_paths_are_refused_in_openais_shape(rig: MakeRig, path: str) -> None:
    got = httpx.post(rig(answer(choice([1]))).url + path, json={})
    assert (got.status_code, got.json()["error"]["code"]) == (404, "unknown_path")


def test_models_and_health_tell_what_is_there(rig: MakeRig) -> None:
    r = rig(answer(choice([1])))
    assert [model.id for model in r.openai().models.list()] == ["policy"]
    health = httpx.get(f"{r.url}/health").json()
    assert (health["status"], health["engines"], health["attempts"]) == ("ok", 1, 1)
