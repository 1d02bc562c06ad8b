"""A model call told by a span's attributes alone, as instrumentation of engines without a gateway does. Pure.

Names differ between libraries, so a call is known by what it carries: token ids, or the prompt as one attribute.
Attributes of the GenAI conventions are not enough: instrumented clients of a gateway write them for a call that the
gateway has recorded already.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from typing import cast

from . import semconv
from .messages import UNREADABLE, entries
from .packed import pack_ids, pack_logprobs, unpack_logprobs
from .spans import ModelCall, VersionRun

DEFAULT_POLICY = "policy"
MAX_LONG = (1 << 63) - 1  # of a policy version


def call_of(attributes: Mapping[str, object] | None) -> ModelCall | None:
    """The call that a span is; None = it is none. Without ids it is kept, but never trained on."""
    if not attributes or not any(name in attributes for name in semconv.CALL_NAMES):
        return None
    prompt, response = _ids(attributes, semconv.PROMPT_IDS), _ids(attributes, semconv.RESPONSE_IDS)
    complete = prompt is not None and response is not None
    model = _text(attributes.get(semconv.GEN_AI_REQUEST_MODEL)) or ""
    policy = _text(attributes.get(semconv.POLICY)) or ((model or DEFAULT_POLICY) if complete else None)
    logprobs = _logprobs(attributes, len(response or ()))
    return ModelCall(
        request=_text(attributes.get(semconv.GEN_AI_PROMPT)) or _messages(attributes),
        response=_text(attributes.get(semconv.GEN_AI_COMPLETION)),
        prompt_ids=None if prompt is None else pack_ids(prompt),
        response_ids=None if response is None else pack_ids(response),
        logprobs=logprobs,
        policy=policy,
        policy_versions=_versions(attributes.get(semconv.POLICY_VERSION), len(response or ())),
        model=model,
        flags=[] if complete else ["no_token_ids"],
        nonfinite_logprobs=0 if logprobs is None else sum(not math.isfinite(x) for x in unpack_logprobs(logprobs)),
    )


def _versions(version: object, length: int) -> list[VersionRun]:
    known = type(version) is int and 0 <= version <= MAX_LONG
    return [VersionRun(cast("int", version), 0, length)] if known else []


def _messages(attributes: Mapping[str, object]) -> str:
    found = entries(attributes)
    return json.dumps({"messages": found}, default=str) if found else "{}"


def _ids(attributes: Mapping[str, object], names: Iterable[str]) -> list[int] | None:
    for name in names:
        found = _sequence(attributes.get(name))
        if found is not None and all(type(i) is int and -(1 << 31) <= i < 1 << 31 for i in found):
            return cast("list[int]", list(found))
    return None


def _logprobs(attributes: Mapping[str, object], length: int) -> bytes | None:
    for name in semconv.RESPONSE_LOGPROBS:
        found = _sequence(attributes.get(name))
        if found is not None and len(found) == length and all(_is_logprob(x) for x in found):
            return pack_logprobs(cast("Sequence[float | None]", found))
    return None


def _is_logprob(x: object) -> bool:
    return x is None or isinstance(x, float) or (type(x) is int and abs(x) <= MAX_LONG)


def _sequence(value: object) -> Sequence[object] | None:
    """A list, also as JSON; of a list of one list, as engines answer for one prompt, the inner one."""
    if isinstance(value, str):
        try:
            value = json.loads(value)
        except UNREADABLE:
            return None
    if not isinstance(value, (list, tuple)):
        return None
    found = cast("Sequence[object]", value)
    inner = found[0] if len(found) == 1 else None
    return cast("Sequence[object]", inner) if isinstance(inner, (list, tuple)) else found


def _text(value: object) -> str | None:
    return None if value is None else value if isinstance(value, str) else json.dumps(value, default=str)
