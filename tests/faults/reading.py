"""Reads what an audit is about: the log to where it ends now, what ClickHouse shows of it, what groups committed."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any

from confluent_kafka import Consumer, KafkaException, TopicPartition
from waiting import until

from spanloop.consumers.sink import GROUP as SINK
from spanloop.consumers.sink import SINK_TOPICS
from spanloop.infra.clickhouse import connect
from spanloop.infra.clickhouse_client import Client
from spanloop.infra.kafka import Message, Names, Position, Reader, consumer_config, partitions
from spanloop.infra.registry import Registry
from spanloop.infra.settings import Settings
from spanloop.schemas.errors import InvalidRecord
from spanloop.schemas.records import Reward, SpanBatch
from spanloop.schemas.serde import Decoder
from spanloop.schemas.topics import DEAD_LETTERS, REWARDS, SPANS, TOPICS, WORKERS, Record, Topic
from spanloop.streams.assembler import Assembler
from spanloop.streams.controller_shell import GROUP as CONTROLLER
from spanloop.streams.controller_shell import INPUTS
from spanloop.streams.messages import Emitted, Output
from spanloop.streams.messages import Message as Given
from spanloop.streams.shell import NAME as ASSEMBLER
from spanloop.streams.shell import SOURCES

from .diary import Diary
from .seen import Fed, Line, Seen, Tables, every_position

GROUPS: dict[str, Sequence[Topic]] = {SINK: SINK_TOPICS, CONTROLLER: INPUTS, ASSEMBLER: (SPANS, REWARDS)}
# Where several records make one row, or one record several, only the views can be compared.
NOT_ROW_BY_ROW = frozenset({SPANS.name, REWARDS.name, DEAD_LETTERS.name})
SETTLE_S = 90.0
Ends = dict[Position, int]
# After everything: every timer of every attempt is due.
THE_END_NS = 10**19


def read(settings: Settings, fed: Fed, diary: Diary) -> Seen:
    """Waits until all groups have committed up to where the log ends, and reads everything before that."""
    reader = Reader(settings, "faults-audit")
    try:
        reader.assign_topics(list(TOPICS.values()))
        ends, committed = at_rest(
            lambda: reader.ends(every_position(settings.partitions)),
            lambda ends: {group: arrive(settings, group, topics, ends) for group, topics in GROUPS.items()},
        )
        lines = _lines(settings, reader, ends)
    finally:
        reader.close()
    fed.answers, fed.spans, fed.rewards = diary.told("call"), diary.told("span"), diary.told("reward")
    seen = Seen(lines, ends, Tables(), fed, committed)
    seen.replayed = undisturbed(settings, lines)
    seen.tables = tables(settings)
    return seen


def at_rest(
    ends_now: Callable[[], Ends], all_arrive: Callable[[Ends], dict[str, Ends]]
) -> tuple[Ends, dict[str, Ends]]:
    """Where the log ends once all groups have read up to there and written nothing more; what they committed by then.

    What a group has not read yet it still owes records about: an end taken before them cuts them off. A log that does
    not come to rest within SETTLE_S is taken as it is then.
    """
    deadline, ends = time.monotonic() + SETTLE_S, ends_now()
    while True:
        committed, later = all_arrive(ends), ends_now()
        if _resting(later) == _resting(ends) or time.monotonic() > deadline:
            return ends, committed
        ends = later


def _resting(ends: Ends) -> Ends:
    """Those of topics that come to rest, as heartbeats never do."""
    return {at: end for at, end in ends.items() if at[0] != WORKERS.name}


def arrive(settings: Settings, group: str, topics: Sequence[Topic], ends: Ends) -> Ends:
    """What a group has committed, once that is all there is; where it does not get there, what it had by then."""
    positions = [(t.name, p) for t in topics for p in range(partitions(settings, t))]
    found = dict.fromkeys(positions, -1)

    def arrived() -> bool:
        with suppress(KafkaException):  # its coordinator is being chosen, or just started
            found.update(committed_of(settings, group, positions))
        return all(found[at] >= ends[at] for at in positions)

    def behind() -> str:
        return f"{group} is behind on {[(at, found[at], ends[at]) for at in positions if found[at] < ends[at]]}"

    with suppress(TimeoutError):  # the audit tells, with everything else
        until(arrived, behind, SETTLE_S)
    return found


def committed_of(settings: Settings, group: str, positions: Sequence[Position]) -> Ends:
    """What a group has committed, asked for from outside of it; below 0 = nothing. Raises KafkaException.

    Offsets in an open transaction are no part of it: a reader of committed records would be told none until it ends.
    """
    names = Names(settings.prefix)
    consumer = Consumer(consumer_config(settings, group, isolation="read_uncommitted"))
    try:
        asked = [TopicPartition(names.full(t), p) for t, p in positions]
        return {(names.short(tp.topic), tp.partition): tp.offset for tp in consumer.committed(asked, timeout=10)}
    finally:
        consumer.close()


def _lines(settings: Settings, reader: Reader, ends: dict[Position, int]) -> list[Line]:
    registry = Registry(settings.registry_url)
    decoder = Decoder(registry)
    out: list[Line] = []
    try:
        while not reader.reached(ends):
            for m in reader.poll(5000, 0.2):
                if m.offset < ends[m.topic, m.partition]:
                    out.append(Line(m.topic, m.partition, m.offset, _record(decoder, m), m.key, m.value is None))
    finally:
        registry.close()
    return sorted(out, key=lambda line: (line.topic, line.partition, line.offset))


def _record(decoder: Decoder, m: Message) -> Record | None:
    if m.value is None:
        return None
    try:
        return decoder.decode_topic(TOPICS[m.topic], m.value, m.headers)
    except InvalidRecord:
        return None


def undisturbed(settings: Settings, lines: Sequence[Line]) -> dict[str, tuple[int, str]]:
    """attempt -> (revision, digest) as the pure core makes them of the log, with nothing ever going wrong."""
    core, last = Assembler(), dict[str, tuple[int, str]]()

    def keep(outputs: Sequence[Output]) -> None:
        made = [o.trajectory for o in outputs if isinstance(o, Emitted)]
        last.update({t.attempt_id: (t.revision, t.input_digest) for t in made})

    for partition in range(settings.partitions):
        core.assign(partition, spans=0, rewards=0)
    for source in SOURCES:
        for line in (x for x in lines if x.topic == source):
            record = line.record if isinstance(line.record, SpanBatch | Reward) else None
            keep(core.add(Given(source, line.partition, line.offset, record), 0))
    keep(core.tick(THE_END_NS))
    return last


def tables(settings: Settings) -> Tables:
    """What ClickHouse shows now."""
    client = connect(settings)
    try:
        return Tables(
            rows={t: _rows(client, f"SELECT k_partition, k_offset FROM {t.replace('-', '_')} FINAL")
                  for t in TOPICS if t not in NOT_ROW_BY_ROW},
            spans=_rows(client, "SELECT attempt_id, span_id FROM v_spans"),
            rewards=_rows(client, "SELECT reward_id, value FROM v_rewards"),
            ends=_rows(client, "SELECT attempt_id, status FROM v_ends"),
            trajectories=_rows(client, "SELECT attempt_id, revision, input_digest FROM v_trajectories"),
            rollouts=_rows(client, "SELECT rollout_id, status, final, trajectory_attempt FROM v_rollouts"),
            decisions=_rows(client, "SELECT run_id, group_id FROM v_decisions"),
            letters=_rows(client, "SELECT consumer, topic, partition, offset FROM v_dead_letters"),
            ingest=_rows(client, "SELECT topic, k_partition, first, last, records FROM v_ingest_log WHERE counts"),
            tombstones={t: _rows(client, f"SELECT k_partition, k_offset FROM tombstones FINAL WHERE topic = '{t}'")
                        for t in TOPICS},
        )  # fmt: skip
    finally:
        client.close()


def _rows(client: Client, sql: str) -> list[Any]:
    return [tuple(row) for row in client.query(sql).result_rows]
