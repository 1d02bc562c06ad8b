"""One attempt as it comes in: the set of its events, whatever their order and however often each was sent.

Everything a trajectory is made from is a function of this set, so arrival order, duplicates and restarts do not show.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from operator import itemgetter

from ..schemas.errors import InvalidRecord
from ..schemas.records import Assembly, Reward, SpanBatch, Trajectory
from .nodes import NODE_BYTES, EndNode, RewardNode, SpanNode, end_node, span_node
from .rewards import check

# (partition, rollout id, attempt id): a writer's own ids may be the same in another rollout, and a partition that has a
# rollout's records beside its own may be another process's.
AttemptKey = tuple[int, str, str]
Ident = tuple[str, int]  # of a span: its id, and which of n choices it is
Versions = tuple[SpanNode] | list[SpanNode]  # hardly any has a second, and tuples are small
MANY = 16  # fewer are looked through as quickly as found by an index
SUCCESS = {"succeeded", "unknown"}  # unknown: a status of a newer writer, about which nothing can be said


@dataclass(slots=True)
class OpenAttempt:
    """The events of an attempt and what is known of its completeness. Mutable; times are Unix nanoseconds."""

    rollout_id: str
    attempt_id: str
    partition: int
    first_ns: int  # when its first event was read
    last_ns: int = 0  # when its last event was read
    begun: bool = False  # its begin batch is there
    end: EndNode | None = None
    end_seen_ns: int = 0
    spans: dict[Ident, Versions] = field(default_factory=dict[Ident, Versions])
    told: dict[Ident, dict[bytes, int]] = field(default_factory=dict[Ident, "dict[bytes, int]"])  # where versions are
    rewards: dict[str, dict[bytes, RewardNode]] = field(default_factory=dict[str, "dict[bytes, RewardNode]"])
    refused: set[bytes] = field(default_factory=set[bytes])  # digests of quarantined rewards
    span_ids: set[str] = field(default_factory=set[str])
    absent: set[str] = field(default_factory=set[str])  # parents not here yet
    sent_spans: Counter[str] = field(default_factory=Counter[str])  # span events by producer
    sent_rewards: set[tuple[str, str]] = field(default_factory=set[tuple[str, str]])  # (producer, id), refused ones too
    reward_counts: Counter[str] = field(default_factory=Counter[str])  # of these by producer
    events: int = 0  # distinct span and reward events: the revision
    size: int = 0  # bytes held, roughly
    spans_first: int | None = None
    spans_next: int | None = None
    rewards_first: int | None = None
    rewards_next: int | None = None
    closed: int | None = None  # the revision that a bound closed it with: of what comes later only its end is put in
    rebuilding: int = 0  # number of the Reread that brings its earlier events; 0 = they are all here
    echo_end: bool = False  # an end marker came while its earlier events were being read again
    rooted: bool = False  # a root span is there
    root_ended: bool = False  # a root span is over, as a plain OpenTelemetry trace's is at its end
    dirty: bool = False  # changed since it was last emitted
    dirty_ns: int = 0  # since when
    emitted: str | None = None  # digest of the last revision
    counted: Counter[str] = field(default_factory=Counter[str])  # drift, conflicts, ... of the last revision
    deadline_ns: int | None = None

    @property
    def key(self) -> AttemptKey:
        """What it is known by."""
        return self.partition, self.rollout_id, self.attempt_id

    def resume(self, known: Assembly) -> None:
        """Goes on from what was emitted of it, without the events that made it."""
        self.emitted = known.input_digest
        if known.status == "dropped":
            self.closed = known.revision
            self.spans_first, self.spans_next = known.spans_offset, known.spans_next
            self.rewards_first, self.rewards_next = known.rewards_offset, known.rewards_next

    def take_batch(self, batch: SpanBatch, offset: int, now_ns: int) -> None:
        """Takes a record of spans; of one for a closed attempt only the end marker."""
        self.last_ns = now_ns
        self.spans_first = offset if self.spans_first is None else min(self.spans_first, offset)
        self.spans_next = max(self.spans_next or 0, offset + 1)
        if self.closed is None:
            if batch.begin and not self.begun:
                self.begun = True
                self.touch()
            for span in batch.spans:
                self.add_span(span_node(span, batch.producer_id, self.partition, offset))
        if batch.end is not None:
            self.add_end(end_node(batch.end, batch.producer_id, offset), now_ns)

    def take_reward(self, node: RewardNode) -> None:
        """Takes a record of rewards, one that is quarantined too; a closed attempt takes none."""
        if self.closed is not None:
            return
        try:
            check(node.reward)
        except InvalidRecord:
            self.refuse(node)
        else:
            self.add_reward(node)
        first = self.rewards_first
        self.rewards_first = node.offset if first is None else min(first, node.offset)
        self.rewards_next = max(self.rewards_next or 0, node.offset + 1)

    def add_span(self, node: SpanNode) -> bool:
        """Takes a span event; False where it was there already."""
        ident, span_id, parent = node.ident, node.span_id, node.parent
        versions = self.spans.get(ident)
        if versions is None:
            self.spans[ident] = (node,)
        else:
            if isinstance(versions, tuple):
                versions = self.spans[ident] = list(versions)
            at = self._place(versions, node)
            if at is not None:
                if node.offset < versions[at].offset:
                    versions[at] = node
                return False
            versions.append(node)
        self.span_ids.add(span_id)
        self.absent.discard(span_id)
        if parent is None:
            self.rooted = True
            self.root_ended = self.root_ended or node.end_ns is not None
        elif parent not in self.span_ids:
            self.absent.add(parent)
        self.sent_spans[node.producer] += 1
        self.size += node.size
        return self._changed()

    def _place(self, versions: Sequence[SpanNode], node: SpanNode) -> int | None:
        """Where an event is among the versions of its span, if it is; of many without looking through them all."""
        if len(versions) < MANY:
            same = (i for i, n in enumerate(versions) if n.content == node.content and n.event == node.event)
            return next(same, None)
        places = self.told.setdefault(node.ident, {})
        for i in range(len(places), len(versions)):
            places[versions[i].event] = i
        return places.get(node.event)

    def add_reward(self, node: RewardNode) -> bool:
        """Takes a reward; False where it was there already."""
        versions = self.rewards.setdefault(node.reward.reward_id, {})
        if node.digest in versions:
            return False
        versions[node.digest] = node
        return self._arrived(node.reward)

    def refuse(self, node: RewardNode) -> bool:
        """Counts a quarantined reward as arrived, so that the end marker's count can be met."""
        if node.digest in self.refused:
            return False
        self.refused.add(node.digest)
        return self._arrived(node.reward)

    def _arrived(self, reward: Reward) -> bool:
        sent = reward.producer_id, reward.reward_id
        if sent not in self.sent_rewards:
            self.sent_rewards.add(sent)
            self.reward_counts[reward.producer_id] += 1
        self.size += NODE_BYTES
        return self._changed()

    def add_end(self, node: EndNode, now_ns: int) -> bool:
        """Takes an end marker; the first one of the partition decides. False where another does."""
        if self.end is not None and node.offset >= self.end.offset:
            return False
        if self.end is None:
            self.end_seen_ns = now_ns
        self.end = node
        self.touch()
        return True

    def touch(self) -> None:
        """Notes that the last revision, if any, is out of date."""
        if not self.dirty:
            self.dirty, self.dirty_ns = True, self.last_ns

    def _changed(self) -> bool:
        self.events += 1
        self.touch()
        return True

    @property
    def revision(self) -> int:
        """How many events are in it."""
        return self.events if self.closed is None else self.closed

    @property
    def anchored(self) -> bool:
        """Whether more than late events is known of it: its begin, its end, or a root."""
        return self.begun or self.end is not None or self.rooted

    @property
    def spans_missing(self) -> bool:
        """Fewer span events came than the end marker's producer counted."""
        return self.end is not None and self.sent_spans[self.end.producer] < (self.end.end.span_count or 0)

    @property
    def rewards_missing(self) -> bool:
        """Fewer rewards came than the end marker's producer counted."""
        return self.end is not None and self.reward_counts[self.end.producer] < (self.end.end.reward_count or 0)

    @property
    def failed(self) -> bool:
        """It is over and did not succeed: failed, timed out, cancelled, ..."""
        return self.end is not None and self.end.end.status not in SUCCESS

    @property
    def complete(self) -> bool:
        """All that was announced is there, or will not be put in."""
        missing = self.closed is None and (self.absent or self.spans_missing or self.rewards_missing)
        return self.end is not None and not missing

    def latest_spans(self) -> list[SpanNode]:
        """The version of each span that counts."""
        return [v[0] if len(v) == 1 else latest(v) for _, v in sorted(self.spans.items(), key=_ident)]

    def latest_rewards(self) -> list[Reward]:
        """The version of each reward that counts: the higher sequence, then the newer one."""
        return [max(v.values(), key=_newest).reward for v in self.rewards.values()]

    def conflicts(self) -> int:
        """Spans and rewards that one id tells differently."""
        spans = 0
        if sum(self.sent_spans.values()) > len(self.spans):  # some span was told more than once
            spans = sum(_conflicting(v) for v in self.spans.values() if len(v) > 1)
        told_again = (v for v in self.rewards.values() if len(v) > 1)
        return spans + sum(len({(r.reward.value, r.reward.span_id) for r in v.values()}) > 1 for v in told_again)

    def findings(self, trajectory: Trajectory) -> Counter[str]:
        """What is counted of a revision of it: calls that drifted, conflicts, 1 where a parent never came."""
        return Counter(drift=trajectory.drift, conflicts=self.conflicts(), orphaned=int("orphaned" in trajectory.flags))

    def digest(self) -> str:
        """sha256 over the set of events, in hex; independent of order, duplicates and offsets.

        Of a closed attempt over its end marker, if it has one: that is all that anyone can tell of it again.
        """
        if self.closed is not None and self.end is not None:
            return hashlib.sha256(b"closed" + self.end.digest).hexdigest()
        events = [n.event for v in self.spans.values() for n in v]
        events += [digest for v in self.rewards.values() for digest in v]
        events += self.refused
        if self.end is not None:
            events.append(self.end.digest)
        events.sort()
        return hashlib.sha256(b"".join(len(e).to_bytes(4, "big") + e for e in events)).hexdigest()


def latest(versions: Sequence[SpanNode]) -> SpanNode:
    """Within a producer the higher sequence wins; between producers the call, then the closed one, then the higher."""
    best: dict[str, SpanNode] = {}
    for node in versions:
        other = best.get(node.producer)
        if other is None or (node.sequence, node.content) > (other.sequence, other.content):
            best[node.producer] = node
    return max(
        best.values(), key=lambda n: (n.call is not None, n.end_ns is not None, n.sequence, n.producer, n.content)
    )


def _conflicting(versions: Sequence[SpanNode]) -> bool:
    """An open span that is closed later and a correction of `delivered` are updates; anything else is a conflict."""
    closed = [n for n in versions if n.end_ns is not None]
    whole = {n.content for n in closed if n.call is None or n.call.delivered}
    return len(whole) > 1


def _newest(node: RewardNode) -> tuple[int, int, bytes]:
    return node.reward.sequence, node.reward.created_ns, node.digest


_ident = itemgetter(0)
