"""What of a trajectory may be trained on at all: its agents, its rows' sampling, policy and length. Pure."""

from __future__ import annotations

import math
import re
from collections import Counter
from dataclasses import replace

import numpy as np

from ..schemas.records import Row, Sampling, Segment, Trajectory
from .config import TrainerConfig

# Why a call is left out beside another that stands for it.
BESIDE = ("same_call", "unused_choice")


def of_agents(t: Trajectory, pattern: str) -> tuple[Trajectory, int]:
    """A trajectory with only the calls and rows of agents whose path `pattern` finds, and how many rows it lost.

    As if the others had made no call: neither their step rewards nor their places in the order reach what is kept.
    """
    if not pattern:
        return t, 0
    kept = [k for k, call in enumerate(t.calls) if re.search(pattern, call.agent_path)]
    at = {k: position for position, k in enumerate(kept)}
    rows = [row for row in t.rows if re.search(pattern, row.agent_path)]
    moved = [replace(row, segments=[Segment(s.start, s.end, at[s.call]) for s in row.segments]) for row in rows]
    return replace(t, calls=[t.calls[k] for k in kept], rows=moved), len(t.rows) - len(rows)


def no_rows_reason(t: Trajectory) -> str:
    """Why a trajectory has no row: what most of its calls were left out for, copies and unused choices last."""
    reasons = Counter(call.excluded for call in t.calls if call.excluded is not None)
    return max(reasons, key=lambda why: (why not in BESIDE, reasons[why])) if reasons else "no_llm_calls"


def row_reason(row: Row, config: TrainerConfig, vocabulary: int) -> str | None:
    """Why a whole row is left out; None = it is not. `vocabulary`: how many token ids the policy has."""
    if row.policy is not None and row.policy != config.policy:
        return "foreign_model"
    if untrainable(row.sampling):
        return "sampling_untrainable"
    if len(row.mask) > config.max_row_tokens:
        return "too_long"
    ids = np.frombuffer(row.token_ids, "<i4")
    return "foreign_token_ids" if ((ids < 0) | (ids >= vocabulary)).any() else None


def untrainable(sampling: Sampling) -> bool:
    """True where the log-probs are not surely those of softmax(logits / T): what the trainer computes would not match.

    null is the engine's default: temperature 1, everything else off. Raw log-probs are those of T = 1, as may be those
    of an engine that does not say which it gives.
    """
    temperature = 1.0 if sampling.temperature is None else sampling.temperature
    return (
        not 0 < temperature < math.inf
        or sampling.top_p not in (None, 1.0)
        or sampling.top_k not in (None, 0, -1)
        or sampling.min_p not in (None, 0.0)
        or sampling.penalties
        or (sampling.logprob_mode != "processed" and temperature != 1.0)
    )
