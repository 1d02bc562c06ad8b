"""What the engine is asked for: vLLM's request bodies, checked, and turned into generations. No network, no torch."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from random import Random
from typing import Literal, TypeVar, cast

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from .embedded_engine_scheduler import Drawn, Generation

# Fields that would change the distribution in ways this engine does not do, with the values that mean "off".
# Anything else is refused: log-probs of another distribution than the caller believes cannot be trained on.
UNSUPPORTED: dict[str, tuple[object, ...]] = {
    "min_p": (0, 0.0),
    "presence_penalty": (0, 0.0),
    "frequency_penalty": (0, 0.0),
    "repetition_penalty": (1, 1.0),
    "logit_bias": ({},),
    "bad_words": ([],),
    "min_tokens": (0,),
    "structured_outputs": (),
    "response_format": ({"type": "text"},),
    "use_beam_search": (False,),
}
UNSUPPORTED_TOOL_CHOICES = ("required",)


class RefusedRequest(Exception):
    """The request cannot be served; carries the answer's status and vLLM's error body."""

    def __init__(self, message: str, *, status: int = 400, kind: str = "BadRequestError", param: str | None = None):
        super().__init__(message)
        self.status = status
        self.body = {"error": {"message": message, "type": kind, "param": param, "code": status}}


R = TypeVar("R", bound=BaseModel)


class StreamOptions(BaseModel):
    """What a stream brings besides its content."""

    include_usage: bool = False


class _Request(BaseModel):
    """What chat and plain completions share. Fields that are null count as absent; unknown ones are ignored."""

    model_config = ConfigDict(extra="ignore", frozen=True)

    model: str | None = None
    max_tokens: int | None = Field(default=None, ge=0)
    temperature: float = Field(default=1.0, ge=0, allow_inf_nan=False)
    top_p: float = Field(default=1.0, gt=0, le=1)
    top_k: int = Field(default=0, ge=-1)
    seed: int | None = None
    n: int = Field(default=1, ge=1, le=128)
    stop: str | list[str] = Field(default_factory=list[str])
    stop_token_ids: list[int] = Field(default_factory=list[int])
    ignore_eos: bool = False
    return_token_ids: bool = False
    prompt_logprobs: int | None = Field(default=None, ge=0, le=20)

    @model_validator(mode="before")
    @classmethod
    def _present(cls, data: object) -> object:
        if not isinstance(data, dict):
            return data
        given = {k: v for k, v in cast("dict[str, object]", data).items() if v is not None}
        for name, off in UNSUPPORTED.items():
            if name in given and given[name] not in off:
                raise ValueError(f"{name}={given[name]!r} is not supported by the embedded engine; use vLLM")
        if given.get("tool_choice") in UNSUPPORTED_TOOL_CHOICES or isinstance(given.get("tool_choice"), dict):
            raise ValueError("forced tool calls are not supported by the embedded engine; use vLLM")
        return given

    @property
    def stops(self) -> tuple[str, ...]:
        """The stop strings, without empty ones."""
        return tuple(s for s in ([self.stop] if isinstance(self.stop, str) else self.stop) if s)


class ChatRequest(_Request):
    """A body of /v1/chat/completions."""

    messages: list[dict[str, object]] = Field(min_length=1)
    max_tokens: int | None = Field(default=None, ge=1)
    max_completion_tokens: int | None = Field(default=None, ge=1)
    logprobs: bool = False
    top_logprobs: int = Field(default=0, ge=0, le=20)
    stream: bool = False
    stream_options: StreamOptions = StreamOptions()
    tools: list[dict[str, object]] = Field(default_factory=list[dict[str, object]])
    add_generation_prompt: bool = True
    chat_template_kwargs: dict[str, object] = Field(default_factory=dict[str, object])

    @property
    def limit(self) -> int | None:
        """The most tokens to generate, if given."""
        return self.max_tokens if self.max_completion_tokens is None else self.max_completion_tokens

    @property
    def top(self) -> int:
        """How many alternatives a token's log-prob brings."""
        return self.top_logprobs if self.logprobs else 0


