"""The whole service on an embedded broker: topics in, spans out, stop and failure."""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Generator
from contextlib import contextmanager
from typing import Any

import httpx
import pytest
from gateway_rig import DEADLINE_S
from in_thread import in_thread
from openai import APIError, NotFoundError, OpenAI
from waiting import until

from spanloop.infra.embedded_broker import EmbeddedBroker
from spanloop.infra.http_server import bind, url_of
from spanloop.infra.kafka import Message, Reader
from spanloop.infra.producer import Ack, Producer
from spanloop.infra.registry import Registry
from spanloop.infra.scripted_engine import ScriptedEngine, Streamed, Whole
from spanloop.infra.settings import Settings
from spanloop.producers import gateway_follow, keys
from spanloop.producers.gateway import GatewayPolicy, GatewayService
from spanloop.schemas.errors import ConfigError, DeliveryFailed, TooManyDeadLetters, Unavailable
from spanloop.schemas.records import Attempt, DeadLetter, Reward, SpanBatch, Worker
from spanloop.schemas.serde import Decoder
from spanloop.schemas.topics import ATTEMPTS, DEAD_LETTERS, SPANS, partition_of

PRODUCE, TOPIC_AUTHORIZATION_FAILED = 0, 29  # of Kafka's protocol
HI: list[Any] = [{"role": "user", "content": "hi"}]
ANSWER = Whole({
    "id": "c", "object": "chat.completion", "created": 1, "model": "policy", "prompt_token_ids": [1],
    "choices": [{
        "index": 0, "message": {"role": "assistant", "content": "a"}, "finish_reason": "stop", "token_ids": [2],
    }],
})  # fmt: skip
TEXT: dict[str, Any] = {
    "id": "c",
    "model": "policy",
    "choices": [{"index": 0, "delta": {"content": "a"}, "token_ids": [2]}],
}
STOP: dict[str, Any] = {"choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]}


@contextmanager
def serving(settings: Settings, policy: GatewayPolicy | None = None) -> Generator[GatewayService]:
    """A running gateway; its stop is bounded and its failure raised."""
    service = GatewayService(settings, port=0, policy=policy)
    with in_thread(service, DEADLINE_S):
        assert service.ready.wait(DEADLINE_S)
        yield service


def fixed(engine: ScriptedEngine) -> GatewayPolicy:
    return GatewayPolicy(upstream_url=engine.url)


@pytest.fixture
def producer(embedded_settings: Settings) -> Generator[Producer]:
    found = Producer(embedded_settings, "test")
    yield found
    found.close()


def read(settings: Settings, topic: str) -> list[Message]:
    """All records of a topic as of now."""
    reader = Reader(settings, "test")
    try:
        reader.assign_topics([t for t in (SPANS, DEAD_LETTERS, ATTEMPTS) if t.name == topic])
        ends, out = reader.ends(), list[Message]()
        while not reader.reached(ends):
            out += reader.poll(timeout_s=0.05)
        return out
    finally:
        reader.close()


def batches(settings: Settings) -> list[tuple[Message, SpanBatch]]:
    registry = Registry(settings.registry_url)
    decoder = Decoder(registry)
    try:
        return [(m, decoder.decode(SpanBatch, m.value or b"")) for m in read(settings, "spans")]
    finally:
        registry.close()


def client(url: str) -> OpenAI:
    return OpenAI(base_url=url, api_key="EMPTY", max_retries=0, timeout=DEADLINE_S)


def path(service: GatewayService, rollout_id: str = "ro-1", attempt_id: str = "at-1") -> str:
    return f"{service.url}/rollout/{rollout_id}/attempt/{attempt_id}/v1"


def test_a_call_is_in_the_log_before_anything_the_agent_writes_after_it(
    embedded_settings: Settings, producer: Producer
) -> None:
    with ScriptedEngine(ANSWER) as engine, serving(embedded_settings) as service:
        producer.send_wait(Worker("en-1", role="engine", policy="policy", policy_version=5, host=engine.url))
        for attempt in range(8):
            rollout_id, attempt_id = f"ro-{attempt}", f"at-{attempt}"
            producer.send_wait(Attempt(rollout_id, attempt_id, "preparing", pins={"policy": 5}))
            got = client(path(service, rollout_id, attempt_id)).chat.completions.create(model="policy", messages=HI)
            assert got.choices[0].message.content == "a"
            after: Ack = producer.send_wait(SpanBatch(rollout_id, attempt_id, "agent"))
            own = [m for m, batch in batches(embedded_settings) if batch.rollout_id == rollout_id and batch.spans]
            assert [(m.partition, m.offset < after.offset) for m in own] == [(after.partition, True)]
            assert after.partition == partition_of(rollout_id, embedded_settings.partitions)
    calls = [batch.spans[0].call for _, batch in batches(embedded_settings) if batch.spans]
    assert [(c.policy_versions[0].version, c.engine) for c in calls if c is not None] == [(5, "en-1")] * 8


def test_attempts_come_and_go_with_the_log(embedded_settings: Settings, producer: Producer) -> None:
    # GW-16
    with (
        ScriptedEngine(ANSWER) as engine,
        serving(embedded_settings, GatewayPolicy(upstream_url=engine.url)) as service,
    ):
        agent = client(path(service))
        with pytest.raises(NotFoundError, match="never dispatched"):
            agent.chat.completions.create(model="policy", messages=HI)
        producer.send_wait(Attempt("ro-1", "at-1", "preparing"))
        agent.chat.completions.create(model="policy", messages=HI)
        producer.send_wait(Attempt("ro-1", "at-1", "ended"))

        def refused() -> bool:
            return httpx.post(f"{path(service)}/chat/completions", json={"messages": HI}).status_code == 404

        until(refused)
    assert {batch.attempt_id for _, batch in batches(embedded_settings)} == {"at-1"}


def test_a_minted_key_works_against_the_service(embedded_settings: Settings, producer: Producer) -> None:
    settings = embedded_settings.with_(secret="s")
    with ScriptedEngine(ANSWER) as engine, serving(settings, GatewayPolicy(upstream_url=engine.url)) as service:
        producer.send_wait(Attempt("ro-1", "at-1", "preparing"))
        agent = OpenAI(base_url=f"{service.url}/v1", api_key=keys.mint("s", "ro-1", "at-1"), max_retries=0)
        agent.chat.completions.create(model="policy", messages=HI)
    assert [batch.attempt_id for _, batch in batches(settings)] == ["at-1"]


def test_with_the_broker_down_no_answer_is_given_out_and_the_correction_follows_later(
    broker: EmbeddedBroker, embedded_settings: Settings, producer: Producer
) -> None:
    with ScriptedEngine(ANSWER, Streamed([TEXT, STOP, "[DONE]"])) as engine:
        policy = GatewayPolicy(ack_timeout_s=0.3, upstream_url=engine.url)
        with serving(embedded_settings, policy) as service:
            producer.send_wait(Attempt("ro-1", "at-1", "preparing"))
            until(lambda: httpx.get(f"{service.url}/health").json()["attempts"] == 1)
            broker.set_down()
            try:
                whole = httpx.post(f"{path(service)}/chat/completions", json={"messages": HI}, timeout=DEADLINE_S)
                with pytest.raises(APIError, match="withheld"):
                    list(client(path(service)).chat.completions.create(model="policy", messages=HI, stream=True))
            finally:
                broker.set_up()
            assert (whole.status_code, whole.json()["error"]["code"]) == (503, "not_recorded")
            until(lambda: len(batches(embedded_settings)) == 4)
    spans = [batch.spans[0] for _, batch in batches(embedded_settings)]
    delivered = [span.call.delivered for span in spans if span.call is not None]
    assert delivered == [True, False, True, False]
    assert (spans[0].span_id, spans[2].span_id) == (spans[1].span_id, spans[3].span_id)
    assert [span.sequence for span in spans] == [0, 1, 2, 3]


def test_a_stop_cuts_running_calls_and_records_them_as_undelivered(
    embedded_settings: Settings, producer: Producer
) -> None:
    never = threading.Event()
    with ScriptedEngine(Streamed([TEXT, never])) as engine:
        with serving(embedded_settings, GatewayPolicy(upstream_url=engine.url)) as service:
            producer.send_wait(Attempt("ro-1", "at-1", "preparing"))
            body = {"messages": HI, "stream": True}
            response = httpx.Client().send(
                httpx.Request("POST", f"{path(service)}/chat/completions", json=body), stream=True
            )
            lines = (line for line in response.iter_lines() if line)
            assert next(lines)
        with pytest.raises(httpx.RemoteProtocolError):
            next(lines)
        response.close()
    ((_, batch),) = batches(embedded_settings)
    assert [(span.status, span.call is not None and span.call.delivered) for span in batch.spans] == [("error", False)]


def test_a_bad_record_on_a_followed_topic_is_quarantined_and_the_next_is_read(
    embedded_settings: Settings, producer: Producer
) -> None:
    producer.client.produce(ATTEMPTS.full(embedded_settings.prefix), b"xyz", b"ro-0")
    producer.flush()
    producer.send_wait(Attempt("ro-1", "at-1", "preparing"))
    with (
        ScriptedEngine(ANSWER) as engine,
        serving(embedded_settings, GatewayPolicy(upstream_url=engine.url)) as service,
    ):
        assert httpx.post(f"{path(service)}/chat/completions", json={"messages": HI}).status_code == 200
    registry = Registry(embedded_settings.registry_url)
    letters = [Decoder(registry).decode(DeadLetter, m.value or b"") for m in read(embedded_settings, DEAD_LETTERS.name)]
    registry.close()
    assert [(letter.consumer, letter.reason, letter.raw) for letter in letters] == [("gateway", "bad_framing", b"xyz")]


def test_a_gateway_that_can_record_nothing_any_more_refuses_the_call_and_ends(
    broker: EmbeddedBroker, embedded_settings: Settings, producer: Producer
) -> None:
    producer.send_wait(Attempt("ro-1", "at-1", "preparing"))  # acknowledged before any is refused
    broker.refuse_next(PRODUCE, TOPIC_AUTHORIZATION_FAILED)
    with ScriptedEngine(ANSWER) as engine:
        service = GatewayService(embedded_settings, port=0, policy=fixed(engine))
        with in_thread(service, DEADLINE_S) as run:
            assert service.ready.wait(DEADLINE_S)
            got = httpx.post(f"{path(service)}/chat/completions", json={"messages": HI}, timeout=DEADLINE_S)
            assert (got.status_code, got.json()["error"]["code"]) == (503, "not_recorded")
            until(lambda: run.raised)
            error = run.raised.pop()
    assert isinstance(error, DeliveryFailed)
    assert f"refuses producer gateway on topic {embedded_settings.prefix}-spans: " in str(error)


class Away:
    """A registry that went away after the gateway had asked it for its ids."""

    def schema(self, schema_id: int | str) -> str:
        raise Unavailable(f"schema {schema_id} cannot be asked for")

    def close(self) -> None:
        """Nothing to close."""


def test_a_gateway_that_cannot_catch_up_stops_when_told_to(
    embedded_settings: Settings, producer: Producer, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def away(_: Settings) -> Away:
        return Away()

    monkeypatch.setattr(gateway_follow, "connect", away)
    producer.send_wait(Attempt("ro-1", "at-1", "preparing"))
    service = GatewayService(embedded_settings, port=0)
    with in_thread(service, DEADLINE_S):
        until(lambda: "waits at offset 0" in caplog.text)
    assert not service.ready.is_set()


def test_a_gateway_that_fails_before_it_has_caught_up_says_why(embedded_settings: Settings, producer: Producer) -> None:
    for _ in range(3):
        producer.client.produce(ATTEMPTS.full(embedded_settings.prefix), b"xyz", b"ro-0")
    producer.flush()
    service = GatewayService(embedded_settings.with_(dlq_limit=1), port=0)
    with pytest.raises(TooManyDeadLetters):
        service.run(threading.Event())


def test_a_taken_port_is_named(embedded_settings: Settings) -> None:
    with bind("127.0.0.1", 0) as taken:
        port = int(url_of(taken).rpartition(":")[2])
        with pytest.raises(ConfigError, match=str(port)):
            GatewayService(embedded_settings, port=port)


def test_as_a_process_it_serves_and_stops_on_sigterm(embedded_settings: Settings, producer: Producer) -> None:
    with bind("127.0.0.1", 0) as free:
        url = url_of(free)
    command = [sys.executable, "-m", "spanloop.producers.gateway", "--port", url.rpartition(":")[2]]
    process = subprocess.Popen(command, env={"PATH": "/usr/bin", **embedded_settings.environment()})
    try:

        def healthy() -> bool:
            try:
                return httpx.get(f"{url}/health").status_code == 200
            except httpx.ConnectError:
                assert process.poll() is None, "the gateway ended"
                return False

        until(healthy)
        process.terminate()
        assert process.wait(DEADLINE_S) == 0
    finally:
        process.kill()
        process.wait()
    assert isinstance(producer, Producer)


def test_a_reward_can_be_given_to_the_span_that_the_header_names(
    embedded_settings: Settings, producer: Producer
) -> None:
    with (
        ScriptedEngine(ANSWER) as engine,
        serving(embedded_settings, GatewayPolicy(upstream_url=engine.url)) as service,
    ):
        producer.send_wait(Attempt("ro-1", "at-1", "preparing"))
        got = httpx.post(f"{path(service)}/chat/completions", json={"messages": HI})
    reward = Reward("rw-1", "ro-1", scope="step", value=1.0, span_id=got.headers["x-spanloop-span-id"])
    ((_, batch),) = batches(embedded_settings)
    assert [span.span_id for span in batch.spans] == [reward.span_id]
