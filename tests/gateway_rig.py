"""A gateway on a real socket, its engine scripted, its broker a list that acknowledges when told to."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, cast

import httpx
from fake_meter import FakeMeter
from openai import OpenAI

from spanloop.infra.http_server import App, HttpThread
from spanloop.infra.producer import OVERHEAD_BYTES, Ack
from spanloop.infra.scripted_engine import ScriptedEngine, Step, Whole
from spanloop.producers.gateway import Gateway, GatewayPolicy, create_app
from spanloop.producers.gateway_attempts import Attempts
from spanloop.producers.gateway_engines import Engines
from spanloop.producers.gateway_record import Recorder
from spanloop.producers.gateway_upstream import Upstream
from spanloop.schemas.errors import DeliveryFailed, RecordTooLarge
from spanloop.schemas.records import Attempt, Span, SpanBatch, Worker
from spanloop.schemas.serde import encode_body
from spanloop.schemas.spans import ModelCall
from spanloop.schemas.topics import BY_RECORD, Record

SECRET = "s3cret"
ROLLOUT, ATTEMPT = "ro-" + "1" * 32, "at-" + "2" * 32


@dataclass
class FakeBroker:
    """Keeps the records that our Producer would send; acknowledges when `gate` is set, not at all while `down`."""

    records: list[Record] = field(default_factory=list[Record])
    down: bool = False
    gate: threading.Event = field(default_factory=threading.Event)
    arrived: threading.Event = field(default_factory=threading.Event)

    def send(
        self, record: Record, *, on_delivery: Callable[[DeliveryFailed | None, Ack | None], None] | None = None
    ) -> None:
        del on_delivery
        size, most = len(encode_body(record)), BY_RECORD[type(record)].max_bytes
        if size + OVERHEAD_BYTES > most:
            raise RecordTooLarge(f"a record of {size} bytes, where {most} are taken")
        self.records.append(record)
        self.arrived.set()

    async def send_async(self, record: Record) -> Ack:
        self.send(record)
        if self.down:
            raise DeliveryFailed("topic 'spans': broker is down")
        while not self.gate.is_set():
            await asyncio.sleep(0.002)
        return Ack(0, len(self.records) - 1)

    def batches(self) -> list[SpanBatch]:
        return [record for record in self.records if isinstance(record, SpanBatch)]

    def spans(self) -> list[Span]:
        return [span for batch in self.batches() for span in batch.spans]

    def calls(self) -> list[ModelCall]:
        return [span.call for span in self.spans() if span.call is not None]


class Rig:
    """One gateway with its surroundings; the attempt ROLLOUT/ATTEMPT is live."""

    def __init__(self, policy: GatewayPolicy, *script: Step) -> None:
        self.engine = ScriptedEngine(*script)
        self.broker = FakeBroker()
        self.broker.gate.set()
        self.attempts = Attempts()
        self.engines = Engines(policy)
        self.meter = FakeMeter()
        self.read_to_end = 0
        self.when_read: list[Attempt] = []
        self.attempts.observe(Attempt(ROLLOUT, ATTEMPT, "preparing"))
        self.beat(self.engine.url)
        self._policy = policy
        self._thread = HttpThread(self._app)
        self.url = self._thread.url
        self.base_url = f"{self.url}/rollout/{ROLLOUT}/attempt/{ATTEMPT}/v1"
        self.http = httpx.Client(base_url=self.base_url, timeout=20, verify=False)  # no TLS here: spares loading CAs

    def beat(self, url: str, version: int | None = 3, worker_id: str = "") -> None:
        """An engine's heartbeat."""
        worker = Worker(worker_id or f"en-{url}", role="engine", policy="policy", policy_version=version, host=url)
        self.engines.observe(worker)

    def gone(self, url: str) -> None:
        """An engine's goodbye."""
        self.engines.observe(Worker(f"en-{url}", role="engine", host=url, alive=False))

    def end(self) -> None:
        """The attempt ends."""
        self.attempts.observe(Attempt(ROLLOUT, ATTEMPT, "ended"))

    def dispatch_unseen(self, rollout_id: str, attempt_id: str) -> None:
        """An attempt that lies in the log but was not read yet."""
        self.when_read.append(Attempt(rollout_id, attempt_id, "preparing"))

    def openai(self, retries: int = 0) -> OpenAI:
        return OpenAI(base_url=self.base_url, api_key="EMPTY", max_retries=retries, timeout=20)

    def post(self, **request: object) -> httpx.Response:
        return self.http.post("/chat/completions", json={"model": "policy", "messages": [USER], **request})

    def close(self) -> None:
        self.http.close()
        self._thread.close()
        self.engine.close()

    @asynccontextmanager
    async def _app(self) -> AsyncGenerator[App]:
        recorder = Recorder(self.broker, self._policy.ack_timeout_s)
        upstream = Upstream(self._policy, self.engines)
        gateway = Gateway(
            self._policy, SECRET, self.attempts, self.engines, upstream, recorder, self._caught_up, meter=self.meter
        )
        try:
            yield cast("App", create_app(gateway))
        finally:
            await upstream.close()

    async def _caught_up(self) -> None:
        self.read_to_end += 1
        for event in self.when_read:
            self.attempts.observe(event)


USER: dict[str, object] = {"role": "user", "content": "hi"}

MakeRig = Callable[..., Rig]  # rig(*script, **policy), the fixture of tests/producers/conftest.py
DEADLINE_S = 30.0


def choice(ids: list[int] | None = None, *, index: int = 0, **message: object) -> dict[str, Any]:
    """A choice as vLLM writes it where log-probs and ids were asked for."""
    out: dict[str, Any] = {
        "index": index,
        "message": {"role": "assistant", "content": "hello", **message},
        "finish_reason": "stop",
        "logprobs": None if ids is None else {"content": [{"token": "t", "logprob": -0.5} for _ in ids]},
    }
    return out if ids is None else {**out, "token_ids": ids}


def answer(*choices: dict[str, Any], **fields: object) -> Whole:
    top = {"id": "chatcmpl-1", "object": "chat.completion", "created": 7, "model": "policy"}
    return Whole({**top, "prompt_token_ids": [1, 2, 3], "choices": list(choices), **fields})
