"""Which attempt the running code belongs to, and which span is open in it.

Held in context variables, so that threads and asyncio tasks of concurrent attempts never mix: a task inherits what
its creator had, a bare thread has nothing. `tracer` replaces the place where the open span is kept by OpenTelemetry's
own context, so that spans of both kinds nest in each other.
"""

from __future__ import annotations

import itertools
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Protocol
from weakref import WeakValueDictionary

from ..schemas import ids
from ..schemas.records import Reward, Span


class Sink(Protocol):
    """Takes what one attempt emits; never raises and never blocks for longer than its limit."""

    def span(self, span: Span) -> None:
        """Takes a finished span."""
        ...

    def reward(self, reward: Reward) -> None:
        """Takes a reward."""
        ...


class Unended(Protocol):
    """A span that was started and has not ended."""

    def so_far(self) -> Span | None:
        """The span without an end; null = it cannot be told, or has ended meanwhile and is told by that."""
        ...


@dataclass(eq=False)
class Scope:
    """One attempt as the code that runs in it sees it. `sequence` orders what this producer emits for the attempt."""

    rollout_id: str
    attempt_id: str
    producer_id: str
    sink: Sink
    trace_id: str = ""
    root_id: str | None = None  # span that has no other parent hangs here; null = it is a root
    last_calls: dict[tuple[str, ...], str] = field(default_factory=dict[tuple[str, ...], str])  # agent path -> span id
    unended: dict[str | int, Unended] = field(default_factory=dict["str | int", Unended])  # by span id
    _sequences: Iterator[int] = field(default_factory=itertools.count)

    def __post_init__(self) -> None:
        self.trace_id = self.trace_id or ids.trace_of(self.attempt_id)

    def sequence(self) -> int:
        """The next position; safe from any thread."""
        return next(self._sequences)

    def hand_over(self) -> None:
        """Emits the spans that are still open, so that none lacks its parent; one that ends later follows whole."""
        unended, self.unended = self.unended, {}
        for each in list(unended.values()):
            if (span := each.so_far()) is not None:
                self.sink.span(span)

    def skip_to(self, position: int) -> None:
        """Goes on from a position: the ones before were given out for this attempt in another process."""
        self._sequences = itertools.count(position)


class Ambient(Protocol):
    """Where the open span is kept."""

    def current(self, scope: Scope) -> str | None:
        """Span id of the innermost open span of `scope`; null = none."""
        ...

    def here(self) -> object:
        """What `leave` needs to come back to where the running code is now."""
        ...

    def enter(self, scope: Scope, span_id: str) -> object:
        """Makes a span the innermost one; returns what was `here` before."""
        ...

    def leave(self, token: object) -> None:
        """Puts back what `here` or `enter` has returned."""
        ...


_scope: ContextVar[Scope | None] = ContextVar("spanloop_scope", default=None)
_open: ContextVar[tuple[Scope, str] | None] = ContextVar("spanloop_span", default=None)
_agents: ContextVar[tuple[str, ...]] = ContextVar("spanloop_agents", default=())
_call: ContextVar[tuple[Scope, tuple[str, ...], str] | None] = ContextVar("spanloop_call", default=None)


class LocalAmbient:
    """Keeps the open span in a context variable of our own."""

    def current(self, scope: Scope) -> str | None:
        found = _open.get()
        return found[1] if found is not None and found[0] is scope else None

    def here(self) -> object:
        return _open.get()

    def enter(self, scope: Scope, span_id: str) -> object:
        before = self.here()
        _open.set((scope, span_id))
        return before

    def leave(self, token: object) -> None:
        # set, not reset: a generator may be closed in another context than the one it was started in
        _open.set(token)  # pyright: ignore[reportArgumentType] - what enter returned


class _State:
    ambient: Ambient = LocalAmbient()


_by_trace: WeakValueDictionary[str, Scope] = WeakValueDictionary()


def use_ambient(ambient: Ambient) -> None:
    """Sets where open spans are kept, for the whole process."""
    _State.ambient = ambient


def ambient() -> Ambient:
    """Where open spans are kept."""
    return _State.ambient


