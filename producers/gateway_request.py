"""The agent's request: what is recorded of it, what goes upstream, and what the agent must not notice.

Upstream gets the agent's own fields and, on top, log-probs, token ids and usage; what the agent did not ask for itself
is taken out of the answer again (`gateway_answer`).
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass

from ..schemas.spans import Sampling
from ..schemas.topics import SPANS
from .attributes import clean
from .gateway_errors import Refused
from .gateway_json import Object, dumps, integer, items, loads, number, obj, text
from .gateway_policy import GatewayPolicy

# Any of these fixes the form of the answer by a grammar, so that log-probs are of another distribution than drawn from.
GRAMMARS = (
    "structured_outputs", "guided_json", "guided_regex", "guided_choice", "guided_grammar", "structural_tag",
)  # fmt: skip
PENALTIES = (("frequency_penalty", 0.0), ("presence_penalty", 0.0), ("repetition_penalty", 1.0))
# Each shifts some tokens' logits or forbids them, unless it is empty or 0.
MASKS = ("logit_bias", "allowed_token_ids", "bad_words", "min_tokens", "thinking_token_budget", "logits_processors")
# Types of content parts whose text is put into the prompt; all others are images, audio, video, files, embeddings.
TEXT_PARTS = (None, "text", "refusal", "thinking", "reasoning", "input_text", "output_text", "tool_reference")
# Fields that make a part one of these whatever its type says, or if it has none: vLLM takes such parts.
MEDIA_FIELDS = ("image_url", "image_embeds", "image_pil", "audio_url", "audio_embeds", "input_audio", "video_url")
MAX_CHOICES = 128  # OpenAI's own limit
# What is left in a record for the answers with their ids; each of n spans holds the whole request.
ROOM_BYTES = 1 << 20


@dataclass(frozen=True, slots=True)
class Prepared:
    """A request as recorded and as sent."""

    recorded: str  # JSON, normalised
    body: bytes  # JSON that goes upstream
    digest: bytes  # equal for identical requests
    model: str  # "" = the engine's only one
    stream: bool
    choices: int  # n
    wants_logprobs: bool  # the agent asked for log-probs itself
    wants_ids: bool  # the agent asked for token ids itself
    wants_usage: bool  # the agent asked for the usage chunk itself, or nobody did
    sampling: Sampling
    constrained: bool
    multimodal: bool


def prepare(body: bytes, policy: GatewayPolicy) -> Prepared:
    """Reads a request body. Raises Refused(invalid_request, too_large)."""
    request = _parse(body)
    messages = items(request.get("messages"))
    _normalise(messages)
    recorded, choices = dumps(request), _choices(request)
    _check_size(len(recorded), choices)
    stream = request.get("stream") is True
    asked_usage = obj(request.get("stream_options")).get("include_usage") is True
    return Prepared(
        recorded=recorded.decode(),
        body=dumps(_extended(request, policy, stream)),
        digest=hashlib.blake2b(recorded, digest_size=16).digest(),
        model=clean(text(request.get("model")) or ""),
        stream=stream,
        choices=choices,
        wants_logprobs=request.get("logprobs") is True,
        wants_ids=request.get("return_token_ids") is True,
        wants_usage=asked_usage or not policy.ask_usage,
        sampling=_sampling(request),
        constrained=_constrained(request),
        multimodal=any(_multimodal(message) for message in messages),
    )


def _parse(body: bytes) -> Object:
    try:
        request = loads(body)
    except ValueError as error:
        raise Refused("invalid_request", f"the body cannot be read as JSON: {error}") from error
    found = obj(request)
    if not found:
        raise Refused("invalid_request", f"the body must be a JSON object with 'messages', got {body[:40]!r}")
    if not items(found.get("messages")):
        raise Refused("invalid_request", "'messages' must be a list with at least one message")
    return found


def _normalise(messages: list[object]) -> None:
    """An empty list of tool calls means none: chat templates render the two differently, so it is left out."""
    for message in messages:
        m = obj(message)
        if "tool_calls" in m and not m["tool_calls"]:
            del m["tool_calls"]


def _choices(request: Object) -> int:
    n = request.get("n")
    count = 1 if n is None else integer(n)
    if count is None or not 1 <= count <= MAX_CHOICES:
        raise Refused("invalid_request", f"'n' must be an integer from 1 to {MAX_CHOICES}, got {n!r}")
    return count


def _check_size(size: int, choices: int) -> None:
    """Refuses before an engine is asked what could not be recorded after it has answered."""
    longest = (SPANS.max_bytes - ROOM_BYTES) // choices
    if size > longest:
        raise Refused(
            "too_large",
            f"the request takes {size} bytes, and one with n={choices} is recorded up to {longest}: send less of it, "
            "such as smaller images, or ask for fewer choices",
        )


def _extended(request: Object, policy: GatewayPolicy, stream: bool) -> Object:
    out = dict(request)
    if policy.ask_logprobs:
        out["logprobs"] = True
    if policy.ask_token_ids:
        out["return_token_ids"] = True
    if stream and policy.ask_usage:
        out["stream_options"] = {**obj(request.get("stream_options")), "include_usage": True}
    return out


def _sampling(request: Object) -> Sampling:
    penalties = any(number(request.get(name)) not in (None, off) for name, off in PENALTIES)
    longest = integer(request.get("max_completion_tokens"), 32)
    return Sampling(
        temperature=number(request.get("temperature")),
        top_p=number(request.get("top_p")),
        top_k=integer(request.get("top_k"), 32),
        min_p=number(request.get("min_p")),
        seed=integer(request.get("seed")),
        max_tokens=integer(request.get("max_tokens"), 32) if longest is None else longest,
        penalties=penalties or any(request.get(name) for name in MASKS),
    )


def _constrained(request: Object) -> bool:
    form = obj(request.get("response_format")).get("type") not in (None, "text")
    return form or _forced(request.get("tool_choice")) or any(request.get(name) is not None for name in GRAMMARS)


def _forced(tool_choice: object) -> bool:
    """Whether a tool must be called. Of a choice among allowed tools its mode decides."""
    chosen = obj(tool_choice)
    if chosen.get("type") == "allowed_tools":
        return obj(chosen.get("allowed_tools")).get("mode", chosen.get("mode")) != "auto"
    return tool_choice == "required" or bool(chosen)


def _multimodal(message: object) -> bool:
    """Whether a message holds more than text; a tool's result may hold parts in turn."""
    for part in map(obj, items(obj(message).get("content"))):
        kind = part.get("type")
        if any(part.get(name) is not None for name in MEDIA_FIELDS):
            return True
        if _multimodal(part) if kind == "tool_result" else kind not in TEXT_PARTS:
            return True
    return False