class CompletionRequest(_Request):
    """A body of /v1/completions with one prompt, text or token ids. Not streamed."""

    prompt: str | list[int]
    logprobs: int | None = Field(default=None, ge=0, le=20)
    echo: bool = False
    stream: Literal[False] = False  # refused rather than ignored

    @property
    def limit(self) -> int:
        """The most tokens to generate; 16 where not said, as in OpenAI's API."""
        return 16 if self.max_tokens is None else self.max_tokens

    @property
    def top(self) -> int:
        """How many alternatives a token's log-prob brings."""
        return self.logprobs or 0


def parse(kind: type[R], raw: bytes) -> R:
    """A body as `kind`. Raises RefusedRequest naming every field that does not fit."""
    try:
        return kind.model_validate_json(raw)
    except ValidationError as error:
        wrong = "; ".join(f"{'.'.join(map(str, e['loc'])) or 'body'}: {e['msg']}" for e in error.errors())
        raise RefusedRequest(wrong) from error


def chat_messages(messages: list[dict[str, object]]) -> list[dict[str, object]]:
    """Messages as chat templates expect them: text content, no empty tool_calls, tool arguments as objects."""
    return [_message(m) for m in messages]


def _message(message: Mapping[str, object]) -> dict[str, object]:
    out = {**message, "content": _text(message.get("content"))}
    if calls := out.pop("tool_calls", None):
        out["tool_calls"] = [_tool_call(call) for call in cast("list[object]", calls)]
    return out


def _text(content: object) -> str:
    if content is None:
        return ""
    if isinstance(content, str):
        return content
    parts: list[str] = []
    for part in cast("list[object]", content) if isinstance(content, list) else [content]:
        if not isinstance(part, dict) or not isinstance(text := cast("dict[str, object]", part).get("text"), str):
            raise RefusedRequest(f"message content {part!r} is no text; the embedded engine serves text only")
        parts.append(text)
    return "\n".join(parts)


def _tool_call(call: object) -> object:
    outer = cast("dict[str, object]", call) if isinstance(call, dict) else {}
    function = outer.get("function")
    if not isinstance(function, dict):
        return cast("object", call)
    held = cast("dict[str, object]", function)
    arguments = held.get("arguments")
    if isinstance(arguments, str):
        try:
            arguments = json.loads(arguments or "{}")
        except ValueError:  # a model's broken call stays the text it was
            return cast("object", call)
    return {**outer, "function": {**held, "arguments": arguments}}


def room(prompt: int, limit: int | None, longest: int) -> int:
    """How many tokens may be generated. Raises RefusedRequest in vLLM's words where they would not fit."""
    asked = 1 if limit is None else limit
    if prompt + asked > longest:
        raise RefusedRequest(
            f"This model's maximum context length is {longest} tokens. However, you requested {prompt + asked} tokens "
            f"({prompt} in the messages, {asked} in the completion). Please reduce the length of the messages or "
            "completion."
        )
    return longest - prompt if limit is None else limit


def generations(
    request: ChatRequest | CompletionRequest,
    prompt: list[int],
    *,
    max_tokens: int,
    eos: frozenset[int],
    seeds: Random,
    sink: Callable[[int], Callable[[Drawn], None]],
) -> list[Generation]:
    """One generation per choice; choice i of a seeded request draws from seed and i alone."""
    stop_ids = frozenset(request.stop_token_ids) | (frozenset[int]() if request.ignore_eos else eos)
    return [
        Generation(
            prompt=prompt,
            max_tokens=max_tokens,
            sink=sink(index),
            rng=Random(seeds.getrandbits(64) if request.seed is None else f"{request.seed}/{index}"),
            temperature=request.temperature,
            top_p=request.top_p,
            top_k=max(0, request.top_k),
            top_logprobs=request.top,
            stop_ids=stop_ids,
        )
        for index in range(request.n)
    ]
