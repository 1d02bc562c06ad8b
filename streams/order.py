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
# Characters of an agent path; no real one is longer, and every call carries its own.
MAX_PATH = 1_000


class Tree:
    """Spans by id. Where choices share a span, any of them stands for it; spans in a circle of parents are roots."""

    def __init__(self, nodes: Iterable[SpanNode]) -> None:
        self.spans: dict[str, SpanNode] = {}
        for node in nodes:
            self.spans.setdefault(node.span_id, node)
        self._circles = _circles(self.spans)
        self._paths: dict[str, tuple[str, str | None]] = {}  # span -> (agent path, its last agent)

    def missing_parents(self) -> set[str]:
        """Parents that are named and not there."""
        return {n.parent for n in self.spans.values() if n.parent is not None and n.parent not in self.spans}

    def parent(self, span_id: str) -> SpanNode | None:
        """The span above a span; None = there is none, or it is not there."""
        node = self.spans.get(span_id)
        return None if node is None else self._above(node)

    def _above(self, node: SpanNode) -> SpanNode | None:
        return None if node.parent is None or node.span_id in self._circles else self.spans.get(node.parent)

    def agent_path(self, span_id: str) -> str:
        """Names of the agents from the root down to a span, joined by /; one agent's nested spans name it once."""
        if (known := self._paths.get(span_id)) is not None:
            return known[0]
        below: list[SpanNode] = []
        at = self.spans.get(span_id)
        while at is not None and at.span_id not in self._paths:
            below.append(at)
            at = self._above(at)
        path, last = ("", None) if at is None else self._paths[at.span_id]
        for node in reversed(below):
            if node.agent is not None and node.agent != last:
                path, last = (f"{path}/{node.agent}" if path else node.agent)[:MAX_PATH], node.agent
            self._paths[node.span_id] = path, last
        return path

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
    by_span: dict[str | None, list[int]] = defaultdict(list)
    for i, call in enumerate(calls):
        by_span[call.span_id].append(i)
    above = calls_above(calls, tree)
    return [(outer, i) for i, call in enumerate(calls) for outer in by_span.get(above[call.span_id], ())]


def calls_above(calls: Iterable[SpanNode], tree: Tree) -> dict[str, str | None]:
    """Span of a call -> span of the nearest call around it, if any; the same for spans between the two."""
    of_calls = {call.span_id for call in calls}
    known: dict[str, str | None] = {}
    for span_id in of_calls:
        walked = [span_id]
        above = tree.parent(span_id)
        while above is not None and above.span_id not in of_calls and above.span_id not in known:
            walked.append(above.span_id)
            above = tree.parent(above.span_id)
        if above is None:
            found = None
        else:
            found = above.span_id if above.span_id in of_calls else known[above.span_id]
        known |= dict.fromkeys(walked, found)
    return known


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


def _circles(spans: Mapping[str, SpanNode]) -> set[str]:
    """Spans whose parents lead back to themselves."""
    found: set[str] = set()
    done: set[str] = set()
    for span_id, node in spans.items():
        if node.parent not in spans or node.parent in done:
            done.add(span_id)
            continue
        walked: dict[str, None] = {}
        at: str | None = span_id
        while at is not None and at in spans and at not in done and at not in walked:
            walked[at] = None
            at = spans[at].parent
        if at in walked:
            path = list(walked)
            found.update(path[path.index(at) :])
        done.update(walked)
    return found
