"""Which model calls can be trained on, and why the others cannot. Pure.

Of n > 1 choices the agent uses one: the choice from whose response a later prompt goes on. Where no prompt goes on
from any (a last turn, a single-turn task), it is choice 0, which is what clients read; a reward earned by one answer
must not teach the others. `choices="all"` in the policy keeps every choice, for agents that vote.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from itertools import pairwise
from typing import Literal

from ..schemas.records import VersionRun
from .nodes import SpanNode
from .prefixes import TOKEN_BYTES, Entry, Prefixes, Work

ChoiceRule = Literal["used", "all"]
Excluded = str  # one of semconv.FLAGS


def excluded(node: SpanNode, prompt: bytes | None) -> Excluded | None:
    """Why a call cannot be trained on whatever its siblings are; None = it can. prompt: whole, packed."""
    call = node.call
    if call is None:
        return "no_token_ids"
    if not call.delivered:
        return "undelivered"
    if call.client_retry:
        return "client_retry"
    if prompt is None or call.response_ids is None:
        return "no_token_ids"
    if len(prompt) % TOKEN_BYTES or len(call.response_ids) % TOKEN_BYTES:
        return "bad_packing"
    if call.logprobs is not None and len(call.logprobs) != len(call.response_ids):
        return "bad_packing"
    if not _is_cut(call.policy_versions, len(call.response_ids) // TOKEN_BYTES):
        return "bad_packing"
    if not call.response_ids:
        return "empty"
    if call.policy is None:
        return "foreign_model"
    if call.constrained:
        return "sampling_untrainable"
    return "multimodal" if call.multimodal else None


def _is_cut(runs: Sequence[VersionRun], length: int) -> bool:
    """Whether runs follow each other within a response of so many tokens."""
    borders = [0, *(border for run in runs for border in (run.start, run.end)), length]
    return all(a <= b for a, b in pairwise(borders))


def unused_choices(nodes: Sequence[SpanNode], prompts: Sequence[bytes | None]) -> set[int]:
    """Indices of choices of n > 1 that the agent did not use. nodes, prompts: (K,) calls and their whole prompts."""
    requests: dict[tuple[object, ...], list[int]] = defaultdict(list)
    for i, node in enumerate(nodes):
        if node.call is not None and node.call.choices > 1 and excluded(node, prompts[i]) is None:
            requests[_request(node, prompts[i])].append(i)
    if not requests:
        return set()
    continued = _continued([i for members in requests.values() for i in members], nodes, prompts)
    out: set[int] = set()
    for members in requests.values():
        used = {i for i in members if i in continued} or {min(members, key=lambda i: nodes[i].choice)}
        out |= set(members) - used
    return out


def _request(node: SpanNode, prompt: bytes | None) -> tuple[object, ...]:
    """Choices of one request share a span, or else parent, start and prompt."""
    call = node.call
    assert call is not None
    return (node.parent, node.start_ns, prompt, call.choices)


def _continued(members: Sequence[int], nodes: Sequence[SpanNode], prompts: Sequence[bytes | None]) -> set[int]:
    """Which choices a prompt of any call goes on from; of equal ones the lowest choice."""
    known: Prefixes[int] = Prefixes(Work())
    for i in members:
        known.add(Entry(prompts[i] or b"", _response(nodes[i]), i))
    out: set[int] = set()
    for prompt in prompts:
        best: dict[int, int] = {}
        for entry in known.starting(prompt) if prompt is not None else ():
            kept = best.setdefault(entry.length, entry.item)
            best[entry.length] = min(kept, entry.item, key=lambda i: nodes[i].choice)
        out |= set(best.values())
    return out


def _response(node: SpanNode) -> bytes:
    return (node.call.response_ids if node.call is not None else None) or b""
