"""The assembler: spans and rewards in, trajectories out. Pure: `add` a message, `tick` the clock, get outputs.

    message ─▶ its attempt's events ─▶ complete?  at once ─▶ Emitted (trajectory, assembly)
                    │                  not yet    a grace after the end marker, else idle or absolute time-out
                    ├─▶ Attempt running, ended (the first end marker decides, at once)
                    ├─▶ Refused (a reward that is no number: dead letter)
                    └─▶ Reread (an event of an attempt that was emitted and forgotten: read its events again)

The caller does the input and output (`app.py`): it gives every record of a partition once, in order, and commits
only what `held` allows, after the outputs are acknowledged. After a restart it gives everything from the committed
offset again: the same outputs follow, and equal revisions are equal.
"""

from __future__ import annotations

from collections import Counter, OrderedDict, deque
from collections.abc import Iterable

from ..schemas.errors import InvalidRecord
from ..schemas.records import Assembly, Reward, SpanBatch
from .assembly import assembly_of, build
from .attempt import OpenAttempt
from .deadlines import NS_PER_S, Deadlines
from .messages import Bound, Emitted, Late, Message, Output, Policy, Refused, Reread, ended, running
from .nodes import RewardNode, end_node, reward_node, span_node
from .partition import Partition
from .rewards import check

# Between two reports of telemetry; more lateness than this says nothing new.
MAX_LATENESS = 10_000


