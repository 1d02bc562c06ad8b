"""One chat completion through the gateway, from request to recorded and delivered answer.

who calls? ─▶ live? ─▶ read, prepare ─▶ engine ─┬─▶ whole: record, wait for the broker, answer
                                                └─▶ stream: pass on; hold the end; record, wait, release
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

from ..infra.clock import NS_PER_S, Clock, SystemClock
from ..infra.logs import bound
from ..infra.telemetry import OFF, Meter
from ..schemas import semconv
from ..schemas.errors import InvalidKey, Unavailable
from . import keys
from .gateway_answer import Answer, is_usage_chunk, strip
from .gateway_attempts import Attempts
from .gateway_call import Exchange, origin_of
from .gateway_engines import Engines
from .gateway_errors import Refused, ended_by, tells_error, told
from .gateway_http import (
    ClientGone,
    HeaderList,
    Receive,
    Scope,
    Send,
    Stream,
    Watch,
    headers_of,
    read_body,
    refuse,
    respond,
)
from .gateway_json import Object, dumps, loads_noting, obj
from .gateway_policy import GatewayPolicy
from .gateway_record import Recorder
from .gateway_request import prepare
from .gateway_stream import DONE, Hold, data_of, events, names_error
from .gateway_upstream import Reply, Upstream
from .outcome import OVERFLOW_STATUSES, tells_overflow

log = logging.getLogger(__name__)

PASSED_ON = ("x-request-id", "traceparent", "tracestate")
BAD_REQUEST, BAD_GATEWAY = 400, 502


@dataclass(frozen=True, slots=True)
class Gateway:
    """What every call shares."""

    policy: GatewayPolicy
    secret: str = field(repr=False)
    attempts: Attempts
    engines: Engines
    upstream: Upstream
    recorder: Recorder
    caught_up: Callable[[], Awaitable[None]]  # returns once `attempts` has read its log to the end as of the call
    clock: Clock = SystemClock()
    meter: Meter = OFF


class Chat:
    """The ASGI endpoint."""

    def __init__(self, gateway: Gateway) -> None:
        self._g = gateway
        self.running = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serves one call."""
        self.running += 1
        try:
            exchange, headers = await self._accept(scope, receive)
        except Refused as refused:
            await refuse(send, refused, [])
        except ClientGone:
            return
        else:
            await self._serve(exchange, headers, receive, send)
        finally:
            self.running -= 1

    async def _accept(self, scope: Scope, receive: Receive) -> tuple[Exchange, dict[str, str]]:
        policy = self._g.policy
        if self.running > policy.max_calls:
            raise Refused("too_many_calls", f"{policy.max_calls} calls are running, the gateway's limit; try again", 1)
        headers = headers_of(scope)
        rollout_id, attempt_id = identify(scope.get("path_params", {}), headers, self._g.secret)
        known = await self._is_live(rollout_id, attempt_id)
        prepared = prepare(await read_body(receive, headers, policy.max_request_bytes), policy)
        traceparent, state = headers.get(semconv.TRACEPARENT_HEADER, ""), headers.get("tracestate", "")
        origin = origin_of(rollout_id, attempt_id, traceparent, state, known=known)
        live = self._g.attempts.get(rollout_id, attempt_id) if known else None
        retry = live is not None and prepared.digest in live.failed
        return Exchange(origin, prepared, self._g.clock.now_ns(), retry), headers

    async def _is_live(self, rollout_id: str, attempt_id: str) -> bool:
        """True for a live attempt; an unknown one is refused only after the log was read to its end."""
        found = self._g.attempts.liveness(rollout_id, attempt_id)
        if found == "unknown":
            try:
                await asyncio.wait_for(self._g.caught_up(), self._g.policy.attempt_wait_s)
            except (asyncio.TimeoutError, Unavailable) as error:
                raise Refused(
                    "attempts_unread", f"attempt {attempt_id} is not known yet and the log cannot be read: {error}", 1
                ) from error
            found = self._g.attempts.liveness(rollout_id, attempt_id)
        if found != "live" and self._g.policy.unknown_attempts == "refuse":
            why = "has ended" if found == "ended" else "is unknown: it was never dispatched, or to another rollout"
            raise Refused("unknown_attempt", f"attempt {attempt_id} of rollout {rollout_id} {why}")
        return found == "live"

    async def _serve(self, x: Exchange, headers: dict[str, str], receive: Receive, send: Send) -> None:
        delivered = False
        watch = Watch(receive)
        try:
            with watch, bound(rollout_id=x.origin.rollout_id, attempt_id=x.origin.attempt_id):
                delivered = await self._exchange(x, headers, send)
        except asyncio.CancelledError:
            self._g.recorder.undelivered(x, "cancelled")
            if not watch.gone:
                raise
        finally:
            self._note(x, delivered)
            self._measure(x, delivered)

    def _measure(self, x: Exchange, delivered: bool) -> None:
        policy = (x.engine.policy if x.engine is not None else None) or "none"
        outcome = "delivered" if delivered else "failed"
        took_s = (self._g.clock.now_ns() - x.start_ns) / NS_PER_S
        self._g.meter.add("spanloop.gateway.calls", policy=policy, outcome=outcome)
        self._g.meter.add("spanloop.gateway.duration", took_s, policy=policy, outcome=outcome)

    def _note(self, x: Exchange, delivered: bool) -> None:
        live = self._g.attempts.get(x.origin.rollout_id, x.origin.attempt_id)
        if live is not None and (delivered or x.may_be_sampled):
            (live.failed.discard if delivered else live.failed.add)(x.prepared.digest)

    async def _exchange(self, x: Exchange, headers: dict[str, str], send: Send) -> bool:
        """Asks an engine and answers; True where the whole answer went out."""
        stream = Stream(send)
        reply: Reply | None = None
        try:
            passed = {name: headers[name] for name in PASSED_ON if name in headers}
            reply = await self._g.upstream.call(x, passed, self._floor(x))
            x.http_status = reply.status
            if reply.status >= BAD_REQUEST:
                return await self._pass_error(x, reply, await reply.body(), send)
            stream.headers = [*self._headers(x), *reply.passed_headers()]
            return await (self._stream(x, reply, stream) if reply.streams else self._whole(x, reply, send))
        except Refused as refused:
            await self._fail(x, refused, stream, send)
            return False
        except Exception as error:  # the entry point of a call: whatever failed here, its span is written
            log.exception("a call of attempt %s failed in the gateway", x.origin.attempt_id)
            x.answer = Answer()
            await self._fail(x, Refused("internal_error", f"the gateway failed: {told(error)}"), stream, send)
            return False
        finally:
            if reply is not None:
                reply.close()

    async def _whole(self, x: Exchange, reply: Reply, send: Send) -> bool:
        body = await reply.body()
        part, _ = _parse(body)
        if tells_error(part):
            return await self._pass_error(x, reply, body, send)
        x.answer.add(part)
        _check_choices(x)
        await self._record(x)
        strip(part, x.prepared)
        await respond(send, reply.status, dumps(part), [*self._headers(x), *reply.passed_headers()])
        return True

    async def _stream(self, x: Exchange, reply: Reply, stream: Stream) -> bool:
        hold, held = Hold(), bytearray()
        async for batch in events(reply.chunks(), self._g.policy.max_answer_bytes):
            passed = bytearray()
            for event in batch:
                seen = _seen(event, x, hold)
                if hold.begun:
                    held += seen
                else:
                    passed += seen
            if passed:
                await stream.write(bytes(passed))
            if hold.ended:
                break
        if not x.answer.finished(x.prepared.choices, told=hold.ended):
            raise Refused("upstream_broken", "the engine's stream ended before its answer did")
        _check_choices(x)
        await self._record(x)
        await stream.write(bytes(held), more=False)
        return True

    async def _record(self, x: Exchange) -> None:
        if x.engine is not None:
            x.version_end = self._g.engines.served_by(x.engine)
        await self._g.recorder.ahead(x)

    async def _pass_error(self, x: Exchange, reply: Reply, body: bytes, send: Send) -> bool:
        """The engine's refusal goes to the client as it is; one that it sent as an answer gets an error's status."""
        status, text = reply.status, body.decode(errors="replace")
        x.overflow = (status < BAD_REQUEST or status in OVERFLOW_STATUSES) and tells_overflow(text)
        if status < BAD_REQUEST:
            status = BAD_REQUEST if x.overflow else BAD_GATEWAY
        x.error = "context_overflow" if x.overflow else f"HTTP {reply.status}: {text[:500]}"
        await self._g.recorder.failed(x)
        extra = [*self._headers(x), *reply.passed_headers()]
        await respond(send, status, body, extra, reply.content_type)
        return False

    async def _fail(self, x: Exchange, refused: Refused, stream: Stream, send: Send) -> None:
        if x.error is None:  # else the recorder has already told
            x.error = f"{refused.code}: {refused.message}"
            x.overflow = refused.code == "context_overflow"
            await self._g.recorder.failed(x)
        if stream.started:
            await stream.write(refused.event(), more=False)
        else:
            await refuse(send, refused, self._headers(x))

    def _floor(self, x: Exchange) -> int | None:
        """The lowest policy version the attempt may be served with."""
        live = self._g.attempts.get(x.origin.rollout_id, x.origin.attempt_id)
        return None if live is None else live.pins.get(x.prepared.model)

    def _headers(self, x: Exchange) -> HeaderList:
        out = [(semconv.SPAN_ID_HEADER.encode(), x.span_ids[0].encode())]
        if (runs := [run for c in x.answer.choices.values() for run in c.versions]) or x.version_start is not None:
            version = runs[-1].version if runs else x.version_start
            out.append((semconv.POLICY_VERSION_HEADER.encode(), str(version).encode()))
        return out


