import asyncio
import contextvars
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from spanloop.producers import context, operation, record
from spanloop.producers.context import Scope
from spanloop.producers.recording import Recorded
from spanloop.schemas import ids
from spanloop.schemas.records import Span


def scope_of(n: int) -> Scope:
    return Scope(f"ro-{n}", f"at-{n:032x}", "p", Recorded(f"ro-{n}", f"at-{n}"), root_id=f"{n:016x}")


def test_the_trace_id_is_the_attempts_own_hex() -> None:
    assert scope_of(7).trace_id == f"{7:032x}"
    assert len(ids.trace_of("at-1")) == 32
    assert ids.trace_of("at-1") == ids.trace_of("at-1") != ids.trace_of("at-2")


def test_outside_a_rollout_the_error_says_what_to_do() -> None:
    with pytest.raises(RuntimeError, match=r"emit_reward was called outside any rollout.*copy_context"):
        context.require("emit_reward")


def test_threads_do_not_see_each_others_attempt() -> None:
    def work(n: int) -> bool:
        with context.attempt(scope_of(n)):
            for _ in range(100):
                scope = context.active()
                if scope is None or scope.rollout_id != f"ro-{n}":
                    return False
        return context.active() is None

    with ThreadPoolExecutor(8) as pool:
        assert all(pool.map(work, range(64)))


def test_tasks_do_not_see_each_others_attempt() -> None:
    async def work(n: int) -> bool:
        with context.attempt(scope_of(n)):
            for _ in range(20):
                await asyncio.sleep(0)
                scope = context.active()
                if scope is None or scope.rollout_id != f"ro-{n}":
                    return False
        return True

    async def main() -> list[bool]:
        return await asyncio.gather(*(work(n) for n in range(32)))

    assert all(asyncio.run(main()))


def test_a_thread_with_a_copied_context_belongs_to_the_attempt() -> None:
    seen: list[Scope | None] = []
    scope = scope_of(1)
    with context.attempt(scope):
        copied = contextvars.copy_context()
        threads = [
            threading.Thread(target=copied.run, args=(lambda: seen.append(context.active()),)),
            threading.Thread(target=lambda: seen.append(context.active())),
        ]
        for thread in threads:
            thread.start()
            thread.join()
    assert seen == [scope, None]


def test_the_parent_is_the_innermost_open_span() -> None:
    with context.attempt(scope_of(1)):
        assert context.parent() == f"{1:016x}"
        with context.OpenSpan("a" * 16):
            with context.OpenSpan("b" * 16):
                assert context.parent() == "b" * 16
            assert context.parent() == "a" * 16
        assert context.parent() == f"{1:016x}"
    assert context.parent() is None


def test_another_attempts_open_span_is_no_parent() -> None:
    with context.attempt(scope_of(1)), context.OpenSpan("a" * 16), context.attempt(scope_of(2)):
        assert context.parent() == f"{2:016x}"


def test_the_last_call_is_that_of_the_same_agent() -> None:
    with context.attempt(scope_of(1)):
        context.note_call("1" * 16)
        with context.OpenSpan("a" * 16, "critic"):
            assert context.agent_path() == ("critic",)
            assert context.last_call() is None
            context.note_call("2" * 16)
            assert context.last_call() == "2" * 16
        assert context.last_call() == "1" * 16


def test_the_last_call_is_that_of_the_same_task() -> None:
    async def work(n: int) -> str | None:
        context.note_call(f"{n:016x}")
        await asyncio.sleep(0)
        return context.last_call()

    async def main() -> list[str | None]:
        with context.attempt(scope_of(1)):
            return await asyncio.gather(*(work(n) for n in range(8)))

    assert asyncio.run(main()) == [f"{n:016x}" for n in range(8)]


def test_a_call_of_a_child_task_is_known_to_its_parent_that_made_none() -> None:
    async def main() -> str | None:
        with context.attempt(scope_of(1)):
            await asyncio.create_task(note())
            return context.last_call()

    async def note() -> None:
        context.note_call("1" * 16)

    assert asyncio.run(main()) == "1" * 16


def test_nothing_is_left_of_an_attempt() -> None:
    with context.attempt(scope_of(1)):
        context.note_call("1" * 16)
    with context.attempt(scope_of(2)):
        assert context.last_call() is None
        assert context.agent_path() == ()


def test_a_span_that_ends_during_the_hand_over_is_known_by_its_end() -> None:
    second = operation("second")

    class Slow(Recorded):
        def span(self, span: Span) -> None:
            if span.name == "first":
                second.end(None)
            super().span(span)

    scope = Scope("ro-1", "at-1", "p", sink := Slow("ro-1", "at-1"))
    with context.attempt(scope):
        operation("first").begin()
        second.begin()
        scope.hand_over()
    assert [(s.name, s.end_ns is None) for s in sink.spans] == [("second", False), ("first", True)]


def test_spans_open_at_the_end_of_a_recording_are_in_it_without_an_end() -> None:
    with record() as seen:
        operation("open").begin()
    assert [(s.name, s.end_ns) for s in seen.spans] == [("open", None)]
