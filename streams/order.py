"""The span tree of an attempt: agent paths, missing parents, skewed clocks, and the order of its model calls.

The order is for credit and for people. What is certain comes first:

    prompt prefix   a call whose prompt holds another's response came after it, whatever any clock says
    parent          a call made inside another call's span came after it
    sequence        one producer numbers what it writes
    start time, id  ties

The first three are edges, sorted topologically; where edges contradict each other (a cycle), the weaker kind is left
out. Raw times are kept as they came: a clock that contradicts the tree is flagged, never corrected.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from heapq import heapify, heappop, heappush
from itertools import pairwise

from .nodes import SpanNode

Edge = tuple[int, int]  # indices of (earlier, later) calls
# A cycle of parents is broken data; no real tree is this deep.
MAX_DEPTH = 1_000


class Tree:
    """Spans by id. Where choices share a span, any of them stands for it."""

    def __init__(self, nodes: Iterable[SpanNode]) -> None:
        self.spans: dict[str, SpanNode] = {}
        for node in nodes:
            self.spans.setdefault(node.span_id, node)
        self._paths: dict[str, str] = {}

    def missing_parents(self) -> set[str]:
        """Parents that are named and not there."""
        return {n.parent for n in self.spans.values() if n.parent is not None and n.parent not in self.spans}

    def ancestors(self, span_id: str) -> list[SpanNode]:
        """The span and everything above it, from the span up."""
        out: list[SpanNode] = []
        at = self.spans.get(span_id)
        while at is not None and len(out) < MAX_DEPTH:
            out.append(at)
            at = self.spans.get(at.parent) if at.parent is not None else None
        return out

    def agent_path(self, span_id: str) -> str:
        """Names of the agents from the root down to a span, joined by /; one agent's nested spans name it once."""
        known = self._paths.get(span_id)
        if known is None:
            names: list[str] = []
            for node in reversed(self.ancestors(span_id)):
                if node.agent is not None and (not names or names[-1] != node.agent):
                    names.append(node.agent)
            known = self._paths[span_id] = "/".join(names)
        return known

    def skewed(self) -> bool:
        """True where a span starts before its parent, or ends before it starts."""
        for node in self.spans.values():
            parent = self.spans.get(node.parent) if node.parent is not None else None
            if (parent is not None and node.start_ns < parent.start_ns) or (
                node.end_ns is not None and node.end_ns < node.start_ns
            ):
                return True
        return False


def call_order(calls: Sequence[SpanNode], follows: Mapping[int, int], tree: Tree) -> list[int]:
    """Indices of `calls` in order. follows: call -> the call from whose response its prompt goes on."""
    prefix = [(earlier, later) for later, earlier in follows.items()]
    kinds = [prefix, _nested(calls, tree), _numbered(calls)]
    for count in range(len(kinds), 0, -1):
        order = _sorted(calls, [edge for kind in kinds[:count] for edge in kind])
        if len(order) == len(calls):
            return order
    return sorted(range(len(calls)), key=lambda i: _tie(calls[i]))


def _nested(calls: Sequence[SpanNode], tree: Tree) -> list[Edge]:
    """Calls made inside another call's span."""
    by_span: dict[str, list[int]] = defaultdict(list)
    for i, call in enumerate(calls):
        by_span[call.span_id].append(i)
    edges: list[Edge] = []
    for i, call in enumerate(calls):
        for above in tree.ancestors(call.span_id)[1:]:
            edges += [(outer, i) for outer in by_span.get(above.span_id, ())]
            if above.span_id in by_span:
                break
    return edges


def _numbered(calls: Sequence[SpanNode]) -> list[Edge]:
    """Each producer's calls, one after the other."""
    by_producer: dict[str, list[int]] = defaultdict(list)
    for i, call in enumerate(calls):
        by_producer[call.producer].append(i)
    edges: list[Edge] = []
    for members in by_producer.values():
        members.sort(key=lambda i: (calls[i].sequence, *_tie(calls[i])))
        edges += [(a, b) for a, b in pairwise(members) if calls[a].sequence != calls[b].sequence]
    return edges


def _sorted(calls: Sequence[SpanNode], edges: Iterable[Edge]) -> list[int]:
    """Kahn's topological sort, ties by start time and id; shorter than `calls` where the edges have a cycle."""
    later: dict[int, list[int]] = defaultdict(list)
    waits = [0] * len(calls)
    for a, b in edges:
        later[a].append(b)
        waits[b] += 1
    ready = [(*_tie(calls[i]), i) for i in range(len(calls)) if not waits[i]]
    heapify(ready)
    out: list[int] = []
    while ready:
        i = heappop(ready)[-1]
        out.append(i)
        for b in later[i]:
            waits[b] -= 1
            if not waits[b]:
                heappush(ready, (*_tie(calls[b]), b))
    return out


def _tie(call: SpanNode) -> tuple[int, str, int]:
    return call.start_ns, call.span_id, call.choice
