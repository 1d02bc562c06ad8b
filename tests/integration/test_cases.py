"""Cases that go through several parts: their pure cores chained, without a broker."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import pytest
from events import Bench, batch, end, model_call
from gateway_rig import ATTEMPT, ROLLOUT, Rig, answer, choice
from sdk import FakeSender, bench, spool_of
from waiting import until

from spanloop.infra.scripted_engine import Step, Streamed, Whole
from spanloop.producers import context, emit_annotation, emit_message, operation, record, rollout
from spanloop.producers.context import Scope
from spanloop.producers.gateway import GatewayPolicy
from spanloop.schemas.packed import unpack_ids
from spanloop.schemas.records import Assignment, Limits, SpanBatch, Task, Trajectory
from spanloop.schemas.serde import encode_body
from spanloop.schemas.spans import Usage
from spanloop.streams.assembly import AssemblyRules
from spanloop.streams.messages import Policy

OVERFLOW = b'{"error":{"message":"maximum context length 4608, requested 6859","type":"BadRequestError","code":400}}'
TOOL_CALL = {"id": "c1", "function": {"name": "f", "arguments": '{"a":1}'}}
MIB = 1 << 20


@contextmanager
def gateway(*script: Step, **policy: Any) -> Generator[Rig]:
    made = Rig(GatewayPolicy(**policy), *script)
    try:
        yield made
    finally:
        made.close()


def ids(found: Trajectory) -> list[list[int]]:
    return [unpack_ids(row.token_ids) for row in found.rows]


def assembled(*records: SpanBatch, policy: Policy | None = None) -> Trajectory:
    """What the assembler makes of the rig's attempt."""
    made = Bench(policy or Policy())
    made.give(*records)
    return made.last(ATTEMPT)


def ended(*records: SpanBatch) -> Trajectory:
    """What the assembler makes of it once it ended."""
    return assembled(*records, batch(rollout=ROLLOUT, attempt=ATTEMPT, producer="worker", end=end()))


# --- SDK and gateway to trajectories


def test_parallel_agents_are_a_triplet_each_under_their_own_name() -> None:  # TR-1
    order = list(range(8))
    random.Random(7).shuffle(order)

    async def agent(n: int) -> None:
        async with operation(f"agent({n})", agent=f"agent({n})"):
            await asyncio.sleep(0.001 * (7 - n))
            async with operation(f"LLM({n})"):
                await asyncio.sleep(0)

    async def main() -> None:
        async with operation("s0"):
            await asyncio.gather(*(agent(n) for n in order))

    with record("ro-1", "at-1") as seen:
        asyncio.run(main())
    spans = [
        replace(s, call=model_call([int(s.name[4]), 100], [9])) if s.name.startswith("LLM") else s for s in seen.spans
    ]
    assert spans[-1].name == "s0"
    made = Bench()
    made.give(*(batch(s) for s in spans), batch(end=end(span_count=17)))
    found = made.last()
    assert sorted((ids(found)[k][0], row.agent_path) for k, row in enumerate(found.rows)) == [
        (n, f"agent({n})") for n in range(8)
    ]
    assert [s.name for s in spans if s.parent_span_id is None] == ["s0"]
    assert found.flags == ["unrewarded"]


def test_three_async_runs_of_a_worker_are_three_roots() -> None:  # TR-3
    @rollout
    async def agent(task: float) -> float:
        await asyncio.sleep(0)
        return float(task)

    with bench(agent, slots=1) as b:
        for n in range(3):
            b.accept(n, task_input=n)
            b.end(n)
        made = Bench()
        made.give(*b.sender.records)
    found = made.trajectories()
    assert [(t.attempt_id, t.final_reward, t.span_count) for t in found[-3:]] == [
        (f"at-{n}", float(n), 1) for n in range(3)
    ]
    assert [s.parent_span_id for s in b.sender.spans] == [None] * 3
    assert len({s.trace_id for s in b.sender.spans}) == 3