def active() -> Scope | None:
    """The attempt that the running code belongs to; null = none."""
    return _scope.get()


def of_trace(trace_id: str) -> Scope | None:
    """The attempt in this process that a trace belongs to, for code that lost its context; null = none."""
    return _by_trace.get(trace_id)


def require(what: str) -> Scope:
    """The attempt, or a RuntimeError that says what to do."""
    scope = _scope.get()
    if scope is None:
        raise RuntimeError(
            f"{what} was called outside any rollout; call it from an agent that a spanloop worker runs, or inside "
            "`with spanloop.producers.record(...)`. A thread started by hand needs contextvars.copy_context().run"
        )
    return scope


def parent() -> str | None:
    """Span id that a new span of the running code hangs under; null = it becomes a root."""
    scope = _scope.get()
    return None if scope is None else _State.ambient.current(scope) or scope.root_id


def agent_path() -> tuple[str, ...]:
    """Names of the agents that are at work, outermost first."""
    return _agents.get()


@contextmanager
def attempt(scope: Scope) -> Generator[Scope]:
    """Runs the block as part of an attempt. Entering the same one twice changes nothing."""
    _by_trace[scope.trace_id] = scope
    before = _scope.get()
    agents, span, call = _agents.get(), _open.get(), _call.get()
    _scope.set(scope)
    if before is not scope:
        _agents.set(())
    token = _State.ambient.enter(scope, scope.root_id) if scope.root_id and before is not scope else None
    try:
        yield scope
    finally:
        if token is not None:
            _State.ambient.leave(token)
        _scope.set(before)
        _agents.set(agents)
        _open.set(span)
        _call.set(call)


class OpenSpan:
    """Makes a span the parent of what the block emits; `agent` extends the agent path."""

    __slots__ = ("_agent", "_agents", "_span_id", "_token")

    def __init__(self, span_id: str, agent: str | None = None) -> None:
        self._span_id = span_id
        self._agent = agent
        self._agents: tuple[str, ...] = ()
        self._token: object = _OUTSIDE

    def __enter__(self) -> None:
        scope = _scope.get()
        if scope is None:
            return
        if self._agent is not None:
            self._agents = _agents.get()
            _agents.set((*self._agents, self._agent))
        self._token = _State.ambient.enter(scope, self._span_id)

    def __exit__(self, *_: object) -> None:
        if self._token is _OUTSIDE:
            return
        _State.ambient.leave(self._token)
        if self._agent is not None:
            _agents.set(self._agents)


_OUTSIDE = object()


class Steps:
    """`OpenSpan` for a body that stops and goes on: each exit puts the outside back, the next entry what was inside."""

    __slots__ = ("_inside", "_outside", "_span")

    def __init__(self, span_id: str, agent: str | None = None) -> None:
        self._span = OpenSpan(span_id, agent)
        self._inside: _Place | None = None  # null = not entered yet
        self._outside = _place()

    def __enter__(self) -> None:
        self._outside = _place()
        if self._inside is None:
            self._span.__enter__()
        else:
            _go_to(self._inside)

    def __exit__(self, *_: object) -> None:
        self._inside = _place()
        _go_to(self._outside)


_Place = tuple[object, tuple[str, ...]]  # the open span as `Ambient.here` tells it, the agent path


def _place() -> _Place:
    return _State.ambient.here(), _agents.get()


def _go_to(place: _Place) -> None:
    _State.ambient.leave(place[0])
    _agents.set(place[1])


def note_call(span_id: str) -> None:
    """Remembers a model call as the last one of the running code and of its agent; outside an attempt, nothing."""
    scope = _scope.get()
    if scope is not None:
        path = _agents.get()
        _call.set((scope, path, span_id))
        scope.last_calls[path] = span_id


def last_call() -> str | None:
    """Span id of the last model call of this context, else of this agent in the attempt; null = none is known."""
    scope = _scope.get()
    if scope is None:
        return None
    path, found = _agents.get(), _call.get()
    if found is not None and found[0] is scope and found[1] == path:
        return found[2]
    return scope.last_calls.get(path)
