"""Values that are too large, inserts that are too large, and many that are tiny."""

from __future__ import annotations

import hashlib
import json
import threading
from collections.abc import Mapping, Sequence
from typing import Any, cast

import pytest
from clickhouse_connect.driver.exceptions import DatabaseError
from pump_rig import Script, pump
from sink_rig import Lab

from spanloop.consumers.batches import Read
from spanloop.consumers.pump import PumpPolicy, Since
from spanloop.infra.clickhouse_client import Client, unavailable
from spanloop.infra.kafka import Message
from spanloop.infra.landing_targets import MAX_VALUE_BYTES
from spanloop.schemas.errors import Unavailable
from spanloop.schemas.records import ModelCall, Resource, Reward, Task

HUGE = 10 << 20


def sha256(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def mark(text: str) -> dict[str, Any]:
    """What `capped` says of a text."""
    return {"bytes": len(text.encode()), "sha256": sha256(text)}


def test_a_huge_attribute_is_capped_with_its_length_and_hash_and_merges_go_on(lab: Lab) -> None:  # CH-6
    value = "é" + "x" * (HUGE - 2)
    for i in range(3):
        attributes = json.dumps({"before": "b", "prompt": value, "after": i}, ensure_ascii=False)
        lab.store(lab.batch(lab.span(f"s{i}", attributes=attributes)))
    lab.client.command("OPTIMIZE TABLE spans FINAL SETTINGS max_memory_usage = 209715200")  # 200 MiB
    assert lab.rows("SELECT mapKeys(attributes), attributes['after'] FROM v_spans ORDER BY span_id") == [
        (["before", "prompt", "prompt.truncated", "prompt.length", "prompt.sha256", "after"], str(i)) for i in range(3)
    ]
    marks = lab.rows(
        "SELECT DISTINCT attributes['prompt.truncated'], attributes['prompt.length'], attributes['prompt.sha256'] "
        "FROM v_spans"
    )
    assert marks == [("true", str(HUGE), sha256(value))]
    assert lab.one("SELECT max(length(attributes['prompt'])) FROM v_spans") == MAX_VALUE_BYTES
    stored = "SELECT max(data_uncompressed_bytes) FROM system.parts WHERE active AND table = 'spans'"
    assert lab.one(f"{stored} AND database = currentDatabase()") < 4 * MAX_VALUE_BYTES


def test_a_cut_never_leaves_half_a_character(lab: Lab) -> None:
    lab.store(lab.batch(lab.span(attributes=json.dumps({"k": "x" + "é" * MAX_VALUE_BYTES}, ensure_ascii=False))))
    assert lab.one("SELECT isValidUTF8(attributes['k']) FROM v_spans") == 1


def test_texts_that_are_too_long_are_cut_and_named(lab: Lab) -> None:
    long, short = "r" * (MAX_VALUE_BYTES + 7), "s" * MAX_VALUE_BYTES
    call = ModelCall(request=long, response=short)
    lab.store(lab.batch(lab.span("s1", call=call, events=long), lab.span("s2")))
    assert lab.rows("SELECT span_id, length(request), length(events), capped FROM v_spans ORDER BY span_id") == [
        ("s1", MAX_VALUE_BYTES, MAX_VALUE_BYTES, {c: mark(long) for c in ("events", "request")}),
        ("s2", 0, 2, {}),
    ]
    assert lab.one("SELECT length(response) FROM v_spans WHERE span_id = 's1'") == MAX_VALUE_BYTES


TEXT = "t" * (MAX_VALUE_BYTES + 1)


@pytest.mark.parametrize(
    ("record", "view", "column"),
    [
        (Task("ro-1", "run", input=TEXT), "v_tasks", "input"),
        (Resource("p", 1, "prompt", body=TEXT), "v_resources", "body"),
    ],
    ids=["task", "resource"],
)
def test_other_records_texts_are_cut_too(lab: Lab, record: Task | Resource, view: str, column: str) -> None:
    lab.store(record)
    assert lab.rows(f"SELECT length({column}), capped FROM {view}") == [(MAX_VALUE_BYTES, {column: mark(TEXT)})]


# --- what ClickHouse has no memory for


class Tight:
    """A client of a ClickHouse with little memory."""

    def __init__(self, client: Client, most: int) -> None:
        self._client = client
        self._most = most

    def insert(self, table: str, block: bytes, fmt: str, settings: Mapping[str, Any] | None = None) -> None:
        if len(block) > self._most:
            error = DatabaseError("Code: 241. DB::Exception: memory limit exceeded")
            raise unavailable(error, "here") from error
        self._client.insert(table, block, fmt, settings)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._client, name)


def test_a_batch_that_memory_does_not_suffice_for_is_inserted_in_halves(lab: Lab) -> None:
    messages = [lab.message(lab.batch(lab.span(f"{i:016x}", status_message="x" * 20_000))) for i in range(40)]
    lab.client = cast("Client", Tight(lab.client, 200_000))
    lab.sink().write(messages)
    assert lab.rows("SELECT count(), countDistinct(span_id) FROM v_spans") == [(40, 40)]
    assert lab.letters.sent == []


def test_a_record_that_memory_does_not_suffice_for_is_waited_for_not_refused(lab: Lab) -> None:
    message = lab.message(lab.batch(lab.span(status_message="x" * 300_000)))
    lab.client = cast("Client", Tight(lab.client, 200_000))
    with pytest.raises(Unavailable, match="cannot take this now"):
        lab.sink().write([message])
    assert lab.letters.sent == []


# --- tiny ones


def parts(lab: Lab) -> int:
    """The most active parts that a table has."""
    return lab.one(
        "SELECT max(parts) FROM (SELECT count() AS parts FROM system.parts WHERE active AND "
        "database = currentDatabase() GROUP BY table)"
    )


def test_nothing_and_one_record_and_many_tiny_flushes_are_taken(lab: Lab) -> None:  # CH-10
    sink = lab.sink()
    sink.write([])
    for i in range(1000):
        sink.write([lab.message(Reward(f"rw-{i:03}", "ro-1", value=1.0))])
    assert lab.one("SELECT count() FROM v_rewards") == 1000
    assert parts(lab) < 300


def test_a_thousand_records_in_ten_seconds_are_a_dozen_flushes(lab: Lab) -> None:  # CH-10
    arriving = [[lab.message(lab.batch(lab.span(f"{i:016x}")))] for i in range(1000)]
    script = Script([*arriving], threading.Event(), poll_s=0.01)
    flushes: list[int] = []
    sink = lab.sink()

    def process(batch: Sequence[Message], read: Read, since: Since) -> None:
        flushes.append(len(batch))
        sink.write(batch, read, since)

    pump(script, process, PumpPolicy())
    assert sum(flushes) == 1000
    assert len(flushes) <= 12
    assert lab.rows("SELECT records, gaps, repeats FROM v_audit") == [(1000, 0, 0)]
    assert lab.one("SELECT count() FROM v_spans") == 1000
    assert parts(lab) < 300
