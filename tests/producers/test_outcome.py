import json
from typing import Any, cast

import httpx
import pytest
from openai import APIConnectionError, BadRequestError, InternalServerError

from spanloop.producers import outcome, record
from spanloop.producers.context import Scope
from spanloop.producers.outcome import Outcome
from spanloop.producers.recording import Recorded
from spanloop.schemas import semconv
from spanloop.schemas.records import Assignment, Limits, Span, SpanBatch, Task
from spanloop.schemas.serde import encode_body
from spanloop.schemas.spans import Credit

GATEWAY = "http://127.0.0.1:8700"
OVERFLOW = "This model's maximum context length is 4608 tokens. However, you requested 6859 tokens."
TASK = Task("ro-1", "run-1", group_id="gr-1", sample=1, group_size=4, credit=Credit("last"), data_id="d")


def request_to(base: str) -> Any:
    """Any: OpenAI's client has a library of its own for this, of the same shape."""
    return httpx.Request("POST", f"{base}/rollout/ro-1/attempt/at-1/v1/chat/completions")


def openai_error(status: int, message: str, base: str = GATEWAY) -> Exception:
    response: Any = httpx.Response(status, request=request_to(base))
    kind = BadRequestError if status == 400 else InternalServerError
    return kind(message, response=response, body=None)


def scope() -> Scope:
    return Scope("ro-1", "at-1", "p", Recorded("ro-1", "at-1"), root_id="a" * 16)


@pytest.mark.parametrize(("result", "reward"), [(None, None), (0.5, 0.5), (True, 1.0), (2, 2.0)])
def test_a_number_or_none_is_success(result: object, reward: float | None) -> None:
    assert outcome.judge(scope(), result, None, GATEWAY) == Outcome("succeeded", reward)


def test_anything_else_is_a_failure_of_the_agent() -> None:
    ended = outcome.judge(scope(), {"reward": 1}, None, GATEWAY)
    assert (ended.status, ended.error_type, ended.failure_class) == ("failed", "TypeError", "agent")
    assert "must be a number, got dict" in str(ended.reason)


class Hostile:
    """A value, or a span, whose every use fails."""

    def __float__(self) -> float:
        raise RuntimeError("a tensor with 2 elements cannot be converted to a scalar")

    def get_span_context(self) -> None:
        raise SystemExit("no context")


@pytest.mark.parametrize(
    ("result", "error_type", "says"),
    [
        (Hostile(), "TypeError", "must be a number, got Hostile: a tensor with 2 elements"),
        (10**400, "TypeError", "must be a number, got int: int too large"),
        ([Hostile()], "SystemExit", "no context"),
        ([Span("0" * 32, "b" * 16, "odd", 1, attributes=cast("str", None))], "InvalidRecord", "cannot be encoded"),
    ],
    ids=["tensor", "huge", "span of another kind", "span with a null for a text"],
)
def test_whatever_an_agent_returns_ends_its_attempt(result: object, error_type: str, says: str) -> None:
    ended = outcome.judge(scope(), result, None, GATEWAY)
    assert (ended.status, ended.failure_class) == ("failed", "agent")
    assert str(ended.error_type).endswith(error_type)
    assert says in str(ended.reason)


def test_whatever_an_agent_raises_ends_its_attempt() -> None:
    class Odd(Exception):
        @property
        def status_code(self) -> int:
            raise RuntimeError("no response yet")

    ended = outcome.judge(scope(), None, Odd("boo"), GATEWAY)
    assert (ended.status, ended.failure_class, ended.message) == ("failed", "agent", "boo")
    assert str(ended.reason).endswith("Odd: boo")


def test_spans_that_are_returned_go_to_the_attempt() -> None:
    sink = Recorded("ro-1", "at-1")
    own = Scope("ro-1", "at-1", "p", sink)
    assert outcome.judge(own, [Span("0" * 32, "b" * 16, "mine", 1, end_ns=2)], None, GATEWAY).status == "succeeded"
    assert [s.name for s in sink.spans] == ["mine"]
    assert outcome.judge(own, [3], None, GATEWAY).error_type == "TypeError"


def test_an_exception_is_the_agents_failure() -> None:
    ended = outcome.of_error(ValueError("boo"), GATEWAY)
    assert (ended.status, ended.reason, ended.error_type) == ("failed", "ValueError: boo", "ValueError")
    assert ended.failure_class == "agent"


@pytest.mark.parametrize("wrapped", [False, True])
def test_a_prompt_that_is_too_long_is_context_overflow(wrapped: bool) -> None:  # GW-10
    error: Exception = openai_error(400, OVERFLOW)
    if wrapped:
        try:
            raise RuntimeError("the call failed") from error
        except RuntimeError as outer:
            error = outer
    ended = outcome.of_error(error, GATEWAY)
    assert (ended.status, ended.reason, ended.error_type) == ("failed", "context_overflow", "context_overflow")
    assert ended.failure_class == "agent"
    end = outcome.end_marker(Assignment("wo-1", "at-1", task=TASK), TASK, ended, "wo-1", 1)
    assert end.final  # mode train: no retry


