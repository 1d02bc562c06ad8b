"""The gateway: an OpenAI-compatible endpoint that binds every call to its attempt and records it before it answers.

    POST /rollout/{rollout_id}/attempt/{attempt_id}/v1/chat/completions    bound by its path
    POST /v1/chat/completions                                              bound by its key (`producers.keys`)
    GET  …/v1/models, /health

    python -m spanloop.producers.gateway --port 8700 [--upstream-url URL]

Start reading at `gateway_chat`, one call from end to end.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import replace
from typing import cast

from ..infra import process, telemetry
from ..infra.http_server import POLL_S, App, bind, serve, url_of
from ..infra.kafka import wait_for_broker
from ..infra.producer import Producer
from ..infra.quarantine import Quarantine
from ..infra.registry import wait_for_registry
from ..infra.settings import Settings
from ..schemas.errors import Unavailable
from .gateway_app import create_app
from .gateway_attempts import Attempts
from .gateway_chat import Gateway
from .gateway_engines import Engines
from .gateway_follow import Follower
from .gateway_policy import GatewayPolicy
from .gateway_record import Recorder
from .gateway_upstream import Upstream

__all__ = ["Gateway", "GatewayPolicy", "GatewayService", "create_app", "main"]

# A stop lets running calls finish for so long; then they are cut and recorded as undelivered.
GRACE_S = 1
FLUSH_S = 1.0


class GatewayService:
    """Serves until stopped; `ready` is set once calls are taken at `url`."""

    def __init__(
        self,
        settings: Settings,
        *,
        host: str = "127.0.0.1",
        port: int = 8700,
        upstream_url: str | None = None,
        policy: GatewayPolicy | None = None,
    ) -> None:
        """Binds its socket at once (port 0 = any), so that `url` is known before `run`. Raises ConfigError.

        `upstream_url` overrides the policy's.
        """
        self._settings = settings
        self._policy = policy or GatewayPolicy()
        if upstream_url is not None:
            self._policy = replace(self._policy, upstream_url=upstream_url)
        self._socket = bind(host, port)
        self.url = url_of(self._socket)
        self.ready = threading.Event()
        self._attempts = Attempts()
        self._engines = Engines(self._policy)
        self._meter = telemetry.meter(settings, "gateway")
        self._failed = threading.Event()
        self._failure: Exception | None = None

    def run(self, stop: threading.Event) -> None:
        """Blocks until `stop`. Raises Unavailable at start, DataLost, TooManyDeadLetters and DeliveryFailed later."""
        with contextlib.closing(self._socket):
            wait_for_broker(self._settings)
            if not wait_for_registry(self._settings, stop):
                return
            # A wait for queue space would stop the event loop and so every call: a full queue refuses at once instead.
            producer = Producer(self._settings.with_(max_block_s=0.0), "gateway", linger_ms=0)
            try:
                self._run(stop, producer)
            except Unavailable:
                if self._failure is None:  # else the follower's failure is why
                    raise
            finally:
                self._meter.close()
                producer.close(FLUSH_S)
        if self._failure is not None:
            raise self._failure
        producer.check()

    def _run(self, stop: threading.Event, producer: Producer) -> None:
        quarantine = Quarantine(producer, "gateway", self._settings.dlq_limit)
        follower = Follower(self._settings, self._attempts, self._engines, quarantine)
        follow_stop = threading.Event()
        thread = threading.Thread(target=self._follow, args=(follower, follow_stop), name="gateway-follower")
        thread.start()
        loop = process.new_loop()
        try:
            loop.run_until_complete(self._serve(stop, follower, producer))
        finally:
            follow_stop.set()
            thread.join()
            loop.run_until_complete(loop.shutdown_asyncgens())
            loop.close()

    def _follow(self, follower: Follower, stop: threading.Event) -> None:
        try:
            follower.run(stop)
        except Exception as error:  # noqa: BLE001 the entry point of a thread: `run` raises it
            self._failure = error
            self._failed.set()

    async def _serve(self, stop: threading.Event, follower: Follower, producer: Producer) -> None:
        upstream = Upstream(self._policy, self._engines)
        recorder = Recorder(producer, self._policy.ack_timeout_s)
        gateway = Gateway(
            policy=self._policy,
            secret=self._settings.secret,
            attempts=self._attempts,
            engines=self._engines,
            upstream=upstream,
            recorder=recorder,
            caught_up=follower.caught_up,
            meter=self._meter,
        )

        def stopped() -> bool:
            return stop.is_set() or self._failed.is_set() or producer.failure is not None

        try:
            if await _answered(follower.ask(), stopped):
                app = cast("App", create_app(gateway))
                await serve(app, self._socket, stopped, grace_s=GRACE_S, ready=self.ready.set)
        finally:
            await upstream.close()


async def _answered(asked: Future[None], stopped: Callable[[], bool]) -> bool:
    """Waits until what was asked is known; False where the wait was stopped. Raises what the answer raises."""
    while not asked.done():
        if stopped():
            return False
        await asyncio.sleep(POLL_S)
    asked.result()
    return True


def main(arguments: Sequence[str] | None = None) -> None:
    """Runs a gateway until SIGTERM or SIGINT."""
    parser = argparse.ArgumentParser(
        prog="python -m spanloop.producers.gateway", description="Records agents' model calls."
    )
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=8700)
    parser.add_argument(
        "--upstream-url", help="an OpenAI-compatible endpoint; default: the engines that send heartbeats"
    )
    parser.add_argument("--upstream-key", help="bearer token for it")
    parser.add_argument("--upstream-policy", help="the policy it serves; default: a foreign model")
    chosen = parser.parse_args(arguments)
    policy = GatewayPolicy(
        upstream_url=chosen.upstream_url, upstream_key=chosen.upstream_key, upstream_policy=chosen.upstream_policy
    )
    process.main(lambda settings: GatewayService(settings, host=chosen.host, port=chosen.port, policy=policy))


if __name__ == "__main__":
    main()
