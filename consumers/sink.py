"""The sink: every Avro topic into ClickHouse, undecoded, at least once, shown once.

    messages ─▶ batches ─▶ insert (token) ─▶ quarantine ─▶ ingest_log ─▶ commit

Anything before the commit may happen again after a crash. An insert that happens again in the very same batch is
dropped by its token; in other batches its rows have the same identity, which the views show once.

python -m spanloop.consumers.sink
"""

from __future__ import annotations

import json
import logging
import threading
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from clickhouse_connect.driver.exceptions import ClickHouseError

from ..infra import process
from ..infra.clickhouse import connect
from ..infra.clickhouse_client import Client, code_of
from ..infra.clock import Clock, SystemClock
from ..infra.kafka import Member, Message
from ..infra.landing import Landings
from ..infra.producer import Producer
from ..infra.quarantine import Quarantine
from ..infra.registry import Registry
from ..infra.settings import Settings
from ..schemas.errors import ConfigError, InvalidRecord, Unavailable
from ..schemas.serde import Decoder, SchemaLookup
from ..schemas.topics import TOPICS
from .batches import Batches, InsertBatch, Portion
from .pump import Pump, PumpPolicy

log = logging.getLogger(__name__)

GROUP = "sink"
SINK_TOPICS = tuple(TOPICS.values())
RETRY_S = 0.5
# Block sizes decide how a batch is cut into blocks, and a block's token says which block of the batch it is: with other
# sizes at the second try its rows would be taken for new ones.
INSERT_SETTINGS: dict[str, Any] = {
    "async_insert": 0,
    "insert_deduplicate": 1,
    "deduplicate_blocks_in_dependent_materialized_views": 1,
    "max_insert_block_size": 1_048_576,
    "min_insert_block_size_rows": 1_048_576,
    "min_insert_block_size_bytes": 268_435_456,
    "max_partitions_per_insert_block": 0,  # clocks of producers may say anything; that refuses no batch
}
# Codes that say that tables, rights or statements are wrong, not a record: no record is refused for them.
STRUCTURAL = {"10", "16", "47", "48", "60", "62", "81", "115", "164", "192", "193", "194", "497", "516"}
T = TypeVar("T")


class Sink:
    """Writes batches of messages. `write` raises Unavailable, to be tried again, and TooManyDeadLetters."""

    def __init__(
        self, client: Client, lookup: SchemaLookup, quarantine: Quarantine, clock: Clock | None = None
    ) -> None:
        self._client = client
        self._decoder = Decoder(lookup)
        self._quarantine = quarantine
        self._landings = Landings(client)
        self._clock = clock or SystemClock()

    def write(self, messages: Sequence[Message]) -> None:
        """Stores messages of any topics and partitions; each partition's in offset order."""
        batches = Batches(messages, self._decoder.writer)
        for batch in batches.inserts():
            self._insert(batches, batch)
        done = list(batches.portions.values())
        for portion in done:
            self._report(portion)
        self._insert_rows("tombstones", [self._tombstone(m) for p in done for m in p.tombstones])
        self._insert_rows("ingest_log", [self._logged(p) for p in done])

    def _insert(self, batches: Batches, batch: InsertBatch) -> None:
        """Inserts a batch; one that is refused is halved until the records at fault are alone."""
        token = batch.token
        try:
            table = self._landings.table(TOPICS[batch.topic], batch.writer_schema)
            self._client.insert(
                table, batch.container(), "Avro", INSERT_SETTINGS | {"insert_deduplication_token": token}
            )
            batches.stored(batch, token)
        except InvalidRecord as error:  # a schema that cannot be landed
            for message, _ in batch.rows:
                batches.refuse(message, error)
        except ClickHouseError as error:
            if code_of(error) in STRUCTURAL:
                raise ConfigError(
                    f"ClickHouse cannot take topic {batch.topic!r}: {error}; are its tables up to date (spanloop init)?"
                ) from error
            if len(batch.rows) == 1:
                batches.refuse(batch.rows[0][0], InvalidRecord("insert_rejected", str(error)[:1000]))
                return
            for half in batch.halves():
                self._insert(batches, half)

    def _report(self, portion: Portion) -> None:
        """Dead letters in offset order, so that "too many in a row" means neighbours."""
        taken = portion.records - len(portion.refused)
        last = portion.first - 1
        for offset, (message, error) in sorted(portion.refused.items()):
            if offset > last + 1:
                self._quarantine.good()
            last = offset
            log.warning("%s[%d]@%d refused: %s", portion.topic, portion.partition, offset, error)
            self._quarantine.put(message, error)
        if taken and last < portion.last:
            self._quarantine.good()

    def _insert_rows(self, table: str, rows: list[dict[str, Any]]) -> None:
        if rows:
            block = "\n".join(json.dumps(row) for row in rows).encode()
            self._client.insert(table, block, "JSONEachRow", {"async_insert": 0})

    def _tombstone(self, message: Message) -> dict[str, Any]:
        return {
            "topic": message.topic,
            "key": (message.key or b"").decode("utf-8", "replace"),
            "at": message.timestamp_ms / 1000,
            "k_partition": message.partition,
            "k_offset": message.offset,
        }

    def _logged(self, portion: Portion) -> dict[str, Any]:
        quarantined, tombstones = len(portion.refused), len(portion.tombstones)
        return {
            "topic": portion.topic,
            "k_partition": portion.partition,
            "first": portion.first,
            "last": portion.last,
            "records": portion.records,
            "rows": portion.records - quarantined - tombstones,
            "quarantined": quarantined,
            "tombstones": tombstones,
            "tokens": portion.tokens,
            "at": self._clock.now_ns() / 1e9,
        }


class SinkService:
    """Runs the sink over all topics of a prefix as a member of their group."""

    def __init__(self, settings: Settings, policy: PumpPolicy | None = None) -> None:
        self._settings = settings
        self._policy = policy

    def run(self, stop: threading.Event) -> None:
        """Until `stop` is set. Raises DataLost, TooManyDeadLetters, ConfigError."""
        settings = self._settings
        client = _reach(lambda: connect(settings), stop)
        producer = _reach(lambda: Producer(settings, GROUP), stop)
        if client is None or producer is None:
            return
        registry = Registry(settings.registry_url)
        sink = Sink(client, registry, Quarantine(producer, GROUP, settings.dlq_limit))
        try:
            Pump(
                lambda revoked: Member(settings, GROUP, SINK_TOPICS, on_revoke=revoked),
                sink.write,
                self._policy,
            ).run(stop)
        finally:
            producer.close()
            registry.close()
            client.close()


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
    process.main(lambda: SinkService(Settings()))


if __name__ == "__main__":
    main()
