"""What an agent's own code says about its work: rewards, messages, objects, annotations, exceptions.

Everything goes to the attempt that the running code belongs to (`context`); outside one, a RuntimeError says so.
With `propagate=False` the record is only built and handed back.
"""

from __future__ import annotations

import time
import traceback
import warnings
from collections.abc import Mapping
from typing import Literal, cast

from ..schemas import ids, semconv
from ..schemas.credit import valid
from ..schemas.records import Reward, Span
from ..schemas.spans import RewardScope, SpanStatus
from . import attributes as attrs
from . import context
from .context import Scope

Attributes = Mapping[str, object] | None
Kind = Literal["message", "object", "annotation", "exception", "operation", "rollout"]

# A reward's topic takes records of 1 MiB.
MAX_COMMENT_BYTES = 768 << 10
MAX_MESSAGE_BYTES = 64 << 10  # of a span's status; an exception's message is in its attributes too
MAX_NAME_BYTES = 4 << 10

# Where a record is only built, it still needs ids of the right shape.
DETACHED = "detached"


def emit_reward(
    value: float | Mapping[str, float],
    *,
    name: str = "reward",
    primary_key: str | None = None,
    step: bool | None = None,
    span_id: str | None = None,
    comment: str | None = None,
    attributes: Attributes = None,
    propagate: bool = True,
) -> Reward:
    """Judges the attempt, or with `step` (or a `span_id`) one call of it: by default the last one of this context.

    A mapping gives several dimensions, `primary_key` names the one that counts. NaN, infinity and what is past ±1e30
    are sent with a warning: the assembler quarantines them. A comment is cut at 768 KiB, and then says so.
    Raises TypeError or ValueError for what is no number, or no text where there should be one.
    """
    scope = context.require("emit_reward") if propagate else context.active()
    number, dimensions, primary = _figures(value, primary_key)
    step = span_id is not None if step is None else step
    if comment is None and (facts := attrs.facts_of(attributes)):
        comment = attrs.encode(facts)[0]
    reward = make_reward(
        scope,
        number,
        name=name,
        scope="step" if step else "final",
        span_id=span_id or (context.last_call() if step else None),
        dimensions=dimensions,
        primary=primary,
        comment=comment,
    )
    if propagate and scope is not None:
        scope.sink.reward(reward)
    return reward


def make_reward(
    owner: Scope | None,
    value: float | None,
    *,
    name: str = "reward",
    scope: RewardScope = "final",
    span_id: str | None = None,
    dimensions: dict[str, float] | None = None,
    primary: str | None = None,
    comment: str | None = None,
) -> Reward:
    """A reward of the attempt `owner`, numbered in its sequence. Raises TypeError for a text that is none."""
    name = _text(name, "a reward's name", MAX_NAME_BYTES)
    span_id = None if span_id is None else _text(span_id, "a reward's span_id", MAX_NAME_BYTES)
    comment = None if comment is None else _text(comment, "a reward's comment", MAX_COMMENT_BYTES)
    return Reward(
        reward_id=ids.reward_id(),
        rollout_id=owner.rollout_id if owner else DETACHED,
        attempt_id=owner.attempt_id if owner else None,
        name=name,
        scope=scope,
        value=value,
        dimensions=dimensions or {},
        primary=primary,
        span_id=span_id,
        producer_id=owner.producer_id if owner else DETACHED,
        sequence=owner.sequence() if owner else 0,
        comment=comment,
        created_ns=time.time_ns(),
    )


def emit_message(message: str, attributes: Attributes = None, *, propagate: bool = True) -> Span:
    """Says something. Raises TypeError for anything but a string."""
    if not isinstance(message, str):  # pyright: ignore[reportUnnecessaryIsInstance] - agents are not type-checked
        raise TypeError(f"emit_message takes a str, got {type(message).__name__}; use emit_object")
    return _emit("message", {semconv.BODY: message, **attrs.facts_of(attributes)}, propagate=propagate)


def emit_object(value: object, attributes: Attributes = None, *, propagate: bool = True) -> Span:
    """Keeps a value as JSON; what JSON does not know becomes its repr."""
    return _emit("object", {semconv.BODY: value, **attrs.facts_of(attributes)}, propagate=propagate)


def emit_annotation(annotation: Mapping[str, object], *, propagate: bool = True) -> Span:
    """Keeps some facts as the attributes of a span."""
    return _emit("annotation", annotation, propagate=propagate)