def test_a_stream_without_usage_is_a_valid_triplet() -> None:  # GW-1
    def chunk(text: str, token: int, **top: object) -> dict[str, Any]:
        return {"choices": [{"index": 0, "delta": {"content": text}, "token_ids": [token]}], **top}

    stop: dict[str, Any] = {"choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]}
    parts = [chunk("a", 10, prompt_token_ids=[1, 2]), chunk("b", 11), chunk("c", 12), stop, "[DONE]"]
    with gateway(Streamed(parts)) as r:
        assert r.post(stream=True).status_code == 200
        found = ended(*r.broker.batches())
        assert r.broker.calls()[0].usage == Usage()
    assert (ids(found), list(found.rows[0].mask)) == ([[1, 2, 10, 11, 12]], [0, 0, 1, 1, 1])


def test_a_tool_call_without_text_is_a_triplet_of_all_its_ids() -> None:  # GW-4
    with gateway(answer(choice(list(range(12)), content=None, tool_calls=[TOOL_CALL]))) as r:
        r.post()
        found = ended(*r.broker.batches())
    assert ids(found) == [[1, 2, 3, *range(12)]]


def test_a_call_that_was_tried_twice_upstream_is_one_triplet() -> None:  # GW-9
    with gateway(Whole({"error": "loading"}, 503), answer(choice([7])), retry_pause_s=0.0) as r:
        r.post()
        found = ended(*r.broker.batches())
        assert [call.tries for call in r.broker.calls()] == [2]
    assert (ids(found), found.span_count, len(found.calls)) == ([[1, 2, 3, 7]], 1, 1)


def test_an_empty_answer_and_one_without_ids_are_told_apart_to_the_end() -> None:  # SP-19
    with gateway(answer(choice([]), usage={"completion_tokens": 0}), answer(choice(None))) as r:
        r.post()
        r.post()
        found = ended(*r.broker.batches())
    assert ([c.excluded for c in found.calls], found.rows) == (["empty", "no_token_ids"], [])


# --- what an attempt that failed leaves


@pytest.mark.parametrize(("rule", "rows"), [("keep_partial", [[1, 2, 3, 7]]), ("drop", [])])
def test_a_prompt_that_grew_too_long_fails_the_attempt_and_leaves_what_came_before(
    rule: Any, rows: list[list[int]]
) -> None:  # GW-10, SP-8
    task = Task(ROLLOUT, "run", limits=Limits(max_attempts=2))
    with gateway(answer(choice([7])), Whole(OVERFLOW, 400)) as r:

        @rollout
        def agent(task: object) -> float:
            del task
            with r.openai(retries=2) as client:
                for _ in range(2):
                    client.chat.completions.create(model="policy", messages=[{"role": "user", "content": "hi"}])
            return 1.0

        with bench(agent) as b:
            b.attempts.accept(Assignment("wo-1", ATTEMPT, task=task, claim_s=30.0), task, 0.0)
            until(lambda: b.sender.end_of(ATTEMPT))
            records = [*r.broker.batches(), *b.sender.batches]
        assert len(r.engine.requests) == 2  # neither client nor gateway asks again
    found = assembled(*records, policy=Policy(rules=AssemblyRules(failed=rule)))
    assert (found.status, found.error_type, found.failure_class, found.final) == (
        "failed", "context_overflow", "agent", True,
    )  # fmt: skip
    assert ids(found) == rows
    assert {"failed", "context_overflow"} <= set(found.flags)
    assert found.calls[-1].excluded == "undelivered"


# --- sizes


def test_a_huge_attribute_and_two_large_spans_of_one_flush_fit_a_broker_of_one_mebibyte() -> None:  # PS-3
    sender = FakeSender()
    with (
        spool_of(sender, linger_s=60) as spool,
        context.attempt(Scope("ro-1", "at-1", "p", spool.open("ro-1", "at-1"))),
    ):
        emit_annotation({"prompt": "x" * (5 * MIB)})
        spool.flush(5)
        emit_message("a" * (700 << 10))
        emit_message("b" * (700 << 10))
        assert spool.flush(5)
    assert [len(b.spans) for b in sender.batches] == [1, 1, 1]
    assert '"prompt.truncated":true' in sender.spans[0].attributes
    assert '"prompt.length":5242880' in sender.spans[0].attributes
    assert all(len(encode_body(b)) < MIB - 1024 for b in sender.batches)
    assert spool.dropped == 0
