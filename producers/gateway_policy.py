"""How a gateway behaves: limits, time-outs, what it asks engines for."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from ..schemas.spans import LogprobMode

Unknown = Literal["refuse", "serve"]


@dataclass(frozen=True, slots=True)
class GatewayPolicy:
    """Frozen; the defaults suit vLLM and the embedded engine. Seconds and bytes."""

    upstream_url: str | None = None
    """Any OpenAI-compatible endpoint, with or without /v1; None = the engines that send heartbeats."""
    upstream_key: str | None = field(default=None, repr=False)
    """Bearer token for the upstream; None = none is sent."""
    upstream_policy: str | None = None
    """Policy that `upstream_url` serves; None = a foreign model, unless it reports weight versions."""
    ask_logprobs: bool = True
    """Ask for log-probs; off for providers that refuse them."""
    ask_token_ids: bool = True
    """Ask for token ids (`return_token_ids`, vLLM's); off for providers that refuse unknown fields."""
    ask_usage: bool = True
    """Ask for the usage chunk when streaming."""
    logprob_mode: LogprobMode = "unknown"
    """What the engines' log-probs are of, where their heartbeats do not say (`versions["logprobs_mode"]`)."""
    unknown_attempts: Unknown = "refuse"
    """Calls for attempts that are not live: refuse with 404, or serve and keep out of every rollout."""
    max_request_bytes: int = 32 << 20
    """Larger request bodies are refused with 413."""
    max_answer_bytes: int = 64 << 20
    """Larger answers are cut off with 502."""
    max_calls: int = 1024
    """Calls at once; more are refused with 429."""
    max_tries: int = 3
    """Upstream tries a call, on connection errors and 503 only."""
    retry_pause_s: float = 0.2
    """Pause before the second try; doubles with each further one."""
    ack_timeout_s: float = 10.0
    """How long a finished answer is held back for the broker's acknowledgement before the call fails."""
    call_timeout_s: float = 600.0
    """Longest upstream call, from request to last byte."""
    connect_timeout_s: float = 5.0
    """Longest wait for an upstream connection."""
    engine_wait_s: float = 30.0
    """How long a call waits for a live engine of its policy and version."""
    engine_stale_s: float = 15.0
    """An engine not heard of for so long is not used."""
    attempt_wait_s: float = 5.0
    """How long reading the attempts log to its end may take before an unknown attempt is refused with 503."""
