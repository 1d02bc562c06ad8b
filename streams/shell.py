"""Between Kafka and the assembler's pure core: decoding, sending, what to commit. No Faust here; see `app.py`."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace

from ..infra import telemetry
from ..infra.clock import Clock, SystemClock
from ..infra.kafka import Message as Raw
from ..infra.kafka import Position, Reader
from ..infra.logs import bound
from ..infra.producer import Producer
from ..infra.quarantine import Quarantine
from ..infra.registry import connect
from ..infra.settings import Settings
from ..infra.taking import Taking
from ..schemas.errors import DeliveryFailed
from ..schemas.records import Assembly, Attempt, Reward, SpanBatch, Trajectory
from ..schemas.serde import Decoder
from ..schemas.topics import ASSEMBLIES, REWARDS, SPANS
from .acks import Outbox
from .assembler import Assembler
from .assembly import without_calls, without_rows
from .figures import Figures
from .messages import SOURCES, Emitted, Late, Message, Output, Policy, Refused, Reread, Source
from .no_calls import NoCalls
from .partition import Partition
from .reading import read
from .texts import check_ids, short

log = logging.getLogger(__name__)

NAME = "assembler"
FLUSH_S = 1.5
YIELD_EVERY = 20


class Shell:
    """Gives records to the core and carries out what it says. Used from one event loop; waits are in threads."""

    def __init__(self, settings: Settings, policy: Policy | None = None, clock: Clock | None = None) -> None:
        self.settings = settings
        self.core = Assembler(policy)
        self.rereads: list[Reread] = []
        self.ends: dict[Position, int] = {}  # end offsets, as far as they are known
        self._clock = clock or SystemClock()
        self._registry = connect(settings)
        self._producer = Producer(settings, NAME)
        self._outbox = Outbox(self._producer)
        self._no_calls = NoCalls()
        self._quarantine = Quarantine(self._producer, NAME, settings.dlq_limit)
        decoder, stop = Decoder(self._registry), threading.Event()
        self._taking = Taking(decoder, self._quarantine, stop)
        self._again = Taking(decoder, None, stop)
        self._figures = Figures(telemetry.meter(settings, NAME), self.core, self._quarantine)
        self._committed: dict[Position, int] = {}
        self.with_markers: set[Position] = set()  # what lies between their records is no record

    def close(self) -> None:
        """Flushes and frees connections."""
        try:
            self._producer.close(FLUSH_S)
        except DeliveryFailed as error:  # it was not committed either: the next start reads it again
            log.warning("closing: %s", error)
        self._figures.close(self._clock.now_ns(), self.ends)
        self._registry.close()

    # --- records in

    async def take(self, messages: Iterable[Raw]) -> None:
        """Adds records in order; those of partitions not held, or read before, are passed over.

        A partition that is lost on the way is passed over from there, though it be given again meanwhile: whoever takes
        it over reads it anew, and a record taken from here would hide those before it.
        """
        parts = dict(self.core.partitions)
        for i, raw in enumerate(messages):
            if i % YIELD_EVERY == YIELD_EVERY - 1:
                await asyncio.sleep(0)
            part = parts.get(raw.partition)
            if part is None or not self._awaits(part, raw):
                continue
            record = await self._taking.record_async(raw, check_ids)
            if not self._awaits(part, raw):
                continue
            assert record is None or isinstance(record, SpanBatch | Reward)
            message = Message(_source(raw.topic), raw.partition, raw.offset, record)
            if isinstance(record, SpanBatch):
                self._no_calls.see(record)
            with bound(rollout_id=record and record.rollout_id, attempt_id=record and record.attempt_id):
                self._carry_out(self.core.add(message, self._clock.now_ns()), raw)

    async def take_fetched(self, messages: Sequence[Raw]) -> None:
        """Adds what Faust fetched, and before it what Faust has passed over. Raises DataLost.

        Faust drops what a fetch that began before a rebalance brings after it, and `Batches` does not seek back: what
        comes until `app.py` seeks may begin too late. The markers of a foreign producer's transactions look alike: a
        partition in which only these were found is not looked at again before its next assignment.
        """
        firsts: dict[Position, int] = {}
        for raw in messages:
            firsts.setdefault((raw.topic, raw.partition), raw.offset)
        for at, offset in firsts.items():
            part = self.core.partitions.get(at[1])
            if part is not None and offset > part.held(_source(at[0])).position and at not in self.with_markers:
                await self._fill(at, part, offset)
        await self.take(messages)

    async def _fill(self, at: Position, part: Partition, end: int) -> None:
        found = 0

        async def take(messages: Sequence[Raw]) -> None:
            nonlocal found
            found += sum(raw.offset < end for raw in messages)
            await self.take(messages)

        start = part.held(_source(at[0])).position
        lost = lambda: self.core.partitions.get(part.number) is not part  # noqa: E731
        await read(self.settings, NAME, {at: start}, take, lost)
        if found:
            log.warning("%s[%d]: %d records from %d on were passed over and have been read again", *at, found, start)
        else:
            self.with_markers.add(at)

    def _awaits(self, part: Partition, raw: Raw) -> bool:
        """Whether a record is still to be taken into a partition as it was assigned."""
        return self.core.partitions.get(part.number) is part and raw.offset >= part.held(_source(raw.topic)).position

    def tick(self) -> None:
        """Emits what is due."""
        self._carry_out(self.core.tick(self._clock.now_ns()), None)

    # --- outputs

    def _carry_out(self, outputs: Sequence[Output], raw: Raw | None) -> None:
        for output in outputs:
            match output:
                case Attempt():
                    self._outbox.send_first((output, _bare(output)))
                case Emitted():
                    self._emit(output)
                case Refused() if raw is not None:
                    self._quarantine.put(raw, output.error)
                case Reread():
                    self.rereads.append(output)
                case Late():
                    log.info("late_unassembled: %s of %s: %s", output.attempt_id, output.rollout_id, output.reason)
                case _:
                    pass

    def _emit(self, output: Emitted) -> None:
        self._no_calls.judge(output.trajectory)
        if output.bound is not None:
            log.warning(
                "attempt %s is closed with %d events by max_%s of the policy; what comes of it later is left out",
                output.assembly.attempt_id,
                output.trajectory.revision,
                output.bound,
            )
        self._outbox.send_first(_versions(output.trajectory))
        self._outbox.remember(output.assembly, output.partition)

    async def settle(self) -> dict[Position, int]:
        """Waits until what was emitted is safe; returns the offsets that may now be committed and have moved.

        One call at a time. Raises DeliveryFailed.
        """
        self._producer.check()
        offsets = {
            (source, p.number): offset
            for p in self.core.partitions.values()
            for source, offset in p.committable().items()
        }
        await self._outbox.settle()
        self._figures.tell(self._clock.now_ns(), self.ends)
        return {at: offset for at, offset in offsets.items() if self._committed.get(at) != offset}

    def committed(self, offsets: dict[Position, int]) -> None:
        """Notes what was committed."""
        self._committed |= offsets

    # --- partitions and reading again

    def revoke(self, partition: int) -> None:
        """Forgets a partition that another member has now."""
        self.core.revoke(partition)
        for source in SOURCES:
            self._committed.pop((source, partition), None)
            self.ends.pop((source, partition), None)

    async def take_over(self, partition: int, committed: dict[Source, int], superseded: Callable[[], bool]) -> bool:
        """Reads a partition from its committed offsets to its end, past what `assemblies` says was emitted.

        False where it was `superseded` before it got there. Raises DataLost where records after a committed offset
        are gone.
        """
        self.revoke(partition)
        assemblies: dict[tuple[str, str], Assembly] = {}

        async def remember(messages: Sequence[Raw]) -> None:
            for raw in messages:
                assembly = await self._taking.record_async(raw)
                if isinstance(assembly, Assembly):
                    assemblies[assembly.rollout_id, assembly.attempt_id] = assembly

        if not await read(self.settings, NAME, {(ASSEMBLIES.name, partition): None}, remember, superseded):
            return False
        self.core.assign(partition, **committed, assemblies=assemblies.values())
        starts: dict[Position, int | None] = {(source, partition): committed[source] for source in SOURCES}
        if not await read(self.settings, NAME, starts, self.take, superseded, self.ends.update):
            self.revoke(partition)  # nobody would later: who is superseded does not hold it
            return False
        log.info(
            "partition %d: %d attempts known, caught up to %s", partition, len(assemblies), self.positions(partition)
        )
        return True

    def positions(self, partition: int) -> dict[Source, int]:
        """The next offsets to be read."""
        part = self.core.partitions[partition]
        return {source: part.held(source).position for source in SOURCES}

    async def reread(self) -> None:
        """Rebuilds the forgotten attempts that late events came for: one pass per partition for all of them."""
        wanted, self.rereads = self.rereads, []
        for partition in {w.partition for w in wanted}:
            if partition in self.core.partitions:
                await self._reread(partition, [w for w in wanted if w.partition == partition])

    async def _reread(self, partition: int, wanted: Sequence[Reread]) -> None:
        starts: dict[Position, int | None] = {}
        for source, offsets in (
            (SPANS.name, [w.spans_offset for w in wanted if w.spans_offset is not None]),
            (REWARDS.name, [w.rewards_offset for w in wanted if w.rewards_offset is not None]),
        ):
            if offsets:
                starts[source, partition] = min(offsets)
        low = await asyncio.to_thread(_first_kept, self.settings, list(starts))
        lost = {
            w.number
            for w in wanted
            if _gone(w.spans_offset, low.get(("spans", partition)))
            or _gone(w.rewards_offset, low.get(("rewards", partition)))
        }
        starts = {at: max(offset or 0, low[at]) for at, offset in starts.items()}
        keys = {w.rollout_id.encode() for w in wanted}

        async def restore(messages: Sequence[Raw]) -> None:
            for raw in messages:
                if raw.key in keys:
                    await self._restore(raw)

        await read(self.settings, NAME, starts, restore)
        for w in wanted:
            outputs = self.core.restored(w, self._clock.now_ns(), lost=w.number in lost)
            self._carry_out(outputs, None)

    async def _restore(self, raw: Raw) -> None:
        source = _source(raw.topic)
        part = self.core.partitions.get(raw.partition)
        if part is None or raw.offset >= part.held(source).position:
            return
        record = await self._again.record_async(raw, check_ids)
        if isinstance(record, SpanBatch | Reward):
            self.core.restore(Message(source, raw.partition, raw.offset, record))


def _source(topic: str) -> Source:
    return "spans" if topic == SPANS.name else "rewards"


def _versions(whole: Trajectory) -> Iterator[Trajectory]:
    yield whole
    yield without_rows(whole)
    yield without_calls(whole)


def _bare(attempt: Attempt) -> Attempt:
    """An event whose texts and pins do not fit its topic, which takes less than `spans`."""
    return replace(attempt, reason=short(attempt.reason), error_type=short(attempt.error_type), pins={})


def _gone(offset: int | None, low: int | None) -> bool:
    return offset is not None and low is not None and offset < low


def _first_kept(settings: Settings, positions: Sequence[Position]) -> dict[Position, int]:
    reader = Reader(settings, NAME)
    try:
        return {at: reader.watermarks(at)[0] for at in positions}
    finally:
        reader.close()