def emit_exception(error: BaseException, attributes: Attributes = None, *, propagate: bool = True) -> Span:
    """Keeps an exception that the agent has dealt with. Raises TypeError for anything else."""
    if not isinstance(error, BaseException):  # pyright: ignore[reportUnnecessaryIsInstance] - as above
        raise TypeError(f"emit_exception takes an exception, got {type(error).__name__}")
    facts = {**exception_attributes(error), **attrs.facts_of(attributes)}
    return _emit("exception", facts, status="error", message=text_of(error), propagate=propagate)


def exception_attributes(error: BaseException) -> dict[str, object]:
    """Type, message and stack trace under OpenTelemetry's names."""
    return {
        semconv.EXCEPTION_TYPE: type_of(error),
        semconv.EXCEPTION_MESSAGE: text_of(error),
        semconv.EXCEPTION_STACKTRACE: _stack(error),
    }


def _stack(error: BaseException) -> str:
    try:
        return "".join(traceback.format_exception(type(error), error, error.__traceback__))
    except Exception:  # noqa: BLE001 - what a traceback asks an exception for is the agent's code
        return text_of(error)


def type_of(error: BaseException) -> str:
    """An exception's class, with its module unless it is a built-in."""
    kind = type(error)
    return kind.__qualname__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}"


def text_of(error: BaseException) -> str:
    """An exception's message; never raises."""
    try:
        return attrs.clean(str(error))
    except Exception:  # noqa: BLE001 - __str__ is the agent's code and may raise anything
        return attrs.safe_repr(error)


def make_span(
    scope: Scope | None,
    name: str,
    attributes: Attributes,
    *,
    start_ns: int,
    end_ns: int | None,
    span_id: str | None = None,
    parent: str | None = None,
    status: SpanStatus = "ok",
    message: str = "",
) -> Span:
    """A span of ours, numbered in its attempt's sequence."""
    text, dropped = attrs.encode(attributes)
    return Span(
        trace_id=scope.trace_id if scope else ids.trace_id(),
        span_id=span_id or ids.span_id(),
        name=attrs.text_of(name, MAX_NAME_BYTES),
        start_ns=start_ns,
        end_ns=end_ns,
        parent_span_id=parent,
        sequence=scope.sequence() if scope else 0,
        scope_name="spanloop",
        status=status,
        status_message=attrs.text_of(message, MAX_MESSAGE_BYTES),
        attributes=text,
        dropped_attributes=dropped,
    )


def _emit(
    kind: Kind, attributes: Mapping[str, object], *, propagate: bool, status: SpanStatus = "ok", message: str = ""
) -> Span:
    scope = context.require(f"emit_{kind}") if propagate else context.active()
    now = time.time_ns()
    facts = {semconv.KIND: kind, **attrs.facts_of(attributes)}
    span = make_span(
        scope,
        f"spanloop.{kind}",
        facts,
        start_ns=now,
        end_ns=now,
        parent=context.parent(),
        status=status,
        message=message,
    )
    if propagate and scope is not None:
        scope.sink.span(span)
    return span


def _figures(value: object, primary_key: str | None) -> tuple[float | None, dict[str, float], str | None]:
    """(number, dimensions, the one that counts): a number, or dimensions."""
    if not isinstance(value, Mapping):
        return number(value, "the reward"), {}, None
    named = cast("Mapping[object, object]", value).items()
    dimensions = {attrs.text_of(k, MAX_NAME_BYTES): number(v, f"dimension {k!r}") for k, v in named}
    primary = attrs.text_of(primary_key, MAX_NAME_BYTES)
    if primary_key is None or primary not in dimensions:
        raise ValueError(f"primary_key must be one of the dimensions {sorted(dimensions)}, got {primary_key!r}")
    return None, dimensions, primary


def _text(value: object, what: str, limit: int) -> str:
    if not isinstance(value, str):
        raise TypeError(f"{what} must be a str, got {type(value).__name__}")
    return attrs.text_of(value, limit)


def number(value: object, what: str) -> float:
    """A reward as a float. Raises TypeError; warns of NaN, infinity and what is past ±1e30."""
    if not isinstance(value, (int, float)) and not hasattr(type(value), "__float__"):
        raise TypeError(f"{what} must be a number, got {type(value).__name__}")
    try:
        figure = float(value)  # pyright: ignore[reportArgumentType] - numpy and torch scalars have __float__
    except Exception as error:  # __float__ is the agent's code, or that of a tensor with many elements
        raise TypeError(f"{what} must be a number, got {type(value).__name__}: {text_of(error)}") from error
    if valid(figure) is None:
        warnings.warn(f"{what} is {figure}: it will be quarantined and not trained on", stacklevel=3)
    return figure
