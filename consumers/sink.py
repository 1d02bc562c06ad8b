"""The sink: every Avro topic into ClickHouse, undecoded, at least once, shown once.

    messages ─▶ batches ─▶ insert (token) ─▶ quarantine ─▶ ingest_log ─▶ commit

Anything before the commit may happen again after a crash. An insert that happens again in the very same batch is
dropped by its token; in other batches its rows have the same identity, which the views show once.

python -m spanloop.consumers.sink
"""

from __future__ import annotations

import json
import logging
import math
import threading
from collections.abc import Callable, Iterable, Sequence
from contextlib import ExitStack, closing
from functools import partial
from typing import TypeVar

from clickhouse_connect.driver.exceptions import ClickHouseError

from ..infra import process, telemetry
from ..infra.bounded import Bounded, side_by_side
from ..infra.clickhouse import check_prefix, connect
from ..infra.clickhouse_client import Client, code_of, is_memory, unavailable
from ..infra.clock import Clock, SystemClock
from ..infra.kafka import Member, Message
from ..infra.landing import Landings
from ..infra.producer import Producer
from ..infra.quarantine import Quarantine
from ..infra.registry import connect as connect_registry
from ..infra.settings import Settings
from ..schemas.errors import ConfigError, InvalidRecord, Unavailable
from ..schemas.serde import Decoder, SchemaLookup
from ..schemas.topics import TOPICS
from .batches import Batches, InsertBatch, Portion
from .pump import OnAssign, OnRevoke, Pump, PumpPolicy, Read, Since
from .sink_figures import SinkFigures

log = logging.getLogger(__name__)

GROUP = "sink"
SINK_TOPICS = tuple(TOPICS.values())
RETRY_S = 0.5
LEAVE_S = 3.0  # for the last batch once it is told to stop, and for leaving the group
# An insert is a few seconds' work at most. One that hangs is given up in time for the group, which a member leaves that
# has not polled for five minutes.
INSERT_TIMEOUT_S = 60
SILENT_S = 30.0  # behind a failure that took longer nothing more is inserted: it is all tried again
# ClickHouse reads and sorts a batch with one thread; two at once keep two cores busy and the network between them.
INSERTS_AT_ONCE = 2
# Block sizes decide how a batch is cut into blocks, and a block's token says which block of the batch it is: with other
# sizes at the second try its rows would be taken for new ones.
INSERT_SETTINGS: dict[str, object] = {
    "async_insert": 0,
    "insert_deduplicate": 1,
    "deduplicate_blocks_in_dependent_materialized_views": 1,
    "max_insert_block_size": 1_048_576,
    "min_insert_block_size_rows": 1_048_576,
    "min_insert_block_size_bytes": 268_435_456,
    "max_partitions_per_insert_block": 0,  # clocks of producers may say anything; that refuses no batch
    "optimize_on_insert": 0,  # merging a block with itself costs a third of its insert, and the views do it anyway
}
# Codes that say that a value cannot be read, converted or held: the only ones for which a record is refused. Whatever
# else ClickHouse answers is about itself, and a record refused for that would be lost to it.
UNFIT = {
    "3", "4", "32", "33",  # an end too early or too late
    "6", "25", "26", "27", "38", "41", "72", "117", "130", "376", "441", "467", "675", "676",  # cannot be parsed
    "53", "69", "70", "190", "321", "349", "407", "691",  # of another type or length, or out of its range
    "128", "131",  # too large
    "469",  # against a constraint
}  # fmt: skip
# What its Avro library says of a body comes under the code of every C++ exception, a full disk's among them.
CPLUSPLUS, AVRO = "1001", "type: avro::"
# Codes that say that tables, rights or statements are wrong: somebody has to see to it.
STRUCTURAL = {"10", "16", "47", "48", "60", "62", "81", "115", "164", "192", "193", "194", "497", "516"}
T = TypeVar("T")


