"""The assembler: spans and rewards in, trajectories out. Pure: `add` a message, `tick` the clock, get outputs.

    message ─▶ its attempt's events ─▶ complete?  at once ─▶ Emitted (trajectory, assembly)
                    │                  not yet    a grace after the end marker, else idle or absolute time-out
                    ├─▶ Attempt running, ended (the first end marker decides, at once)
                    ├─▶ over a bound? Emitted (flag bounded); of what comes later only its end is put in
                    ├─▶ Refused (a reward that is no number: dead letter)
                    └─▶ Reread (an event of an attempt that was emitted and forgotten: read its events again)

The caller does the input and output (`app.py`): it gives every record of a partition once, in order, and commits
only what `held` allows, after the outputs are acknowledged. After a restart it gives everything from the committed
offset again: the same outputs follow, and equal revisions are equal.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterable
from itertools import count

from ..schemas.errors import InvalidRecord
from ..schemas.records import Assembly, Reward, SpanBatch
from .assembly import assembly_of, build
from .attempt import AttemptKey, OpenAttempt
from .deadlines import NS_PER_S, Deadlines, at_once
from .memory import Memory
from .messages import Bound, Emitted, Late, Message, Output, Policy, Refused, Reread, ended, running
from .nodes import reward_node
from .partition import Partition
from .rewards import check

# Between two reports of telemetry; more lateness than this says nothing new.
MAX_LATENESS = 10_000
CLOSED = "the attempt was closed by a bound"


class Assembler:
    """State of the partitions this process holds. Not thread-safe."""

    def __init__(self, policy: Policy | None = None) -> None:
        self.policy = policy or Policy()
        self.partitions: dict[int, Partition] = {}
        self.memory = Memory()
        self.attempts = self.memory.attempts
        self.counts: Counter[str] = Counter()  # emitted, revisions, late, refused, bounded_events, drift, ...
        self.lateness: deque[float] = deque(maxlen=MAX_LATENESS)  # seconds from an end to a batch of spans behind it
        self._deadlines = Deadlines(self.policy, self.attempts)
        self._numbers = count(1)  # of rereads

    # --- partitions

    def assign(self, partition: int, *, spans: int, rewards: int, assemblies: Iterable[Assembly] = ()) -> None:
        """Takes a partition over at the given offsets, knowing what was emitted of it before."""
        self.revoke(partition)
        state = self.partitions[partition] = Partition(partition, spans, rewards, self.policy)
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
        record, part = message.record, self.partitions.get(message.partition)
        if record is None or part is None:
            return
        attempt = self.attempts.get(key) if (key := part.key_of(record)) is not None else None
        if attempt is None or not attempt.rebuilding:
            return
        if isinstance(record, SpanBatch):
            self.memory.take_batch(attempt, record, message.offset, attempt.last_ns)
        else:
            self.memory.take_reward(attempt, reward_node(record, message.offset))

    def restored(self, reread: Reread, now_ns: int, *, lost: bool = False) -> list[Output]:
        """An attempt's events were read again, or were gone (`lost`): then nothing is emitted of the late ones.

        One that was let go of and opened anew meanwhile waits for its own reread.
        """
        out: list[Output] = []
        attempt = self.attempts.get((reread.partition, reread.rollout_id, reread.attempt_id))
        if attempt is not None and attempt.rebuilding == reread.number:
            self._rebuilt(attempt, now_ns, out, lost=lost)
        return out

    def tick(self, now_ns: int) -> list[Output]:
        """Emits what is due, and forgets what was emitted long enough ago."""
        out: list[Output] = []
        while (look := self._deadlines.pop(now_ns)) is not None:
            set_for, key = look
            attempt = self.attempts.get(key)
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
        key = part.key(batch.rollout_id, batch.attempt_id)
        known = part.emitted.get(key)
        if known is not None and offset < (known.spans_next or 0):
            return  # the last revision holds it
        if known is not None and known.status == "dropped":
            if batch.spans:
                self._late(Late(batch.rollout_id, batch.attempt_id, CLOSED, len(batch.spans)), out)
            if batch.end is None:
                out += [running(batch, now_ns)] if batch.begin else []
                return
        attempt = self._open(part, key, now_ns, out)
        part.spans.hold(key, offset)
        begun, before = attempt.begun, attempt.end
        if batch.spans and (before is not None or known is not None):
            over_ns = attempt.end_seen_ns if before is not None or known is None else known.at_ns
            self.lateness.append((now_ns - over_ns) / NS_PER_S)
        self.memory.take_batch(attempt, batch, offset, now_ns)
        if batch.begin and not begun and not attempt.rebuilding:
            out.append(running(batch, now_ns))
        if batch.end is not None and attempt.rebuilding:
            attempt.echo_end = True
        elif batch.end is not None:
            out.append(ended(attempt, now_ns))
            if before is None:
                self._settle(part, attempt, out)
        self._schedule(attempt, now_ns, out)

    def _reward(self, part: Partition, reward: Reward, message: Message, now_ns: int, out: list[Output]) -> None:
        offset = message.offset
        key = part.key_of(reward)
        if key is None:
            self._refuse(reward, message, out)
            part.float(reward_node(reward, offset), now_ns)
            return
        known = part.emitted.get(key)
        if known is not None and offset < (known.rewards_next or 0):
            return
        if known is not None and known.status == "dropped":
            self._late(Late(reward.rollout_id, key[2], CLOSED), out)
            return
        self._refuse(reward, message, out)
        attempt = self._open(part, key, now_ns, out)
        part.rewards.hold(key, offset)
        attempt.last_ns = now_ns
        self.memory.take_reward(attempt, reward_node(reward, offset))
        self._schedule(attempt, now_ns, out)

    def _refuse(self, reward: Reward, message: Message, out: list[Output]) -> None:
        """Has a reward that is no number quarantined; it still counts as arrived."""
        try:
            check(reward)
        except InvalidRecord as error:
            self.counts["refused"] += 1
            out.append(Refused(message, error))

    def _settle(self, part: Partition, attempt: OpenAttempt, out: list[Output]) -> None:
        """Gives an attempt whose deciding end is final the rewards that named only its rollout."""
        if attempt.end is None or not attempt.end.end.final:
            return
        if part.finals.setdefault(attempt.rollout_id, attempt.attempt_id) != attempt.attempt_id:
            return
        for node in part.settle(attempt.rollout_id):
            if attempt.closed is None:
                part.rewards.hold(attempt.key, node.offset)
                self.memory.take_reward(attempt, node)
            else:
                self._late(Late(attempt.rollout_id, attempt.attempt_id, CLOSED), out)

    def _open(self, part: Partition, key: AttemptKey, now_ns: int, out: list[Output]) -> OpenAttempt:
        attempt = self.memory.touch(key)
        if attempt is not None:
            return attempt
        attempt = self.attempts[key] = OpenAttempt(*key[1:], part.number, first_ns=now_ns)
        if (known := part.emitted.get(key)) is not None:
            attempt.resume(known)
            if key in part.endless:  # its end is first read now: nothing else of it is asked for
                part.endless.discard(key)
            else:
                attempt.rebuilding = next(self._numbers)
                self.counts["rebuilt"] += 1
                starts = known.spans_offset, known.rewards_offset
                out.append(Reread(part.number, *key[1:], *starts, attempt.rebuilding))
        return attempt

    def _rebuilt(self, attempt: OpenAttempt, now_ns: int, out: list[Output], *, lost: bool) -> None:
        """Goes on with all the events, or gives the late ones up; an end marker among these is answered either way."""
        attempt.rebuilding = 0
        if attempt.echo_end:
            attempt.echo_end = False
            out.append(ended(attempt, now_ns))
        if lost and attempt.closed is None:
            self._drop_late(attempt, out)
            return
        self._settle(self.partitions[attempt.partition], attempt, out)
        self._schedule(attempt, now_ns, out)

    # --- when to emit

    def _schedule(self, attempt: OpenAttempt, now_ns: int, out: list[Output]) -> None:
        if attempt.rebuilding:
            return
        if attempt.events > self.policy.max_events:
            self._emit(attempt, now_ns, out, "events")
        elif attempt.size > self.policy.max_bytes:
            self._emit(attempt, now_ns, out, "bytes")
        elif at_once(attempt, self.policy):
            self._emit(attempt, now_ns, out)
        elif attempt.dirty:
            self._deadlines.set(attempt)
        else:
            self._free(attempt)  # an empty batch

    def _close(self, attempt: OpenAttempt, now_ns: int, out: list[Output], bound: Bound | None = None) -> None:
        """Emits what there is, unless all there is are events that came too late for an attempt nobody remembers."""
        if attempt.rebuilding:
            self._rebuilt(attempt, now_ns, out, lost=True)
        elif not attempt.anchored:
            self._drop_late(attempt, out)
        else:  # one that is over can be read again as any that was emitted: only its grace is cut short
            self._emit(attempt, now_ns, out, None if attempt.end is not None else bound)

    def _emit(self, attempt: OpenAttempt, now_ns: int, out: list[Output], bound: Bound | None = None) -> None:
        part = self.partitions[attempt.partition]
        if bound is not None:
            attempt.closed = attempt.events
        digest = attempt.digest() if bound or attempt.dirty else attempt.emitted  # a large one's takes long
        attempt.dirty = False
        if digest is not None and (bound or digest != attempt.emitted):
            trajectory = build(attempt, self.policy.rules, digest)
            self.counts["emitted" if attempt.emitted is None else "revisions"] += 1
            found = attempt.findings(trajectory)
            self.counts.update(found - attempt.counted)  # once, however many revisions tell of it
            attempt.counted = found
            attempt.emitted = digest
            assembly = assembly_of(attempt, trajectory, now_ns)
            part.remember(assembly)
            out.append(Emitted(attempt.partition, trajectory, assembly, bound))
        part.release(attempt.key)
        if bound is not None:
            self.counts[f"bounded_{bound}"] += 1
            if attempt.end is None:
                part.endless.add(attempt.key)
        if bound is not None or attempt.end is None:
            self._free(attempt)
        else:
            self._deadlines.set(attempt)
            self.memory.keep(attempt)

    def _drop_late(self, attempt: OpenAttempt, out: list[Output]) -> None:
        reason = "its earlier events are gone" if attempt.emitted is not None else "it has no begin, end or root"
        self._late(Late(attempt.rollout_id, attempt.attempt_id, reason, attempt.events), out)
        self._free(attempt)

    def _late(self, late: Late, out: list[Output]) -> None:
        self.counts["late"] += late.events
        out.append(late)

    def _free(self, attempt: OpenAttempt) -> None:
        self.memory.free(attempt)
        if (part := self.partitions.get(attempt.partition)) is not None:
            part.release(attempt.key)

    def _bound(self, now_ns: int, out: list[Output]) -> None:
        """Forgets emitted attempts, then closes those touched longest ago, while there are too many or too large."""
        while (full := len(self.attempts) > self.policy.max_open) or self.memory.size > self.policy.max_total_bytes:
            attempt = self.memory.spare()
            if attempt.dirty:
                self._close(attempt, now_ns, out, "open" if full else "total_bytes")
            else:
                self._free(attempt)