class Assembler:
    """State of the partitions this process holds. Not thread-safe."""

    def __init__(self, policy: Policy | None = None) -> None:
        self.policy = policy or Policy()
        self.partitions: dict[int, Partition] = {}
        self.attempts: OrderedDict[str, OpenAttempt] = OrderedDict()  # least recently touched first
        self.size = 0  # bytes held, roughly
        self.counts: Counter[str] = Counter()  # emitted, revisions, late, refused, bounded_events, drift, ...
        self.lateness: deque[float] = deque(maxlen=MAX_LATENESS)  # seconds from an end to a batch of spans behind it
        self._deadlines = Deadlines(self.policy)

    # --- partitions

    def assign(self, partition: int, *, spans: int, rewards: int, assemblies: Iterable[Assembly] = ()) -> None:
        """Takes a partition over at the given offsets, knowing what was emitted of it before."""
        self.revoke(partition)
        state = self.partitions[partition] = Partition(partition, spans, rewards, self.policy.max_remembered)
        for assembly in assemblies:
            state.remember(assembly)

    def revoke(self, partition: int) -> None:
        """Forgets a partition; whoever has it now reads from its committed offsets."""
        if self.partitions.pop(partition, None) is not None:
            for attempt in [a for a in self.attempts.values() if a.partition == partition]:
                self._free(attempt)

    # --- records

    def add(self, message: Message, now_ns: int) -> list[Output]:
        """Takes the next record of a partition."""
        part = self.partitions[message.partition]
        part.held(message.topic).read(message.offset)
        out: list[Output] = []
        match message.record:
            case SpanBatch() as batch:
                self._batch(part, batch, message.offset, now_ns, out)
            case Reward() as reward:
                self._reward(part, reward, message, now_ns, out)
            case None:  # a tombstone or a record that was quarantined: only its offset counts
                pass
        self._bound(now_ns, out)
        return out

    def restore(self, message: Message) -> None:
        """Takes a record that was read again for attempts that are being rebuilt; others ignore it."""
        part = self.partitions[message.partition]
        match message.record:
            case SpanBatch() as batch:
                attempt = self.attempts.get(batch.attempt_id)
                if attempt is not None and attempt.rebuilding:
                    self._take_batch(attempt, batch, message.offset, attempt.last_ns)
            case Reward() as reward:
                attempt = self.attempts.get(reward.attempt_id or part.finals.get(reward.rollout_id, ""))
                if attempt is not None and attempt.rebuilding:
                    self._take_reward(attempt, reward_node(reward, message.offset))
            case None:
                pass

    def restored(self, attempt_id: str, now_ns: int, *, lost: bool = False) -> list[Output]:
        """An attempt's events were read again, or were gone (`lost`): then nothing is emitted of the late ones."""
        out: list[Output] = []
        attempt = self.attempts.get(attempt_id)
        if attempt is None or not attempt.rebuilding:
            return out
        attempt.rebuilding = False
        if lost:
            self._drop_late(attempt, out)
            return out
        if attempt.echo_end and attempt.end is not None:
            out.append(ended(attempt, now_ns))
        self._schedule(attempt, now_ns, out)
        return out

    def tick(self, now_ns: int) -> list[Output]:
        """Emits what is due, and forgets what was emitted long enough ago."""
        out: list[Output] = []
        while (look := self._deadlines.pop(now_ns)) is not None:
            set_for, attempt_id = look
            attempt = self.attempts.get(attempt_id)
            if attempt is None or attempt.deadline_ns != set_for or not self._deadlines.is_due(attempt, now_ns):
                continue
            if attempt.dirty:
                self._close(attempt, now_ns, out)
            else:
                self._free(attempt)
        for part in self.partitions.values():
            for node in part.expired(now_ns - int(self.policy.absolute_s * NS_PER_S)):
                self._late(Late(node.reward.rollout_id, None, "no attempt of the rollout was final"), out)
        return out

    @property
    def open_attempts(self) -> int:
        """Attempts with events that no revision holds yet."""
        return sum(a.dirty for a in self.attempts.values())

    # --- one record

    def _batch(self, part: Partition, batch: SpanBatch, offset: int, now_ns: int, out: list[Output]) -> None:
        known = part.emitted.get(batch.attempt_id)
        if known is not None and (offset < (known.spans_next or 0) or known.status == "dropped"):
            self._seen(known, offset >= (known.spans_next or 0), out)
            return
        attempt = self._open(part, batch.rollout_id, batch.attempt_id, now_ns, out)
        part.spans.hold(attempt.attempt_id, offset)
        begun = attempt.begun
        before = attempt.end
        if batch.spans and (before is not None or known is not None):
            over_ns = attempt.end_seen_ns if before is not None or known is None else known.at_ns
            self.lateness.append((now_ns - over_ns) / NS_PER_S)
        self._take_batch(attempt, batch, offset, now_ns)
        if batch.begin and not begun and not attempt.rebuilding:
            out.append(running(batch, now_ns))
        if batch.end is not None:
            attempt.echo_end = attempt.rebuilding
            if not attempt.rebuilding:
                out.append(ended(attempt, now_ns))
            if before is None and batch.end.final:
                self._settle(part, attempt)
        self._schedule(attempt, now_ns, out)

    def _take_batch(self, attempt: OpenAttempt, batch: SpanBatch, offset: int, now_ns: int) -> None:
        attempt.last_ns = now_ns
        if batch.begin and not attempt.begun:
            attempt.begun = True
            attempt.touch()
        attempt.spans_first = offset if attempt.spans_first is None else min(attempt.spans_first, offset)
        attempt.spans_next = max(attempt.spans_next or 0, offset + 1)
        before = attempt.size
        for span in batch.spans:
            attempt.add_span(span_node(span, batch.producer_id, attempt.partition, offset))
        self.size += attempt.size - before
        if batch.end is not None:
            attempt.add_end(end_node(batch.end, batch.producer_id, offset), now_ns)

    def _reward(self, part: Partition, reward: Reward, message: Message, now_ns: int, out: list[Output]) -> None:
        offset = message.offset
        attempt_id = reward.attempt_id or part.finals.get(reward.rollout_id)
        if attempt_id is None:
            self._refuse(reward, message, out)
            part.float(reward_node(reward, offset), now_ns)
            return
        known = part.emitted.get(attempt_id)
        if known is not None and (offset < (known.rewards_next or 0) or known.status == "dropped"):
            self._seen(known, offset >= (known.rewards_next or 0), out)
            return
        self._refuse(reward, message, out)
        attempt = self._open(part, reward.rollout_id, attempt_id, now_ns, out)
        part.rewards.hold(attempt_id, offset)
        attempt.last_ns = now_ns
        self._take_reward(attempt, reward_node(reward, offset))
        self._schedule(attempt, now_ns, out)

    def _take_reward(self, attempt: OpenAttempt, node: RewardNode) -> None:
        try:
            check(node.reward)
        except InvalidRecord:
            attempt.refuse(node)
        else:
            attempt.add_reward(node)
        first = attempt.rewards_first
        attempt.rewards_first = node.offset if first is None else min(first, node.offset)
        attempt.rewards_next = max(attempt.rewards_next or 0, node.offset + 1)

    def _refuse(self, reward: Reward, message: Message, out: list[Output]) -> None:
        """Has a reward that is no number quarantined; it still counts as arrived."""
        try:
            check(reward)
        except InvalidRecord as error:
            self.counts["refused"] += 1
            out.append(Refused(message, error))

    def _settle(self, part: Partition, attempt: OpenAttempt) -> None:
        """Gives the final attempt the rewards that named only its rollout."""
        if part.finals.setdefault(attempt.rollout_id, attempt.attempt_id) != attempt.attempt_id:
            return
        for node in part.settle(attempt.rollout_id):
            part.rewards.hold(attempt.attempt_id, node.offset)
            self._take_reward(attempt, node)

    def _seen(self, known: Assembly, is_late: bool, out: list[Output]) -> None:
        if is_late:
            self._late(Late(known.rollout_id, known.attempt_id, "the attempt was closed by a bound"), out)

    def _open(self, part: Partition, rollout_id: str, attempt_id: str, now_ns: int, out: list[Output]) -> OpenAttempt:
        attempt = self.attempts.get(attempt_id)
        if attempt is None:
            attempt = OpenAttempt(rollout_id, attempt_id, part.number, first_ns=now_ns)
            self.attempts[attempt_id] = attempt
            if (known := part.emitted.get(attempt_id)) is not None:
                attempt.rebuilding = True
                attempt.emitted = known.input_digest
                self.counts["rebuilt"] += 1
                out.append(Reread(part.number, rollout_id, attempt_id, known.spans_offset, known.rewards_offset))
        else:
            self.attempts.move_to_end(attempt_id)
        return attempt

    # --- when to emit

    def _schedule(self, attempt: OpenAttempt, now_ns: int, out: list[Output]) -> None:
        if attempt.rebuilding:
            return
        if attempt.events > self.policy.max_events:
            self._emit(attempt, now_ns, out, "events")
        elif attempt.size > self.policy.max_bytes:
            self._emit(attempt, now_ns, out, "bytes")
        elif attempt.complete:
            self._emit(attempt, now_ns, out)
        elif attempt.dirty:
            self._deadlines.set(attempt)
        elif attempt.emitted is not None:
            self._emit(attempt, now_ns, out)
        else:
            self._free(attempt)  # an empty batch

    def _close(self, attempt: OpenAttempt, now_ns: int, out: list[Output], bound: Bound | None = None) -> None:
        """Emits what there is, unless all there is are events that came too late for an attempt nobody remembers."""
        if attempt.rebuilding or not attempt.anchored:
            self._drop_late(attempt, out)
        else:
            self._emit(attempt, now_ns, out, bound)

    def _emit(self, attempt: OpenAttempt, now_ns: int, out: list[Output], bound: Bound | None = None) -> None:
        part = self.partitions[attempt.partition]
        digest = attempt.digest()
        attempt.dirty = False
        if bound or digest != attempt.emitted:
            trajectory = build(attempt, self.policy.rules, digest, bounded=bound is not None)
            self.counts["emitted" if attempt.emitted is None else "revisions"] += 1
            found = attempt.findings(trajectory)
            self.counts.update(found - attempt.counted)  # once, however many revisions tell of it
            attempt.counted = found
            attempt.emitted = digest
            assembly = assembly_of(attempt, trajectory, now_ns, dropped=bound is not None)
            part.remember(assembly)
            out.append(Emitted(attempt.partition, trajectory, assembly, bound))
        part.release(attempt.attempt_id)
        if bound is not None:
            self.counts[f"bounded_{bound}"] += 1
        if bound is not None or attempt.end is None:
            self._free(attempt)
        else:
            self._deadlines.set(attempt)

    def _drop_late(self, attempt: OpenAttempt, out: list[Output]) -> None:
        reason = "its earlier events are gone" if attempt.emitted is not None else "it has no begin, end or root"
        self._late(Late(attempt.rollout_id, attempt.attempt_id, reason, attempt.events), out)
        self._free(attempt)

    def _late(self, late: Late, out: list[Output]) -> None:
        self.counts["late"] += late.events
        out.append(late)

    def _free(self, attempt: OpenAttempt) -> None:
        self.attempts.pop(attempt.attempt_id, None)
        self.size -= attempt.size
        if (part := self.partitions.get(attempt.partition)) is not None:
            part.release(attempt.attempt_id)

    def _bound(self, now_ns: int, out: list[Output]) -> None:
        """Closes the attempts that were touched longest ago while there are too many, or too many bytes of them."""
        while (full := len(self.attempts) > self.policy.max_open) or self.size > self.policy.max_total_bytes:
            oldest = next(iter(self.attempts.values()))
            if oldest.dirty:
                self._close(oldest, now_ns, out, "open" if full else "total_bytes")
            else:
                self._free(oldest)
