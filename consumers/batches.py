"""Messages to insert batches, undecoded: the sink's pure core."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

from ..infra.kafka import Message, Position
from ..schemas.errors import InvalidRecord
from ..schemas.serde import fingerprint, split
from .avro_container import Container

# ClickHouse holds a batch several times over while it takes it in.
MAX_INSERT_BYTES = 64 << 20
Refused = tuple[Message, InvalidRecord]
WriterOf = Callable[["int | str"], str]


@dataclass(frozen=True, slots=True)
class InsertBatch:
    """Records of one partition and one writer schema, in offset order."""

    topic: str
    partition: int
    writer_schema: str
    messages: tuple[Message, ...]
    bodies: tuple[bytes, ...]

    @property
    def token(self) -> str:
        """Equal for equal batches, so that a repeated insert of the very same batch is dropped."""
        first, last = self.messages[0].offset, self.messages[-1].offset
        return f"{self.topic}:{self.partition}:{first}-{last}:{fingerprint(self.writer_schema)}"

    def container(self) -> bytes:
        """The batch as one Avro object container."""
        container = Container(self.writer_schema)
        rows = zip(self.messages, self.bodies, strict=True)
        return container.header + container.block((self.partition, m.offset, body) for m, body in rows)

    def halves(self) -> tuple[InsertBatch, InsertBatch]:
        """The batch cut in two, to find what is wrong in it."""
        middle = len(self.messages) // 2
        return self.part(slice(None, middle)), self.part(slice(middle, None))

    def part(self, which: slice) -> InsertBatch:
        """Some of its records."""
        return InsertBatch(self.topic, self.partition, self.writer_schema, self.messages[which], self.bodies[which])


@dataclass(slots=True)
class Portion:
    """What was read of one partition: batches to insert, records refused, tombstones."""

    topic: str
    partition: int
    first: int
    last: int
    records: int
    inserts: list[InsertBatch] = field(default_factory=list["InsertBatch"])
    refused: dict[int, Refused] = field(default_factory=dict[int, "Refused"])
    tombstones: list[Message] = field(default_factory=list[Message])
    tokens: list[str] = field(default_factory=list[str])

    def refuse(self, message: Message, error: InvalidRecord) -> None:
        """Notes a record that cannot be taken."""
        self.refused[message.offset] = (message, error)


def portions(messages: Sequence[Message], writer_of: WriterOf) -> list[Portion]:
    """Sorts messages by partition and writer schema.

    writer_of: schema id or GUID -> schema JSON; may raise InvalidRecord, and Unavailable, which passes.
    """
    by_partition: dict[Position, list[Message]] = {}
    for m in messages:
        by_partition.setdefault((m.topic, m.partition), []).append(m)
    return [_portion(found, _once(writer_of)) for found in by_partition.values()]


def _portion(messages: list[Message], writer_of: WriterOf) -> Portion:
    first = messages[0]
    out = Portion(first.topic, first.partition, first.offset, messages[-1].offset, len(messages))
    by_schema: dict[str, list[tuple[Message, bytes]]] = {}
    for m in messages:
        if m.value is None:
            out.tombstones.append(m)
            continue
        try:
            schema_id, body = split(m.value, m.headers)
            by_schema.setdefault(writer_of(schema_id), []).append((m, body))
        except InvalidRecord as error:
            out.refuse(m, error)
    out.inserts = [batch for schema, rows in by_schema.items() for batch in _cut(out, schema, rows)]
    return out


def _cut(portion: Portion, schema: str, rows: list[tuple[Message, bytes]]) -> Iterator[InsertBatch]:
    taken: list[tuple[Message, bytes]] = []
    size = 0
    for row in rows:
        if taken and size + len(row[1]) > MAX_INSERT_BYTES:
            yield _batch(portion, schema, taken)
            taken, size = [], 0
        taken.append(row)
        size += len(row[1])
    yield _batch(portion, schema, taken)


def _batch(portion: Portion, schema: str, rows: list[tuple[Message, bytes]]) -> InsertBatch:
    messages, bodies = zip(*rows, strict=True)
    return InsertBatch(portion.topic, portion.partition, schema, messages, bodies)


def _once(writer_of: WriterOf) -> WriterOf:
    """Asks for an unknown id once: each asking waits for a registry that may be about to learn it."""
    unknown: dict[int | str, InvalidRecord] = {}

    def ask(schema_id: int | str) -> str:
        if schema_id in unknown:
            raise unknown[schema_id]
        try:
            return writer_of(schema_id)
        except InvalidRecord as error:
            unknown[schema_id] = error
            raise

    return ask
