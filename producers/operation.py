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
from collections.abc import Callable
from types import TracebackType
from typing import Any, TypeVar, cast, overload

from ..schemas import ids, semconv
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
        self._inside: context.OpenSpan | None = None

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
        """Makes every call of a function an operation of this kind, with its arguments and result."""
        name = self._name or getattr(function, "__qualname__", "operation")
        signature = inspect.signature(function)

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
            with begin(args, kwargs) as op:
                result = function(*args, **kwargs)
                op.set_output(result)
                return result

        return cast("F", asynchronous if inspect.iscoroutinefunction(function) else synchronous)

    def __enter__(self) -> Operation:
        self._parent = context.parent()
        self._start_ns = time.time_ns()
        self._inside = context.OpenSpan(self.span_id, self._agent)
        self._inside.__enter__()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._inside is not None:
            self._inside.__exit__(kind, error, trace)
            self._inside = None
        scope = context.active()
        if scope is None:
            return
        facts: dict[str, object] = {semconv.KIND: "operation", **self._attributes, **self._found}
        if self._agent is not None:
            facts[semconv.AGENT] = self._agent
        if error is not None:
            facts |= exception_attributes(error)
        scope.sink.span(
            make_span(
                scope,
                self._name or "spanloop.operation",
                facts,
                start_ns=self._start_ns,
                end_ns=time.time_ns(),
                span_id=self.span_id,
                parent=self._parent,
                status="ok" if error is None else "error",
                message="" if error is None else text_of(error),
            )
        )

    async def __aenter__(self) -> Operation:
        return self.__enter__()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.__exit__(kind, error, trace)

    def _bind(self, signature: inspect.Signature, args: tuple[object, ...], kwargs: dict[str, object]) -> None:
        try:
            self._found[semconv.INPUT] = dict(signature.bind(*args, **kwargs).arguments)
        except TypeError:  # a wrong call: the function itself raises the better error
            self.set_input(*args, **kwargs)


@overload
def operation(name: F, /) -> F: ...
@overload
def operation(name: str | None = None, /, *, agent: str | None = None, **attributes: object) -> Operation: ...
def operation(name: F | str | None = None, /, *, agent: str | None = None, **attributes: object) -> F | Operation:
    """An operation to use with `with` or as a decorator; `agent` names the agent that is at work in it."""
    if callable(name):
        return Operation(None, None, {})(name)
    return Operation(name, agent, attributes)