def identify(path_params: Object, headers: dict[str, str], secret: str) -> tuple[str, str]:
    """(rollout_id, attempt_id) of a call, by its path or its key. Raises Refused(invalid_key)."""
    bearer = _bearer(headers.get("authorization", "")) or headers.get("x-api-key", "")
    by_path = (str(path_params.get("rollout_id", "")), str(path_params.get("attempt_id", "")))
    if all(by_path) and not keys.is_key(bearer):
        return by_path
    try:
        by_key = keys.verify(secret, bearer)
    except InvalidKey as error:
        raise Refused("invalid_key", f"{error}; or use the base URL /rollout/ID/attempt/ID/v1") from error
    if all(by_path) and by_path != by_key:
        raise Refused("invalid_key", f"the key is for attempt {by_key[1]}, the path for {by_path[1]}")
    return by_key


def _bearer(header: str) -> str:
    scheme, _, token = header.strip().partition(" ")
    return token.strip() if scheme.lower() == "bearer" else header.strip()


def _parse(body: bytes) -> tuple[Object, bool]:
    try:
        parsed, strict = loads_noting(body)
    except ValueError as error:
        raise Refused("upstream_broken", f"the engine's answer cannot be read as JSON: {error}") from error
    part = obj(parsed)
    if not part:
        raise Refused("upstream_broken", f"the engine's answer is no JSON object: {body[:100]!r}")
    return part, strict


def _check_choices(x: Exchange) -> None:
    if not x.answer.choices:
        raise Refused("upstream_broken", "the engine's answer has no choices")


def _seen(event: bytes, x: Exchange, hold: Hold) -> bytes:
    """An event as the agent is to see it; b"" for one that only we asked for."""
    data = data_of(event)
    if data is None and not names_error(event):
        return event
    if data == DONE:
        hold.begun = hold.ended = True
        return event
    if data is None or names_error(event):
        raise ended_by(data or event)
    chunk, strict = _parse(data)
    if tells_error(chunk):
        raise ended_by(data)
    x.answer.add(chunk)
    hold.starts_at(chunk)
    if is_usage_chunk(chunk) and not x.prepared.wants_usage:
        return b""
    changed = strip(chunk, x.prepared)
    return event if strict and not changed else b"data: " + dumps(chunk) + b"\n\n"
