"""What a trainer writes to the log and reads of it besides trajectories: batches, policy versions, live engines."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Protocol

from confluent_kafka import OFFSET_BEGINNING, OFFSET_END

from ..infra.bounded import STOP_PATIENCE_S, Bounded
from ..infra.clock import Clock
from ..infra.kafka import Message, Position, Reader
from ..infra.producer import Ack, Producer
from ..infra.settings import Settings
from ..infra.taking import Taking
from ..schemas.errors import Unavailable
from ..schemas.records import Batch, Resource, Worker
from ..schemas.topics import BATCHES, RESOURCES, WORKERS, Record
from .engines import Engines
from .lineage import Lineage
from .stoppable import StoppableReader

END_TIMEOUT_S = 30.0
WRITE_LIMIT_S = 120.0  # more than the producer itself may take


@dataclass(frozen=True, slots=True)
class Recorded:
    """Batches a trainer recorded, in order, and where its topic ended."""

    batches: tuple[Batch, ...]
    next_offset: int


class Journal(Protocol):
    """The log as the loop needs it."""

    def recorded(self, trainer_id: str, offset: int) -> Recorded:
        """Every batch of a trainer from an offset of `batches` to its end as it is now."""
        ...

    def refresh(self, *, to_end: bool = False) -> None:
        """Takes in new policy versions and heartbeats; `to_end` waits for every version published before the call."""
        ...

    @property
    def lineage(self) -> Lineage:
        """Policy versions seen."""
        ...

    @property
    def engines(self) -> Engines:
        """Engines seen."""
        ...

    def write(self, record: Record) -> int:
        """Writes a record, waits for the broker and returns its offset.

        Raises DeliveryFailed, and Unavailable where the broker does not answer for long once told to stop.
        """
        ...

    def close(self) -> None:
        """Frees its connections."""
        ...


class KafkaJournal:
    """A Journal on Kafka."""

    def __init__(
        self,
        settings: Settings,
        policy: str,
        producer: Producer,
        taking: Taking,
        clock: Clock,
    ) -> None:
        self._settings = settings
        self._producer = producer
        self._taking = taking
        self._clock = clock
        self._bounded = Bounded(taking.stop)
        self.lineage = Lineage(policy)
        self.engines = Engines(policy)
        self._follower = StoppableReader(settings, "trainer-journal", taking.stop)
        self._follower.assign({(RESOURCES.name, 0): OFFSET_BEGINNING, (WORKERS.name, 0): OFFSET_END})

    def recorded(self, trainer_id: str, offset: int) -> Recorded:
        reader = StoppableReader(self._settings, "trainer-batches", self._taking.stop)
        position: Position = (BATCHES.name, 0)
        try:
            low, high = reader.watermarks(position)
            reader.assign({position: offset or low})
            read = [self._read(m) for m in self._until(reader, {position: high})]
        finally:
            reader.close()
        return Recorded(tuple(b for b in read if isinstance(b, Batch) and b.trainer_id == trainer_id), high)

    def refresh(self, *, to_end: bool = False) -> None:
        self._producer.check()  # heartbeats are not waited for
        position: Position = (RESOURCES.name, 0)
        ends: dict[Position, int] = {position: self._follower.watermarks(position)[1]} if to_end else {}
        for message in self._until(self._follower, ends):
            record = self._read(message)
            if isinstance(record, Resource):
                self.lineage.add(record)
            elif isinstance(record, Worker):
                self.engines.add(record)

    def _until(self, reader: Reader, ends: dict[Position, int]) -> Iterator[Message]:
        """What there is now, and at least everything before `ends`, for which it waits little once told to stop."""
        give_up, limit = self._clock.steady_s() + END_TIMEOUT_S, f"in {END_TIMEOUT_S:g} s"
        while True:
            found = reader.poll(timeout_s=0.1 if ends else 0.0)
            yield from found
            if reader.reached(ends) if ends else not found:  # heartbeats may come faster than they are read
                return
            now = self._clock.steady_s()
            if self._taking.stop.is_set() and now + STOP_PATIENCE_S < give_up:
                give_up, limit = now + STOP_PATIENCE_S, f"within {STOP_PATIENCE_S:g} s after it was told to stop"
            if ends and now > give_up:
                raise Unavailable(f"{sorted(ends)} could not be read to the end {limit}")

    def _read(self, message: Message) -> Record | None:
        record = self._taking.record(message)
        if self._taking.gave_up:  # what follows would be decided without this record
            raise Unavailable(f"told to stop while {message.topic} was read")
        return record

    def write(self, record: Record) -> int:
        acks = list[Ack]()
        what = f"writing a {type(record).__name__}"
        self._bounded(what, lambda: acks.append(self._producer.send_wait(record)), WRITE_LIMIT_S)
        return acks[0].offset

    def close(self) -> None:
        self._bounded.close()
        self._follower.close()
