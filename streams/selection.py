"""Which model calls can be trained on, and why the others cannot. Pure.

Of n > 1 choices the agent uses one: the choice from whose response a later prompt goes on. Where no prompt goes on
from any (a last turn, a single-turn task), it is choice 0, which is what clients read; a reward earned by one answer
must not teach the others. `choices="all"` in the policy keeps every choice, for agents that vote.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from typing import Literal

from ..schemas.records import VersionRun
from .nodes import SpanNode
from .order import Tree, calls_above
from .prefixes import TOKEN_BYTES, Entry, Prefixes, Work

ChoiceRule = Literal["used", "all"]
Excluded = str  # one of semconv.FLAGS
# Calls told whole that are not trained on: an agent goes on from them, and another span may tell them, as any other.
UNTRAINED = frozenset({"token_count_mismatch", "sampling_untrainable", "multimodal"})
# Calls among which the agent chose. A call to no policy is one, but no twin: a client may not know that it is one's.
CHOSEN = UNTRAINED | {None, "foreign_model"}


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
    if "token_count_mismatch" in call.flags:
        return "token_count_mismatch"
    if call.policy is None:
        return "foreign_model"
    if call.constrained:
        return "sampling_untrainable"
    return "multimodal" if call.multimodal else None


def _is_cut(runs: Sequence[VersionRun], length: int) -> bool:
    """Whether runs follow each other within a response of so many tokens."""
    at = 0
    for run in runs:
        if not at <= run.start <= run.end:
            return False
        at = run.end
    return at <= length


def same_calls(
    nodes: Sequence[SpanNode], prompts: Sequence[bytes | None], reasons: Sequence[Excluded | None], tree: Tree
) -> dict[int, int]:
    """Calls that were seen twice, and the one of each that stays. nodes, prompts, reasons: (K,).

    A call inside another call's span with the very same ids is that call, told by a client's instrumentation and by the
    gateway. One that is not trained stays, so that its copy is not either; else the one with policy versions, else the
    outer one. Equal calls side by side are different samples.
    """
    told = [i for i, reason in enumerate(reasons) if reason is None or reason in UNTRAINED]
    if len({(len(prompts[i] or b""), _response(nodes[i])) for i in told}) == len(told):
        return {}  # no two are alike, so none is looked for above another
    above = calls_above(nodes, tree)
    open_: dict[tuple[str | None, bytes | None, bytes], list[int]] = defaultdict(list)
    inner: dict[int, int] = {}
    chosen = sorted(told, key=lambda i: (nodes[i].choice, i))
    for i in reversed(chosen):
        open_[nodes[i].span_id, prompts[i], _response(nodes[i])].append(i)
    for i in chosen:
        if outer := open_.get((above[nodes[i].span_id], prompts[i], _response(nodes[i]))):
            inner[outer.pop()] = i  # one inner call each
    out: dict[int, int] = {}
    for i in inner.keys() - inner.values():
        chain = [i]
        while chain[-1] in inner:
            chain.append(inner[chain[-1]])
        kept = min(chain, key=lambda k: (reasons[k] is None, not _versioned(nodes[k])))
        out |= {k: kept for k in chain if k != kept}
    return out


def _versioned(node: SpanNode) -> bool:
    return node.call is not None and bool(node.call.policy_versions)


def unused_choices(
    nodes: Sequence[SpanNode],
    prompts: Sequence[bytes | None],
    reasons: Sequence[Excluded | None],
    work: Work | None = None,
) -> set[int]:
    """Indices of choices of n > 1 that the agent did not use.

    nodes, prompts, reasons: (K,) calls, their whole prompts, why they are not trained on whatever their siblings are.
    """
    requests: dict[tuple[object, ...], list[int]] = defaultdict(list)
    for i, node in enumerate(nodes):
        if node.call is not None and node.call.choices > 1 and reasons[i] in CHOSEN:
            requests[_request(node, prompts[i])].append(i)
    if not requests:
        return set()
    continued = _continued(requests.values(), nodes, prompts, work or Work())
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


def _continued(
    requests: Iterable[Sequence[int]], nodes: Sequence[SpanNode], prompts: Sequence[bytes | None], work: Work
) -> set[int]:
    """Which choices a prompt of any call goes on from: the longest of a request; of equal ones the lowest choice."""
    request_of = {i: number for number, members in enumerate(requests) for i in members}
    lowest: dict[tuple[bytes, bytes], int] = {}
    for i in sorted(request_of, key=lambda i: (nodes[i].choice, i)):
        lowest.setdefault((prompts[i] or b"", _response(nodes[i])), i)
    known: Prefixes[int] = Prefixes(work)
    for (prompt, response), i in lowest.items():
        known.add(Entry(prompt, response, i))
    out: set[int] = set()
    for prompt in prompts:
        length, searched = -1, -1  # the prompt of a choice found here is searched itself, for all that it goes on from
        answered = set[int]()
        for entry in known.starting(prompt) if prompt is not None else ():
            if entry.length <= searched:
                break
            searched = max(searched, len(entry.head))
            if entry.length != length and request_of[entry.item] not in answered:
                out.add(entry.item)
                answered.add(request_of[entry.item])
                length = entry.length
    return out


def _response(node: SpanNode) -> bytes:
    return (node.call.response_ids if node.call is not None else None) or b""
