"""Generators as operations: what happens in their body is theirs, what their consumer does in between is not."""

import asyncio
import contextlib
import json
from collections.abc import AsyncGenerator, Generator, Iterator

import pytest
from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider

from spanloop.producers import context, emit_message, emit_reward, operation, record, tracer
from spanloop.producers.context import LocalAmbient
from spanloop.producers.recording import Recorded
from spanloop.schemas import semconv
from spanloop.schemas.records import Span


@pytest.fixture(autouse=True, params=["local", "otel"])
def ambient(request: pytest.FixtureRequest) -> Iterator[None]:
    """Where the open span is kept: all of this holds for either place."""
    context.use_ambient(LocalAmbient() if request.param == "local" else tracer.OtelAmbient())
    yield
    context.use_ambient(LocalAmbient())


def facts(span: Span) -> dict[str, object]:
    return json.loads(span.attributes)


@operation
def count(n: int) -> Generator[int, str, str]:
    for i in range(n):
        emit_message(f"in {i}")
        yield i
    return "done"


@operation
async def count_slowly(n: int) -> AsyncGenerator[int]:
    for i in range(n):
        await asyncio.sleep(0)
        emit_message(f"in {i}")
        yield i


def tree(seen: Recorded) -> list[tuple[str, str, str | None]]:
    """(name or text, status, name of the parent) of each span."""
    names = {s.span_id: str(facts(s).get(semconv.BODY, s.name)) for s in seen.spans}
    return [(names[s.span_id], s.status, s.parent_span_id and names[s.parent_span_id]) for s in seen.spans]


def test_a_generator_is_a_span_over_its_iteration_but_not_over_its_consumer() -> None:
    with record() as seen:
        for i in count(2):
            emit_message(f"out {i}")
    assert tree(seen) == [
        ("in 0", "ok", "count"),
        ("out 0", "ok", None),
        ("in 1", "ok", "count"),
        ("out 1", "ok", None),
        ("count", "ok", None),
    ]
    assert (facts(seen.spans[-1])[semconv.INPUT], facts(seen.spans[-1])[semconv.OUTPUT]) == ('{"n":2}', "done")


def test_an_asynchronous_generator_is_a_span_over_its_iteration() -> None:
    async def main() -> None:
        async for i in count_slowly(1):
            emit_message(f"out {i}")

    with record() as seen:
        asyncio.run(main())
    assert tree(seen) == [("in 0", "ok", "count_slowly"), ("out 0", "ok", None), ("count_slowly", "ok", None)]


def test_a_generator_closed_early_has_not_failed() -> None:
    async def main() -> None:
        slow = count_slowly(3)
        await slow.__anext__()
        await slow.aclose()

    with record() as seen:
        quick = count(3)
        next(quick)
        quick.close()
        asyncio.run(main())
        with contextlib.suppress(GeneratorExit), operation("block"):
            raise GeneratorExit
    assert [span for span in tree(seen) if not span[0].startswith("in")] == [
        ("count", "ok", None),
        ("count_slowly", "ok", None),
        ("block", "ok", None),
    ]


def test_what_a_generator_raises_is_kept_and_what_it_is_sent_arrives() -> None:
    @operation
    def echo() -> Generator[str, str, None]:
        got = "ready"
        while True:
            try:
                got = yield got
            except KeyError:
                got = "caught"
            if got == "break":
                raise ValueError("late")

    @operation
    async def echo_slowly() -> AsyncGenerator[str, str]:
        got = yield "ready"
        try:
            await asyncio.sleep(0)
            yield got
        except KeyError:
            raise ValueError("late") from None

    async def main() -> None:
        slow = echo_slowly()
        assert [await slow.__anext__(), await slow.asend("a")] == ["ready", "a"]
        with pytest.raises(ValueError, match="late"):
            await slow.athrow(KeyError())

    with record() as seen:
        quick = echo()
        assert [next(quick), quick.send("a"), quick.throw(KeyError())] == ["ready", "a", "caught"]
        with pytest.raises(ValueError, match="late"):
            quick.send("break")
        asyncio.run(main())
    assert [(s.status, s.status_message) for s in seen.spans] == [("error", "late")] * 2


def body() -> Generator[str]:
    with operation("search", agent="finder"):
        context.note_call("c" * 16)
        yield "token"
        assert context.agent_path() == ("consumer", "outer", "finder")
        assert emit_reward(0.5, step=True).span_id == "c" * 16
        emit_message("in")
        yield "token"


async def slow_body() -> AsyncGenerator[str]:
    with operation("search", agent="finder"):
        context.note_call("c" * 16)
        yield "token"
        assert context.agent_path() == ("consumer", "outer", "finder")
        assert emit_reward(0.5, step=True).span_id == "c" * 16
        emit_message("in")
        yield "token"


async def taken_by_tasks(source: AsyncGenerator[str]) -> None:
    """Takes each item in a task of its own, as a server may."""

    async def take() -> str:
        return await anext(source, "")

    while await asyncio.create_task(take()):
        told_by_the_consumer()


def told_by_the_consumer() -> None:
    assert context.agent_path() == ("consumer",)
    emit_message("out")


@pytest.mark.parametrize("slow", [False, True])
def test_a_generator_finds_its_own_context_again_after_each_yield(slow: bool) -> None:
    outer = operation("stream", agent="outer")
    with record() as seen, operation("loop", agent="consumer"):
        if slow:
            asyncio.run(taken_by_tasks(outer(slow_body)()))
        else:
            for _ in outer(body)():
                told_by_the_consumer()
        assert context.agent_path() == ("consumer",)
    assert tree(seen) == [
        ("out", "ok", "loop"),
        ("in", "ok", "search"),
        ("out", "ok", "loop"),
        ("search", "ok", "stream"),
        ("stream", "ok", "loop"),
        ("loop", "ok", None),
    ]


def test_a_generator_left_midway_leaves_nothing_behind() -> None:
    async def main() -> None:
        slow = operation("stream", agent="outer")(slow_body)()
        await anext(slow)
        assert (context.agent_path(), context.parent()) == ((), None)
        del slow
        for _ in range(9):  # the loop closes it, in a task of its own
            await asyncio.sleep(0)

    with record() as seen:
        quick = operation("stream", agent="outer")(body)()
        next(quick)
        assert (context.agent_path(), context.parent()) == ((), None)
        del quick
        asyncio.run(main())
        assert (context.agent_path(), context.parent()) == ((), None)
    assert tree(seen) == [("search", "ok", "stream"), ("stream", "ok", None)] * 2


def test_a_span_of_opentelemetry_in_a_generator_hangs_under_what_is_open_in_its_body() -> None:
    provider = tracer.install(TracerProvider())

    @operation("stream")
    def stream() -> Generator[str]:
        with operation("search"):
            yield "token"
            with provider.get_tracer("t").start_as_current_span("theirs"):
                yield "token"

    with record() as seen:
        for _ in stream():
            assert not trace.get_current_span().get_span_context().is_valid
    assert tree(seen) == [("theirs", "unset", "search"), ("search", "ok", "stream"), ("stream", "ok", None)]
