"""Between Kafka and the assembler's pure core: decoding, sending, what to commit. No Faust here; see `app.py`."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence

from confluent_kafka import OFFSET_BEGINNING

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
from ..schemas.errors import DeliveryFailed, RecordTooLarge
from ..schemas.records import Assembly, Attempt, Reward, SpanBatch
from ..schemas.serde import Decoder
from ..schemas.topics import ASSEMBLIES, REWARDS, SPANS
from .acks import Outbox
from .assembler import Assembler
from .assembly import without_calls, without_rows
from .figures import Figures
from .messages import SOURCES, Emitted, Late, Message, Output, Policy, Refused, Reread, Source
from .no_calls import NoCalls

log = logging.getLogger(__name__)

NAME = "assembler"
ACK_TIMEOUT_S = 60.0
FLUSH_S = 3.0
# Small enough that a slice of catching up does not keep timers and rebalances waiting.
SLICE = 200
POLL_S = 0.05
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
        self._assemblies: list[tuple[Assembly, int]] = []
        self._committed: dict[Position, int] = {}

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
        """Adds records in order; those of partitions not held, or read before, are passed over."""
        for i, raw in enumerate(messages):
            if i % YIELD_EVERY == YIELD_EVERY - 1:
                await asyncio.sleep(0)
            part = self.core.partitions.get(raw.partition)
            source = _source(raw.topic)
            if part is None or raw.offset < part.held(source).position:
                continue
            record = await self._taking.record_async(raw)
            assert record is None or isinstance(record, SpanBatch | Reward)
            message = Message(source, raw.partition, raw.offset, record)
            if isinstance(record, SpanBatch):
                self._no_calls.see(record)
            with bound(rollout_id=record and record.rollout_id, attempt_id=record and record.attempt_id):
                self._carry_out(self.core.add(message, self._clock.now_ns()), raw)

    def tick(self) -> None:
        """Emits what is due."""
        self._carry_out(self.core.tick(self._clock.now_ns()), None)

    # --- outputs

    def _carry_out(self, outputs: Sequence[Output], raw: Raw | None) -> None:
        for output in outputs:
            match output:
                case Attempt():
                    self._outbox.send(output)
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
        for trajectory in (output.trajectory, without_rows(output.trajectory), without_calls(output.trajectory)):
            try:
                self._outbox.send(trajectory)
            except RecordTooLarge as error:
                log.warning("trajectory of %s is cut: %s", output.assembly.attempt_id, error)
            else:
                break
        self._assemblies.append((output.assembly, output.partition))

    async def settle(self) -> dict[Position, int]:
        """Waits until what was emitted is safe; returns the offsets that may now be committed and have moved.

        Assemblies go last: one says that its attempt need not be read again, so nothing of it may still be under way.
        """
        offsets = {
            (source, p.number): offset
            for p in self.core.partitions.values()
            for source, offset in p.committable().items()
        }
        assemblies, self._assemblies = self._assemblies, []
        await asyncio.to_thread(self._outbox.seal().wait, ACK_TIMEOUT_S)
        for assembly, partition in assemblies:
            self._outbox.send(assembly, partition)
        if assemblies:
            await asyncio.to_thread(self._outbox.seal().wait, ACK_TIMEOUT_S)
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
        assemblies: dict[str, Assembly] = {}

        async def remember(messages: Sequence[Raw]) -> None:
            for raw in messages:
                assembly = await self._taking.record_async(raw)
                if isinstance(assembly, Assembly):
                    assemblies[assembly.attempt_id] = assembly

        if not await read(self.settings, {(ASSEMBLIES.name, partition): None}, remember, superseded):
            return False
        self.core.assign(partition, **committed, assemblies=assemblies.values())
        starts: dict[Position, int | None] = {(source, partition): committed[source] for source in SOURCES}
        if not await read(self.settings, starts, self.take, superseded, self.ends.update):
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
            w.attempt_id
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

        await read(self.settings, starts, restore)
        for w in wanted:
            outputs = self.core.restored(w.attempt_id, self._clock.now_ns(), lost=w.attempt_id in lost)
            self._carry_out(outputs, None)

    async def _restore(self, raw: Raw) -> None:
        source = _source(raw.topic)
        part = self.core.partitions.get(raw.partition)
        if part is None or raw.offset >= part.held(source).position:
            return
        record = await self._again.record_async(raw)
        if isinstance(record, SpanBatch | Reward):
            self.core.restore(Message(source, raw.partition, raw.offset, record))


def _source(topic: str) -> Source:
    return "spans" if topic == SPANS.name else "rewards"


def _gone(offset: int | None, low: int | None) -> bool:
    return offset is not None and low is not None and offset < low


def _first_kept(settings: Settings, positions: Sequence[Position]) -> dict[Position, int]:
    reader = Reader(settings, NAME)
    try:
        return {at: reader.watermarks(at)[0] for at in positions}
    finally:
        reader.close()


def never() -> bool:
    """Reading that nothing supersedes."""
    return False


def untold(ends: Mapping[Position, int]) -> None:
    """For reading whose ends nobody asks for."""
    del ends


async def read(
    settings: Settings,
    starts: Mapping[Position, int | None],
    handle: Callable[[Sequence[Raw]], Awaitable[None]],
    superseded: Callable[[], bool] = never,
    tell: Callable[[Mapping[Position, int]], None] = untold,
) -> bool:
    """Reads partitions from offsets (None = the first kept) to the end they have now; False where superseded before.

    `tell` is told the ends. Raises DataLost.
    """
    reader = Reader(settings, NAME)
    try:
        offsets = {at: OFFSET_BEGINNING if offset is None else offset for at, offset in starts.items()}
        await asyncio.to_thread(reader.assign, offsets)
        ends = await asyncio.to_thread(reader.ends)
        tell(ends)
        while not reader.reached(ends):
            if superseded():
                return False
            await handle(await asyncio.to_thread(reader.poll, SLICE, POLL_S))
        return True
    finally:
        await asyncio.to_thread(reader.close)
