"""What an agent gets to call models with: a base URL and a key that bind its calls to its attempt."""

from __future__ import annotations

from collections.abc import Mapping, MutableMapping
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeVar

from ..schemas import semconv
from . import context

C = TypeVar("C")


class _Message(Protocol):
    """A request or response of httpx or of a library of its shape: OpenAI's client has one of its own."""

    headers: MutableMapping[str, str]


@dataclass(frozen=True, slots=True)
class LLM:
    """A model's address for one attempt: any OpenAI-compatible client takes it as it is.

    client.with_options(base_url=llm.base_url, api_key=llm.api_key).chat.completions.create(model=llm.model, …)
    """

    endpoint: str  # base URL of the OpenAI API, with /v1
    model: str = "policy"
    api_key: str = field(default="spanloop", repr=False)  # the attempt's key; a placeholder where the URL alone binds
    sampling_parameters: Mapping[str, Any] = field(default_factory=dict[str, Any])  # from the resource that defines it

    @property
    def base_url(self) -> str:
        """The endpoint under the name that OpenAI's clients give it."""
        return self.endpoint

    def get_base_url(self, rollout_id: str | None = None, attempt_id: str | None = None) -> str:
        """The endpoint; it is bound to its attempt already, so the ids are not needed."""
        del rollout_id, attempt_id
        return self.endpoint


def attempt_url(gateway_url: str, rollout_id: str, attempt_id: str) -> str:
    """Where the gateway takes the calls of an attempt."""
    return f"{gateway_url.rstrip('/')}/rollout/{rollout_id}/attempt/{attempt_id}/v1"


def capture(client: C) -> C:
    """Makes an httpx client, or an OpenAI client around one, note the span of each call and send its parent.

    Step rewards then find the call they judge, and calls hang under the operation that made them. Copies of an OpenAI
    client (`with_options`) share what is captured.
    """
    inner: Any = client if hasattr(client, "event_hooks") else getattr(client, "_client", None)
    if not hasattr(inner, "event_hooks"):
        raise TypeError(f"capture takes an httpx or OpenAI client, got {type(client).__name__}")
    pair = (_on_request_async, _on_response_async) if hasattr(inner, "aclose") else (_on_request, _on_response)
    hooks: dict[str, list[Any]] = inner.event_hooks
    if pair[1] not in hooks["response"]:
        inner.event_hooks = {"request": [*hooks["request"], pair[0]], "response": [*hooks["response"], pair[1]]}
    return client


def _on_request(request: _Message) -> None:
    scope, parent = context.active(), context.parent()
    if scope is not None and parent is not None and semconv.TRACEPARENT_HEADER not in request.headers:
        request.headers[semconv.TRACEPARENT_HEADER] = f"00-{scope.trace_id}-{parent}-01"


def _on_response(response: _Message) -> None:
    span_id = response.headers.get(semconv.SPAN_ID_HEADER)
    if span_id:
        context.note_call(span_id)


async def _on_request_async(request: _Message) -> None:
    _on_request(request)


async def _on_response_async(response: _Message) -> None:
    _on_response(response)