@pytest.mark.parametrize(
    "text",
    [
        OVERFLOW,
        "The decoder prompt (length 5000) is longer than the maximum model length of 4096. Make sure that",
        "You passed 4097 input tokens and requested 0 output tokens. However, the model's context length is only 4096.",
        "The prompt (total length 5000) is too long to fit into the model (total length 4096).",
        "The input (6859 tokens) is longer than the model's context length (4608 tokens).",
        r"The input (6859 tokens) is longer than the model\u0027s context length (4608 tokens).",
        "Requested token count exceeds the model's maximum context length of 4096 tokens.",
        "Input length (6859 tokens) exceeds the maximum allowed length (4602 tokens).",
        '{"error":{"message":"Please reduce the length of the messages.","code":"context_length_exceeded"}}',
        "Input tokens exceed the configured limit of 272000 tokens.",
        "Your input exceeds the context window of this model.",
        "prompt is too long: 210000 tokens > 200000 maximum",
        "input length and `max_tokens` exceed context limit: 188240 + 21333 > 200000",
        "the request exceeds the available context size. try increasing the context size or enable context shift",
        '{"error":{"code":400,"message":"too many tokens","type":"exceed_context_size_error"}}',
        "The input token count (1200000) exceeds the maximum number of tokens allowed (1048575).",
        "Input validation error: `inputs` tokens + `max_new_tokens` must be <= 4096. Given: 5000",
        "Input validation error: `inputs` must have less than 4096 tokens. Given: 5000",
    ],
)
def test_each_engines_words_for_a_prompt_that_is_too_long_are_known(text: str) -> None:
    for status in (400, 413, 422):
        assert outcome.of_error(openai_error(status, text), GATEWAY).error_type == "context_overflow"
    assert outcome.of_error(openai_error(500, text), GATEWAY).error_type == "engine"


@pytest.mark.parametrize(
    "text",
    [
        "bad role",
        "max_tokens must be at least 1, got -5",
        "'context' is not a field of a message",
        "the request exceeds the rate limit",
        "tool 'x': description exceeds 1024 chars in this context",
        "Invalid value for 'inputs': must be a list",
    ],
)
def test_another_bad_request_is_not_context_overflow(text: str) -> None:
    assert outcome.of_error(openai_error(400, text), GATEWAY).error_type == "openai.BadRequestError"


@pytest.mark.parametrize(
    ("error", "failure_class"),
    [
        (openai_error(503, "no engine"), "infra"),
        (openai_error(503, "my tool is down", "http://tool.test"), "agent"),
        (APIConnectionError(request=request_to(GATEWAY)), "infra"),
        (APIConnectionError(request=request_to("http://tool.test")), "agent"),
        (httpx.ConnectError("refused", request=request_to(GATEWAY)), "infra"),
        (httpx.ConnectError("refused"), "agent"),
        (ConnectionError("socket"), "agent"),
    ],
)
def test_only_a_gateway_that_gives_no_answer_is_the_infrastructures_failure(
    error: Exception, failure_class: str
) -> None:
    ended = outcome.of_error(error, GATEWAY)
    assert ended.failure_class == failure_class
    assert (ended.error_type == "engine") == (failure_class == "infra")


def test_the_end_marker_carries_the_tasks_context() -> None:
    assignment = Assignment("wo-1", "at-1", attempt_number=3, task=TASK, pins={"policy": 4})
    end = outcome.end_marker(assignment, TASK, Outcome("succeeded", 1.0), "wo-1", 99)
    assert (end.status, end.end_ns, end.final) == ("succeeded", 99, True)
    context = end.context
    assert (context.run_id, context.group_id, context.sample, context.group_size) == ("run-1", "gr-1", 1, 4)
    assert (context.pins, context.credit.mode, context.data_id) == ({"policy": 4}, "last", "d")
    assert (context.attempt_number, context.worker_id) == (3, "wo-1")


@pytest.mark.parametrize(
    ("ended", "final"),
    [
        (Outcome("succeeded"), True),
        (outcome.of_error(ValueError("boo"), GATEWAY), True),
        (outcome.of_error(openai_error(503, "x"), GATEWAY), False),
        (outcome.of_order("returned", "stopping"), False),
        (outcome.of_order("cancelled", "by hand"), True),
    ],
)
def test_a_failure_is_final_unless_it_is_tried_again(ended: Outcome, final: bool) -> None:
    task = Task("ro-1", "run-1", limits=Limits(max_attempts=2))
    end = outcome.end_marker(Assignment("wo-1", "at-1", task=task), task, ended, "wo-1", 1)
    assert end.final is final


def test_an_end_marker_is_small_whatever_was_raised() -> None:
    kind = type("K" * (1 << 20), (Exception,), {"__module__": "\ud83d"})
    ended = outcome.judge(scope(), None, kind("x" * (20 << 20)), GATEWAY)
    end = outcome.end_marker(Assignment("wo-1", "at-1", task=TASK), TASK, ended, "wo-1", 1)
    root = outcome.root_span(scope(), "my_agent", ended, 5, 9)
    assert str(end.error_type).startswith("\ufffd.KKK")
    assert len(encode_body(SpanBatch("ro-1", "at-1", "p", end=end))) < 10 << 10
    assert len(encode_body(SpanBatch("ro-1", "at-1", "p", spans=[root]))) < 4 << 20


def test_the_root_span_carries_what_was_raised() -> None:
    own = scope()
    try:
        raise ValueError("boo")
    except ValueError as error:
        ended = outcome.of_error(error, GATEWAY)
    span = outcome.root_span(own, "my_agent", ended, 5, 9)
    facts = json.loads(span.attributes)
    assert (span.name, span.span_id, span.parent_span_id) == ("my_agent", "a" * 16, None)
    assert (span.start_ns, span.end_ns, span.status, span.status_message) == (5, 9, "error", "boo")
    assert (facts[semconv.EXCEPTION_TYPE], facts[semconv.EXCEPTION_MESSAGE]) == ("ValueError", "boo")


def test_an_exception_whose_text_raises_is_still_told() -> None:
    class Mute(Exception):
        def __str__(self) -> str:
            raise RuntimeError("no")

    with record():
        assert "Mute" in str(outcome.of_error(Mute(), GATEWAY).reason)
