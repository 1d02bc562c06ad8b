"""Messages to insert batches, undecoded: the sink's pure core."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from operator import attrgetter

from ..infra.kafka import Message, Position
from ..infra.landing_targets import MAX_VALUE_BYTES
from ..schemas.errors import InvalidRecord
from ..schemas.serde import HEADER, fingerprint, split
from .avro_container import Container
from .pump import Read

# ClickHouse holds a batch several times over while it takes it in; several are on their way at once.
MAX_INSERT_BYTES = 16 << 20
Row = tuple[Message, bytes]  # a message and its body
Refused = tuple[Message, InvalidRecord]
WriterOf = Callable[["int | str"], str]


@dataclass(frozen=True, slots=True)
class InsertBatch:
    """Records of one topic and one writer schema, partition by partition in offset order, all long or none."""

    topic: str
    writer_schema: str
    long: bool
    rows: tuple[Row, ...]

    @property
    def token(self) -> str:
        """topic:partition:first-last[,partition:first-last…]:fingerprint[:long].

        Equal for equal batches, so that a repeated insert of the very same batch is dropped.
        """
        ranges: dict[int, tuple[int, int]] = {}
        for m, _ in self.rows:
            ranges[m.partition] = (ranges.get(m.partition, (m.offset, 0))[0], m.offset)
        spelled = ",".join(f"{p}:{first}-{last}" for p, (first, last) in ranges.items())
        return f"{self.topic}:{spelled}:{fingerprint(self.writer_schema)}{':long' if self.long else ''}"

    def container(self) -> bytes:
        """The batch as one Avro object container."""
        container = Container(self.writer_schema)
        return container.header + container.block((m.partition, m.offset, body) for m, body in self.rows)

    def halves(self) -> tuple[InsertBatch, InsertBatch]:
        """The batch cut in two, to find what is wrong in it."""
        middle = len(self.rows) // 2
        return replace(self, rows=self.rows[:middle]), replace(self, rows=self.rows[middle:])


@dataclass(slots=True)
class Portion:
    """What was read of one partition, and what became of it: refused records by offset, tombstones, insert tokens."""

    topic: str
    partition: int
    read: range
    records: int
    refused: dict[int, Refused] = field(default_factory=dict[int, "Refused"])
    tombstones: list[Message] = field(default_factory=list[Message])
    tokens: list[str] = field(default_factory=list[str])


class Batches:
    """Messages sorted: by partition for the log, by topic and writer schema for inserts.

    Small batches cost ClickHouse much more than their rows do, so one insert takes a topic's partitions together.
    """

    def __init__(self, messages: Iterable[Message], writer_of: WriterOf, read: Read | None = None) -> None:
        """writer_of: schema id or GUID -> schema JSON; may raise InvalidRecord, and Unavailable, which passes.

        read: what is to be logged as read; without it, from each partition's first record to its last one.
        """
        self.portions: dict[Position, Portion] = {}
        self._rows: dict[tuple[str, str, bool], list[Row]] = {}
        held: dict[Position, list[Message]] = {position: [] for position in read or ()}
        for m in messages:
            held.setdefault((m.topic, m.partition), []).append(m)
        for position in sorted(held):
            found = sorted(held[position], key=attrgetter("offset"))
            offsets = read[position] if read else range(found[0].offset, found[-1].offset + 1)
            if not offsets:
                continue
            self.portions[position] = portion = Portion(*position, offsets, len(found))
            self._sort(portion, found, writer_of)

    def inserts(self) -> Iterator[InsertBatch]:
        """Batches of bounded size."""
        for (topic, schema, long), rows in self._rows.items():
            for taken in _cut(rows):
                yield InsertBatch(topic, schema, long, tuple(taken))

    def refuse(self, message: Message, error: InvalidRecord) -> None:
        """Notes a record that cannot be taken."""
        self.portions[message.topic, message.partition].refused[message.offset] = (message, error)

    def stored(self, batch: InsertBatch, token: str) -> None:
        """Notes the token of an insert that was acknowledged."""
        for partition in {m.partition for m, _ in batch.rows}:
            self.portions[batch.topic, partition].tokens.append(token)

    def _sort(self, portion: Portion, messages: Sequence[Message], writer_of: WriterOf) -> None:
        by_frame: dict[bytes, list[Row]] = {}  # most records of a partition have one and the same schema id
        for m in messages:
            value = m.value
            if value is None:
                portion.tombstones.append(m)
                continue
            long = len(value) > MAX_VALUE_BYTES
            if not m.headers and not long and (rows := by_frame.get(value[: HEADER.size])) is not None:
                rows.append((m, value[HEADER.size :]))
                continue
            try:
                schema_id, body = split(value, m.headers)
                rows = self._rows.setdefault((portion.topic, writer_of(schema_id), long), [])
            except InvalidRecord as error:
                self.refuse(m, error)
                continue
            rows.append((m, body))
            if not long and len(body) < len(value):
                by_frame[value[: HEADER.size]] = rows


def _cut(rows: list[Row]) -> Iterator[list[Row]]:
    taken: list[Row] = []
    size = 0
    for row in rows:
        if taken and size + len(row[1]) > MAX_INSERT_BYTES:
            yield taken
            taken, size = [], 0
        taken.append(row)
        size += len(row[1])
    yield taken
