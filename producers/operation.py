"""`operation`: a span around a block or a function; everything emitted or called inside hangs under it.

    with operation("search", agent="finder") as op:
        op.set_input(query)
        op.set_output(find(query))

    @operation
    async def search(query): ...

Outside a rollout it records nothing and gets in nobody's way, so decorated functions can be called by hand.
"""

from __future__ import annotations

import functools
import inspect
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Generator
from contextlib import AbstractContextManager, nullcontext
from types import AsyncGeneratorType, CoroutineType, FunctionType, GeneratorType, TracebackType
from typing import Any, TypeVar, cast, overload
from weakref import WeakSet

from ..schemas import ids, semconv
from ..schemas.records import Span
from . import context
from .emit import exception_attributes, make_span, text_of

F = TypeVar("F", bound=Callable[..., Any])


class Operation:
    """One operation: a context manager for `with` and `async with`, or a decorator (a span per call)."""

    def __init__(self, name: str | None, agent: str | None, attributes: dict[str, object]) -> None:
        self.span_id: str = ids.span_id()
        self._name = name
        self._agent = agent
        self._attributes = attributes
        self._found: dict[str, object] = {}
        self._start_ns = 0
        self._parent: str | None = None
        self._scope: context.Scope | None = None
        self._inside: context.OpenSpan | None = None
        self._handed_on = False  # it goes on in the coroutine or the generator that the call has returned
        self._over = False

    def set_input(self, *args: object, **kwargs: object) -> None:
        """What the operation works on: arguments by position and by name."""
        self._found[semconv.INPUT] = {**({"args": list(args)} if args else {}), **kwargs}

    def set_output(self, value: object) -> None:
        """What came out."""
        self._found[semconv.OUTPUT] = value

    def set_attribute(self, name: str, value: object) -> None:
        """Any further fact."""
        self._found[name] = value

    def __call__(self, function: F) -> F:
        """Makes every call of a function an operation of this kind, with its arguments and result.

        Of a generator it is all that happens until it is done or closed, without what its consumer does in between.
        """
        if isinstance(function, (classmethod, staticmethod)):
            method = cast("Any", function)
            return type(method)(self(method.__func__))
        name = self._name or getattr(function, "__qualname__", "operation")
        signature = _signature(function)
        generates = yields(inspect.unwrap(function))  # also behind other decorators; one only handed out is not ours

        def begin(args: tuple[object, ...], kwargs: dict[str, object]) -> Operation:
            made = Operation(name, self._agent, self._attributes)
            if context.active() is not None:
                made._bind(signature, args, kwargs)
            return made

        @functools.wraps(function)
        async def asynchronous(*args: Any, **kwargs: Any) -> Any:
            with begin(args, kwargs) as op:
                result = await function(*args, **kwargs)
                op.set_output(result)
                return result

        @functools.wraps(function)
        def synchronous(*args: Any, **kwargs: Any) -> Any:
            op = begin(args, kwargs)
            with op:
                result = function(*args, **kwargs)
                go_on = _GO_ON.get(type(cast("object", result)))
                if go_on is None or not (generates or go_on is _awaited):
                    op.set_output(result)
                    return result
                op._handed_on = True
            return go_on(op, result)

        made = asynchronous if inspect.iscoroutinefunction(function) else synchronous
        if yields(function):
            _yielding.add(made)
        return cast("F", made)

    def begin(self) -> None:
        """It starts now; what hangs under it does so `within`."""
        self._handed_on = False
        self._parent = context.parent()
        self._start_ns = time.time_ns()
        self._scope = context.active()
        if self._scope is not None:
            self._scope.unended[self.span_id] = self

    def within(self) -> context.OpenSpan:
        """Makes it the parent of what the block emits."""
        return context.OpenSpan(self.span_id, self._agent)

    def steps(self) -> AbstractContextManager[None]:
        """The same for a generator's body, entered for each of its steps."""
        return nullcontext() if self._scope is None else context.Steps(self.span_id, self._agent)

    def end(self, error: BaseException | None) -> None:
        """It is over; closing a generator early is no error."""
        if self._scope is None:
            return
        self._scope.unended.pop(self.span_id, None)
        if not self._handed_on:
            self._over = True  # before it takes its sequence, see so_far
            failed = None if isinstance(error, GeneratorExit) else error
            self._scope.sink.span(self._span(self._scope, time.time_ns(), failed))

    def so_far(self) -> Span | None:
        """See `context.Unended`."""
        span = None if self._scope is None else self._span(self._scope, None, None)
        return None if self._over else span  # what ends from here on takes a later sequence, and counts

    def __enter__(self) -> Operation:
        self.begin()
        self._inside = self.within()
        self._inside.__enter__()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._inside is not None:
            self._inside.__exit__(kind, error, trace)
            self._inside = None
        self.end(error)

    def _span(self, scope: context.Scope, end_ns: int | None, error: BaseException | None) -> Span:
        facts: dict[str, object] = {semconv.KIND: "operation", **self._attributes, **self._found}
        if self._agent is not None:
            facts[semconv.AGENT] = self._agent
        if error is not None:
            facts |= exception_attributes(error)
        return make_span(
            scope,
            self._name or "spanloop.operation",
            facts,
            start_ns=self._start_ns,
            end_ns=end_ns,
            span_id=self.span_id,
            parent=self._parent,
            status="error" if error is not None else "unset" if end_ns is None else "ok",
            message="" if error is None else text_of(error),
        )

    async def __aenter__(self) -> Operation:
        return self.__enter__()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.__exit__(kind, error, trace)

    def _bind(self, signature: inspect.Signature | None, args: tuple[object, ...], kwargs: dict[str, object]) -> None:
        try:
            if signature is not None:
                self._found[semconv.INPUT] = dict(signature.bind(*args, **kwargs).arguments)
                return
        except TypeError:  # a wrong call: the function itself raises the better error
            pass
        self.set_input(*args, **kwargs)


