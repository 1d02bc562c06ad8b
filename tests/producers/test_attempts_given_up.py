"""Attempts that a worker gives up, hands back or holds ready."""

from __future__ import annotations

import asyncio
import threading

import pytest
from sdk import bench

from spanloop.producers import emit_message, operation, rollout


@pytest.mark.parametrize("late_beat", [False, True])
def test_an_attempt_that_was_given_away_is_given_up(late_beat: bool) -> None:
    @rollout
    async def agent(task: object) -> None:
        del task
        await asyncio.sleep(3600)

    with bench(agent) as b:
        b.accept(1, unresponsive_s=3.0)
        for _ in range(3):
            b.clock.advance(2.0)
            b.attempts.heard(["at-1"], b.clock.steady_s())
            b.attempts.tick()
        assert b.attempts.named() == ["at-1"]
        b.clock.advance(3.5)  # stopped for so long, or cut off
        if late_beat:  # the first heartbeat after it may be acknowledged before anybody looks at the time
            b.attempts.heard(["at-1"], b.clock.steady_s())
        else:
            b.attempts.tick()
        end = b.end(1)
        assert (end.status, end.failure_class) == ("unresponsive", "infra")


def test_a_heartbeat_that_did_not_name_an_attempt_does_not_keep_it() -> None:
    @rollout
    async def agent(task: object) -> None:
        del task
        await asyncio.sleep(3600)

    with bench(agent) as b:
        b.accept(1, unresponsive_s=3.0)
        b.clock.advance(2.0)
        b.attempts.heard(["at-9"], b.clock.steady_s())
        b.clock.advance(1.5)
        b.attempts.tick()
        assert b.end(1).status == "unresponsive"


@pytest.mark.parametrize("given_up", [False, True])
def test_no_span_is_without_its_parent_where_that_never_ends(given_up: bool) -> None:
    inside, go_on = threading.Event(), threading.Event()

    @rollout
    def agent(task: object) -> None:
        del task
        operation("asked").__enter__()
        emit_message("deep")
        inside.set()
        if given_up:
            assert go_on.wait(60)

    with bench(agent) as b:
        b.accept(1)
        assert inside.wait(60)
        if given_up:
            b.clock.advance(11.0)
            b.attempts.tick()
        end = b.end(1)
        go_on.set()
        deep, asked, root = b.sender.spans
        assert (end.status, end.span_count) == ("timeout" if given_up else "succeeded", 3)
        assert (asked.name, asked.end_ns, deep.parent_span_id) == ("asked", None, asked.span_id)
        assert asked.parent_span_id == root.span_id


def test_what_is_left_is_handed_back() -> None:
    @rollout
    async def agent(task: object) -> None:
        del task
        await asyncio.sleep(3600)

    with bench(agent, slots=1) as b:
        b.accept(1)
        b.accept(2)
        b.attempts.hand_back("stopping")
        for n in (1, 2):
            end = b.end(n)
            assert (end.status, end.failure_class, end.final) == ("returned", "infra", False)


@pytest.mark.parametrize(("took_s", "ahead"), [(0.0, 64), (0.05, 20), (1.0, 1), (9.0, 0)])
def test_short_attempts_are_held_ready_and_long_ones_are_left_to_others(took_s: float, ahead: int) -> None:
    gate = threading.Event()

    @rollout
    def agent(task: object) -> None:
        del task
        gate.wait(60)

    with bench(agent, slots=4) as b:
        assert b.attempts.ahead() == 0
        for n in range(4):
            b.accept(n)
        b.clock.advance(took_s)
        gate.set()
        for n in range(4):
            b.end(n)
        assert b.attempts.ahead() == ahead
