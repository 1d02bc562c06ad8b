"""What an agent gets to call models with: a base URL and a key that bind its calls to its attempt."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from typing import TYPE_CHECKING, Any, TypeVar, cast

from ..schemas import semconv
from . import context

if TYPE_CHECKING:
    import httpx

C = TypeVar("C")


@dataclass(frozen=True, slots=True)
class LLM:
    """A model's address for one attempt: any OpenAI-compatible client takes it as it is.

    client.with_options(base_url=llm.base_url, api_key=llm.api_key).chat.completions.create(model=llm.model, …)
    """

    endpoint: str  # base URL of the OpenAI API, with /v1
    model: str = "policy"
    api_key: str = "spanloop"  # the attempt's key; a placeholder where the URL alone binds
    sampling_parameters: Mapping[str, Any] = field(default_factory=dict[str, Any])  # from the resource that defines it

    @property
    def base_url(self) -> str:
        """The endpoint under the name that OpenAI's clients give it."""
        return self.endpoint

    def get_base_url(self, rollout_id: str | None = None, attempt_id: str | None = None) -> str:
        """The endpoint; it is bound to its attempt already, so the ids are not needed."""
        del rollout_id, attempt_id
        return self.endpoint

    @property
    def http_client(self) -> httpx.Client:
        """This process's HTTP client that notes which span a call became, for `OpenAI(http_client=…)`."""
        return _client()

    @property
    def async_http_client(self) -> httpx.AsyncClient:
        """The same for `AsyncOpenAI`; one event loop at a time may use it."""
        return _async_client()


def attempt_url(gateway_url: str, rollout_id: str, attempt_id: str) -> str:
    """Where the gateway takes the calls of an attempt."""
    return f"{gateway_url.rstrip('/')}/rollout/{rollout_id}/attempt/{attempt_id}/v1"


def capture(client: C) -> C:
    """Makes an httpx client, or an OpenAI client around one, note the span of each call and send its parent.

    Step rewards then find the call they judge, and calls hang under the operation that made them.
    """
    import httpx

    inner = client if isinstance(client, (httpx.Client, httpx.AsyncClient)) else getattr(client, "_client", None)
    if isinstance(inner, httpx.AsyncClient):
        _hook(inner, _on_request_async, _on_response_async)
    elif isinstance(inner, httpx.Client):
        _hook(inner, _on_request, _on_response)
    else:
        raise TypeError(f"capture takes an httpx or OpenAI client, got {type(client).__name__}")
    return client


def _hook(client: httpx.Client | httpx.AsyncClient, on_request: Any, on_response: Any) -> None:
    hooks = cast("dict[str, list[Any]]", client.event_hooks)
    if on_response not in hooks["response"]:
        client.event_hooks = {
            "request": [*hooks["request"], on_request],
            "response": [*hooks["response"], on_response],
        }


def _on_request(request: httpx.Request) -> None:
    scope, parent = context.active(), context.parent()
    if scope is not None and parent is not None and semconv.TRACEPARENT_HEADER not in request.headers:
        request.headers[semconv.TRACEPARENT_HEADER] = f"00-{scope.trace_id}-{parent}-01"


def _on_response(response: httpx.Response) -> None:
    span_id = response.headers.get(semconv.SPAN_ID_HEADER)
    if span_id:
        context.note_call(span_id)


async def _on_request_async(request: httpx.Request) -> None:
    _on_request(request)


async def _on_response_async(response: httpx.Response) -> None:
    _on_response(response)


@cache
def _client() -> httpx.Client:
    import httpx

    return capture(httpx.Client(timeout=None, follow_redirects=True))


@cache
def _async_client() -> httpx.AsyncClient:
    import httpx

    return capture(httpx.AsyncClient(timeout=None, follow_redirects=True))