def _signature(function: Callable[..., object]) -> inspect.Signature | None:
    try:
        return inspect.signature(function)
    except (ValueError, TypeError):  # some functions of C have none
        return None


def yields(function: object) -> bool:
    """Whether each call makes a generator, also where the function is an operation."""
    while isinstance(function, functools.partial):
        function = cast("functools.partial[object]", function).func
    function = getattr(function, "__func__", function)  # a method's
    made_here = isinstance(function, FunctionType) and function in _yielding  # others may have no hash
    return made_here or inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function)


_yielding: WeakSet[Callable[..., object]] = WeakSet()  # operations made of generators


async def _awaited(op: Operation, coroutine: Awaitable[Any]) -> Any:
    with op:
        result = await coroutine
        op.set_output(result)
        return result


def _generator(op: Operation, body: Generator[Any, Any, Any]) -> Generator[Any, Any, Any]:
    op.begin()
    inside = op.steps()
    step: Any = body.send
    given: Any = None
    try:
        while True:
            with inside:
                made = step(given)
            try:
                step, given = body.send, (yield made)
            except GeneratorExit:
                with inside:
                    body.close()
                raise
            except BaseException as error:  # noqa: BLE001 - what the consumer throws is the body's to handle
                step, given = body.throw, error
    except StopIteration as done:
        if done.value is not None:
            op.set_output(done.value)
        op.end(None)
        return done.value
    except BaseException as error:
        op.end(error)
        raise


async def _async_generator(op: Operation, body: AsyncGenerator[Any, Any]) -> AsyncGenerator[Any, Any]:
    op.begin()
    inside = op.steps()
    step: Any = body.asend
    given: Any = None
    try:
        while True:
            with inside:
                made = await step(given)
            try:
                step, given = body.asend, (yield made)
            except GeneratorExit:
                with inside:
                    await body.aclose()
                raise
            except BaseException as error:  # noqa: BLE001 - as above
                step, given = body.athrow, error
    except StopAsyncIteration:
        op.end(None)
    except BaseException as error:
        op.end(error)
        raise


_GO_ON: dict[type, Callable[[Operation, Any], Any]] = {
    CoroutineType: _awaited,
    GeneratorType: _generator,
    AsyncGeneratorType: _async_generator,
}


@overload
def operation(name: F, /) -> F: ...
@overload
def operation(name: str | None = None, /, *, agent: str | None = None, **attributes: object) -> Operation: ...
def operation(name: F | str | None = None, /, *, agent: str | None = None, **attributes: object) -> F | Operation:
    """An operation to use with `with` or as a decorator; `agent` names the agent that is at work in it."""
    if callable(name) or isinstance(name, classmethod):
        return Operation(None, None, {})(cast("F", name))
    return Operation(name, agent, attributes)
