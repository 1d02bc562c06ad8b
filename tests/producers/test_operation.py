import asyncio
import functools
import json
import random
from collections.abc import Generator
from typing import Any

import pytest

from spanloop.producers import context, emit_message, operation, record
from spanloop.schemas import semconv
from spanloop.schemas.records import Span


def facts(span: Span) -> dict[str, object]:
    return json.loads(span.attributes)


def test_what_is_emitted_inside_hangs_under_it() -> None:
    with record() as seen:
        with operation("outer") as outer:
            with operation("inner", size=3) as inner:
                emit_message("deep")
            inner_id, outer_id = inner.span_id, outer.span_id
        emit_message("after")
    assert [(s.name, s.parent_span_id) for s in seen.spans] == [
        ("spanloop.message", inner_id),
        ("inner", outer_id),
        ("outer", None),
        ("spanloop.message", None),
    ]
    assert facts(seen.spans[1])["size"] == 3


def test_input_output_and_further_facts_are_kept() -> None:
    with record() as seen, operation("search") as op:
        op.set_input("q", limit=2)
        op.set_output(["a"])
        op.set_attribute("hits", 1)
    found = facts(seen.spans[0])
    assert found[semconv.INPUT] == '{"args":["q"],"limit":2}'
    assert found[semconv.OUTPUT] == ["a"]
    assert found["hits"] == 1


def test_an_exception_is_kept_and_raised_on() -> None:
    with record() as seen, pytest.raises(ValueError, match="boo"), operation("search"):
        raise ValueError("boo")
    (span,) = seen.spans
    assert (span.status, span.status_message) == ("error", "boo")
    assert facts(span)[semconv.EXCEPTION_TYPE] == "ValueError"


def test_a_decorated_function_keeps_its_arguments_by_name() -> None:
    @operation
    def find(query: str, *rest: int, limit: int = 3) -> list[str]:
        return [query] * (limit + len(rest) - 1)

    with record() as seen:
        assert find("a", 7, limit=2) == ["a", "a"]
    (span,) = seen.spans
    assert span.name.endswith("find")
    assert facts(span)[semconv.INPUT] == '{"limit":2,"query":"a","rest":[7]}'
    assert facts(span)[semconv.OUTPUT] == ["a", "a"]


def test_a_decorated_coroutine_is_a_span_per_call() -> None:
    @operation("look", agent="finder")
    async def look(n: int) -> int:
        await asyncio.sleep(0)
        assert context.agent_path() == ("finder",)
        return n

    async def main() -> list[int]:
        return await asyncio.gather(*(look(n) for n in range(4)))

    with record() as seen:
        assert asyncio.run(main()) == [0, 1, 2, 3]
    assert len({s.span_id for s in seen.spans}) == 4
    assert {facts(s)[semconv.AGENT] for s in seen.spans} == {"finder"}


def plain(function: Any) -> Any:
    """A decorator that knows no coroutines."""

    @functools.wraps(function)
    def call(*args: Any) -> Any:
        return function(*args)

    return call


def test_what_goes_on_behind_another_decorator_is_in_the_span_too() -> None:
    @operation
    @plain
    async def look(n: int) -> int:
        emit_message("in")
        return n

    @operation
    @plain
    def walk(n: int) -> Generator[int]:
        emit_message("in")
        yield n

    with record() as seen:
        assert asyncio.run(look(1)) == 1
        assert list(walk(1)) == [1]
    ours = [s for s in seen.spans if s.parent_span_id is None]
    assert [s.parent_span_id for s in seen.spans] == [ours[0].span_id, None, ours[1].span_id, None]
    assert facts(ours[0])[semconv.OUTPUT] == 1


def test_a_generator_that_is_only_handed_out_is_left_alone() -> None:
    numbers = iter(i for i in range(3))

    @operation
    def source() -> Any:
        return numbers

    with record() as seen:
        assert [next(source()), next(source()), next(source())] == [0, 1, 2]
    assert [s.status for s in seen.spans] == ["ok"] * 3


def test_methods_of_every_kind_and_functions_without_a_signature_can_be_operations() -> None:
    class Tool:
        @operation
        @classmethod
        def of_class(cls, n: int) -> str:
            return f"{cls.__name__} {n}"

        @operation("named")
        @staticmethod
        def of_none(n: int) -> int:
            return n

    with record() as seen:
        assert (Tool.of_class(1), Tool().of_class(2), Tool.of_none(3), Tool().of_none(4)) == ("Tool 1", "Tool 2", 3, 4)
        assert operation("max")(max)(1, 2) == 2
    assert [facts(s)[semconv.OUTPUT] for s in seen.spans] == ["Tool 1", "Tool 2", 3, 4, 2]


def test_outside_a_rollout_functions_just_run() -> None:
    @operation
    def double(n: int) -> int:
        return 2 * n

    assert double(4) == 8
    with operation("by hand") as op:
        op.set_output(1)


def test_parallel_children_hang_under_their_own_parent() -> None:  # TR-1, emitting side
    order = list(range(8))
    random.Random(1).shuffle(order)

    async def agent(n: int) -> None:
        async with operation(f"agent({n})", agent=f"agent({n})"):
            for _ in range(n):
                await asyncio.sleep(0)
            async with operation(f"LLM({n})"):
                await asyncio.sleep(0)

    async def main() -> None:
        async with operation("root"):
            await asyncio.gather(*(agent(n) for n in order))

    with record() as seen:
        asyncio.run(main())
    by_name = {s.name: s for s in seen.spans}
    assert seen.spans[-1].name == "root"
    assert [s.name for s in seen.spans if s.parent_span_id is None] == ["root"]
    for n in range(8):
        assert by_name[f"LLM({n})"].parent_span_id == by_name[f"agent({n})"].span_id
        assert by_name[f"agent({n})"].parent_span_id == by_name["root"].span_id
