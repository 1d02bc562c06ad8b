"""A model call told by a span's attributes alone, as instrumentation of engines without a gateway does. Pure.

Names differ between libraries, so a call is known by what it carries: token ids, or the prompt as one attribute.
Attributes of the GenAI conventions are not enough: instrumented clients of a gateway write them for a call that the
gateway has recorded already.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import cast

from . import semconv
from .messages import entries
from .packed import pack_ids, pack_logprobs
from .spans import ModelCall, VersionRun

DEFAULT_POLICY = "policy"


def call_of(attributes: Mapping[str, object] | None) -> ModelCall | None:
    """The call that a span is; None = it is none. Without ids it is kept, but never trained on."""
    if not attributes or not any(name in attributes for name in semconv.CALL_NAMES):
        return None
    prompt, response = _ids(attributes, semconv.PROMPT_IDS), _ids(attributes, semconv.RESPONSE_IDS)
    complete = prompt is not None and response is not None
    model = _text(attributes.get(semconv.GEN_AI_REQUEST_MODEL)) or ""
    policy = _text(attributes.get(semconv.POLICY)) or ((model or DEFAULT_POLICY) if complete else None)
    version = attributes.get(semconv.POLICY_VERSION)
    logprobs = _logprobs(attributes, len(response or ()))
    return ModelCall(
        request=_text(attributes.get(semconv.GEN_AI_PROMPT)) or _messages(attributes),
        response=_text(attributes.get(semconv.GEN_AI_COMPLETION)),
        prompt_ids=None if prompt is None else pack_ids(prompt),
        response_ids=None if response is None else pack_ids(response),
        logprobs=None if logprobs is None else pack_logprobs(logprobs),
        policy=policy,
        policy_versions=[VersionRun(version, 0, len(response or ()))] if isinstance(version, int) else [],
        model=model,
        flags=[] if complete else ["no_token_ids"],
    )


def _messages(attributes: Mapping[str, object]) -> str:
    found = entries(attributes)
    return json.dumps({"messages": found}, default=str) if found else "{}"


def _ids(attributes: Mapping[str, object], names: Iterable[str]) -> list[int] | None:
    for name in names:
        found = _sequence(attributes.get(name))
        if found is not None and all(type(i) is int and -(1 << 31) <= i < 1 << 31 for i in found):
            return cast("list[int]", list(found))
    return None


def _logprobs(attributes: Mapping[str, object], length: int) -> list[float | None] | None:
    for name in semconv.RESPONSE_LOGPROBS:
        found = _sequence(attributes.get(name))
        if found is not None and len(found) == length and all(isinstance(x, (int, float, type(None))) for x in found):
            return cast("list[float | None]", list(found))
    return None


def _sequence(value: object) -> Sequence[object] | None:
    """A list, also as JSON; of a list of one list, as engines answer for one prompt, the inner one."""
    if isinstance(value, str):
        try:
            value = json.loads(value)
        except ValueError:
            return None
    if not isinstance(value, (list, tuple)):
        return None
    found = cast("Sequence[object]", value)
    inner = found[0] if len(found) == 1 else None
    return _sequence(cast("object", inner)) if isinstance(inner, (list, tuple)) else found


def _text(value: object) -> str | None:
    return None if value is None else value if isinstance(value, str) else json.dumps(value, default=str)
