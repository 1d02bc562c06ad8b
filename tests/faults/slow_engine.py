"""An engine with vLLM's fields whose answers take a while, so that a fault finds calls and streams half done."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any

from spanloop.infra.scripted_engine import ScriptedEngine, Step, Streamed, Whole

Json = dict[str, Any]

GAP_S = 0.03
PROMPT_IDS = [1, 2, 3, 4]
IDS = [11, 12, 13]
# Version 1 is what the trainer publishes first.
VERSION = 1


class Gap(threading.Event):
    """Set a moment after it is first looked at; `begun` is told when that will be."""

    def __init__(self, seconds: float, begun: Callable[[float], None]) -> None:
        super().__init__()
        self._seconds = seconds
        self._begun = begun
        self._due: float | None = None

    def is_set(self) -> bool:
        if self._due is None:
            self._due = time.monotonic() + self._seconds
            self._begun(self._due)
        return time.monotonic() >= self._due


class SlowEngine(ScriptedEngine):
    """Answers every call alike."""

    def __init__(self) -> None:
        self._gap_until = 0.0
        super().__init__(Whole({}))

    @property
    def streaming(self) -> bool:
        """Whether a stream has begun and what is left of it has not been sent."""
        return time.monotonic() < self._gap_until

    def _gap(self, until: float) -> None:
        self._gap_until = until

    def next_step(self) -> Step:
        streamed = bool(self.requests[-1].get("stream"))
        self.requests.clear()
        self.headers.clear()
        return self._streamed() if streamed else whole()

    def _streamed(self) -> Streamed:
        steps: list[Json | str | bytes | threading.Event] = []
        for i, token in enumerate(IDS):
            chunk = _chunk({"content": "word "}, token, last=i == len(IDS) - 1)
            steps += [chunk if i else {**chunk, "prompt_token_ids": PROMPT_IDS}, Gap(GAP_S, self._gap)]
        return Streamed([*steps, "[DONE]"])


def whole() -> Whole:
    """The answer to a call that does not stream."""
    choice = {
        "index": 0,
        "message": {"role": "assistant", "content": "word word word"},
        "finish_reason": "stop",
        "logprobs": _logprobs(len(IDS)),
        "token_ids": IDS,
        "weight_versions": _versions(),
    }
    top = {"id": "c", "object": "chat.completion", "created": 7, "model": "policy", "choices": [choice]}
    return Whole({**top, "prompt_token_ids": PROMPT_IDS})


def _chunk(delta: Json, token: int, *, last: bool) -> Json:
    choice: Json = {"index": 0, "delta": delta, "logprobs": _logprobs(1), "token_ids": [token]}
    if last:
        choice |= {"finish_reason": "stop", "weight_versions": _versions()}
    return {"id": "c", "object": "chat.completion.chunk", "created": 7, "model": "policy", "choices": [choice]}


def _versions() -> list[dict[str, int]]:
    return [{"start": 0, "end": len(IDS), "version": VERSION}]


def _logprobs(count: int) -> Json:
    return {"content": [{"token": "t", "logprob": -0.5} for _ in range(count)]}