class Sink:
    """Writes batches of messages. `write` raises Unavailable, to be tried again, TooManyDeadLetters and ConfigError."""

    def __init__(
        self,
        client: Client,
        lookup: SchemaLookup,
        quarantine: Quarantine,
        *,
        clock: Clock | None = None,
        figures: SinkFigures | None = None,
    ) -> None:
        self._client = client
        self._decoder = Decoder(lookup)
        self._quarantine = quarantine
        self._landings = Landings(client)
        self._clock = clock or SystemClock()
        self._figures = figures or SinkFigures()

    def write(self, messages: Sequence[Message], read: Read | None = None, since: Since | None = None) -> None:
        """Stores messages of any topics and partitions.

        For the audit, `read`: which offsets of each; `since`: when this sink was given it, null = just now.
        """
        try:
            self._write(messages, read, since or {})
        except ClickHouseError as error:
            if code_of(error) in STRUCTURAL or _is_unfit(error):
                raise ConfigError(
                    f"ClickHouse cannot take records: {error}; are its tables up to date (spanloop init)?"
                ) from error
            raise unavailable(error, self._client.where) from error

    def _write(self, messages: Sequence[Message], read: Read | None, since: Since) -> None:
        batches = Batches(messages, self._decoder.writer, read)
        landed = list(self._landed(batches))
        # one that is refused or has to wait keeps no other topic's out
        side_by_side([partial(self._insert, batches, *where) for where in landed], INSERTS_AT_ONCE, SILENT_S)
        portions = list(batches.portions.values())
        for portion in portions:
            self._report(portion)
        self._insert_rows("tombstones", [self._tombstone(m) for p in portions for m in p.tombstones])
        self._insert_rows("ingest_log", [self._logged(p, since) for p in portions])
        self._figures.stored(portions)

    def _landed(self, batches: Batches) -> Iterable[tuple[InsertBatch, str]]:
        """Batches, each with its landing table; records whose schema cannot be landed are refused."""
        for batch in batches.inserts():
            try:
                yield batch, self._landings.table(TOPICS[batch.topic], batch.writer_schema, long=batch.long)
            except InvalidRecord as error:
                for message, _ in batch.rows:
                    batches.refuse(message, error)

    def _insert(self, batches: Batches, batch: InsertBatch, table: str) -> None:
        """Inserts a batch; one that is refused is halved until the records at fault are alone."""
        token, block = batch.token, batch.container()
        try:
            with self._figures.inserting(batch.topic, len(block)):
                self._client.insert(table, block, "Avro", INSERT_SETTINGS | {"insert_deduplication_token": token})
            batches.stored(batch, token)
            return
        except Unavailable as error:
            if not is_memory(error) or len(batch.rows) == 1:
                raise
            log.warning("%s is inserted in halves: %s", token, error)
        except ClickHouseError as error:
            if not _is_unfit(error):
                raise
            if len(batch.rows) == 1:
                batches.refuse(batch.rows[0][0], InvalidRecord("insert_rejected", str(error)[:1000]))
                return
        for half in batch.halves():
            self._insert(batches, half, table)

    def _report(self, portion: Portion) -> None:
        """Dead letters in offset order, so that "too many in a row" means neighbours."""
        taken = portion.records - len(portion.refused)
        last = portion.read.start - 1
        for offset, (message, error) in sorted(portion.refused.items()):
            if offset > last + 1:
                self._quarantine.good()
            last = offset
            log.warning("%s[%d]@%d refused: %s", portion.topic, portion.partition, offset, error)
            self._quarantine.put(message, error)
        if taken and last < portion.read.stop - 1:
            self._quarantine.good()

    def _insert_rows(self, table: str, rows: list[dict[str, object]]) -> None:
        if rows:
            block = "\n".join(json.dumps(row) for row in rows).encode()
            self._client.insert(table, block, "JSONEachRow", {"async_insert": 0})

    def _tombstone(self, message: Message) -> dict[str, object]:
        return {
            "topic": message.topic,
            "key": (message.key or b"").decode("utf-8", "replace"),
            "at": message.timestamp_ms / 1000,
            "k_partition": message.partition,
            "k_offset": message.offset,
        }

    def _logged(self, portion: Portion, since: Since) -> dict[str, object]:
        quarantined, tombstones = len(portion.refused), len(portion.tombstones)
        now_ns = self._clock.now_ns()
        return {
            "topic": portion.topic,
            "k_partition": portion.partition,
            "first": portion.read.start,
            "last": portion.read.stop - 1,
            "since": since.get((portion.topic, portion.partition), now_ns),
            "flush": now_ns,
            "records": portion.records,
            "rows": portion.records - quarantined - tombstones,
            "quarantined": quarantined,
            "tombstones": tombstones,
            "tokens": portion.tokens,
            "at": now_ns / 1e9,
        }


def _is_unfit(error: ClickHouseError) -> bool:
    """True where a record is at fault."""
    code = code_of(error)
    return code in UNFIT or (code == CPLUSPLUS and AVRO in str(error))


class SinkService:
    """Runs the sink over all topics of a prefix as a member of their group."""

    def __init__(self, settings: Settings, policy: PumpPolicy | None = None) -> None:
        self._settings = settings
        self._policy = policy

    def run(self, stop: threading.Event) -> None:
        """Until `stop` is set. Raises DataLost, TooManyDeadLetters, ConfigError.

        Unavailable where it does not come to its end then; what it has not committed is read again by the next one.
        """
        bounded = Bounded(stop, LEAVE_S)
        # who answers no more would hold it for ever: a client of Kafka knows no limit for a commit
        with closing(bounded):
            bounded(f"the sink, for ClickHouse or {self._settings.bootstrap},", lambda: self._sink(stop), math.inf)

    def _sink(self, stop: threading.Event) -> None:
        settings = self._settings
        with ExitStack() as stack:
            if (client := _reach(lambda: connect(settings, timeout_s=INSERT_TIMEOUT_S), stop)) is None:
                return
            stack.callback(client.close)
            _reach(lambda: check_prefix(client, settings.clickhouse_database, settings.prefix), stop)
            if (producer := _reach(lambda: Producer(settings, GROUP), stop)) is None:
                return
            stack.callback(producer.close, LEAVE_S)
            registry = stack.enter_context(closing(connect_registry(settings)))
            figures = SinkFigures(telemetry.meter(settings, "sink"))
            stack.callback(figures.close)
            sink = Sink(client, registry, Quarantine(producer, GROUP, settings.dlq_limit), figures=figures)

            def join(assigned: OnAssign, revoked: OnRevoke) -> Member:
                return figures.watch(Member(settings, GROUP, SINK_TOPICS, on_assign=assigned, on_revoke=revoked))

            def write(messages: Sequence[Message], read: Read, since: Since) -> None:
                producer.check()  # without dead letters one bad record would be the end
                sink.write(messages, read, since)

            Pump(join, write, self._policy).run(stop)


def _reach(open_it: Callable[[], T], stop: threading.Event) -> T | None:
    """Opens something once it can be reached; None where it was stopped before."""
    told = False
    while not stop.is_set():
        try:
            return open_it()
        except Unavailable as error:
            if not told:
                log.warning("waiting: %s", error)
            told = True
            stop.wait(RETRY_S)
    return None


def main() -> None:
    """Runs until SIGTERM or SIGINT, with settings from the environment."""
    process.main(SinkService)


if __name__ == "__main__":
    main()
