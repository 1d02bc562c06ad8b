"""The assembler's shell by itself: which records it takes while partitions come and go, and what it sends."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Generator
from contextlib import closing
from dataclasses import replace

import pytest
from events import Bench, batch, end, llm, rew, span

from spanloop.infra.kafka import Message
from spanloop.infra.producer import OnDelivery, Producer
from spanloop.infra.quarantine import Quarantine
from spanloop.infra.registry import encoder
from spanloop.infra.settings import Settings
from spanloop.infra.taking import Taking
from spanloop.schemas.errors import InvalidRecord
from spanloop.schemas.records import Attempt, AttemptContext, SpanBatch
from spanloop.schemas.topics import Record
from spanloop.streams import shell as shell_module
from spanloop.streams.shell import Shell
from spanloop.streams.texts import ID_MAX, TEXT_MAX, check_ids

NUMBER = 0


@pytest.fixture
def shell(embedded_settings: Settings) -> Generator[Shell]:
    made = Shell(embedded_settings)
    made.core.assign(NUMBER, spans=5, rewards=0)
    yield made
    made.close()


def raw(offset: int) -> Message:
    return Message("spans", NUMBER, offset, b"ro-1", b"")


def lost(shell: Shell) -> None:
    shell.revoke(NUMBER)


def given_again(shell: Shell) -> None:
    shell.revoke(NUMBER)
    shell.core.assign(NUMBER, spans=2, rewards=0)


def read_by_another(shell: Shell) -> None:
    shell.core.partitions[NUMBER].spans.read(6)


@pytest.mark.parametrize(("change", "next_offset"), [(lost, None), (given_again, 2), (read_by_another, 7)])
def test_a_partition_that_changes_hands_while_a_record_waits_is_read_on_by_who_has_it(
    shell: Shell, monkeypatch: pytest.MonkeyPatch, change: Callable[[Shell], None], next_offset: int | None
) -> None:
    async def play() -> None:
        waits, goes_on = asyncio.Event(), asyncio.Event()

        async def record_async(*_: object) -> SpanBatch:
            waits.set()
            await goes_on.wait()
            return batch(span("s1"))

        monkeypatch.setattr(Taking, "record_async", record_async)
        taking = asyncio.ensure_future(shell.take([raw(5), raw(6)]))
        await waits.wait()
        change(shell)
        goes_on.set()
        await taking

    asyncio.run(play())
    assert shell.core.attempts == {}
    assert (shell.positions(NUMBER)["spans"] if NUMBER in shell.core.partitions else None) == next_offset


def sent(settings: Settings, count: int) -> list[Message]:
    """So many records of one attempt, as they lie in their partition."""
    event, encode = batch(), encoder(settings)
    with closing(Producer(settings, "test")) as producer:
        for i in range(count):
            producer.send_wait(replace(event, spans=[span(f"s{i}", seq=i)], begin=i == 0), partition=NUMBER)
    return [
        Message("spans", NUMBER, i, b"ro-1", encode.encode(replace(event, spans=[span(f"s{i}", seq=i)], begin=i == 0)))
        for i in range(count)
    ]


@pytest.mark.parametrize("first", [1, 3])
def test_records_that_faust_passed_over_are_read_before_those_behind_them(
    shell: Shell, embedded_settings: Settings, caplog: pytest.LogCaptureFixture, first: int
) -> None:
    records = sent(embedded_settings, 4)
    shell.core.assign(NUMBER, spans=0, rewards=0)
    asyncio.run(shell.take_fetched(records[:1]))
    asyncio.run(shell.take_fetched(records[first:]))
    (attempt,) = shell.core.attempts.values()
    assert (len(attempt.spans), attempt.spans_first, shell.positions(NUMBER)["spans"]) == (4, 0, 4)
    assert (f"{first - 1} records from 1 on were passed over" in caplog.text) == (first > 1)


def test_transaction_markers_between_records_are_looked_into_once(
    shell: Shell, monkeypatch: pytest.MonkeyPatch
) -> None:
    looked: list[object] = []

    async def read(_: Settings, __: str, starts: object, *___: object) -> bool:
        looked.append(starts)
        return True

    async def record_async(*_: object) -> SpanBatch:
        return batch(span("s1"))

    monkeypatch.setattr(shell_module, "read", read)
    monkeypatch.setattr(Taking, "record_async", record_async)
    for offset in (5, 7, 9):  # 6 and 8 are markers
        asyncio.run(shell.take_fetched([raw(offset)]))
    assert looked == [{("spans", NUMBER): 6}]
    assert shell.positions(NUMBER)["spans"] == 10


def test_an_end_that_is_too_long_for_attempts_is_told_in_short(shell: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    told, send = list[Record](), Producer.send

    def sent(
        self: Producer, record: Record, *, partition: int | None = None, on_delivery: OnDelivery | None = None
    ) -> None:
        send(self, record, partition=partition, on_delivery=on_delivery)
        told.append(record)

    async def record_async(*_: object) -> SpanBatch:
        return batch(begin=True, end=end(reason="a" + "y" * 2_000_000))

    monkeypatch.setattr(Producer, "send", sent)
    monkeypatch.setattr(Taking, "record_async", record_async)
    asyncio.run(shell.take([raw(5)]))
    (reason,) = [r.reason for r in told if isinstance(r, Attempt) and r.status == "ended"]
    assert reason is not None
    assert reason.startswith("ay")
    assert len(reason) < 2 * TEXT_MAX


LONG = "x" * (ID_MAX + 1)


def test_a_reward_with_an_empty_attempt_id_goes_to_the_counting_attempt_as_one_with_null() -> None:
    reward = rew(1.0, attempt="")
    check_ids(reward)
    bench = Bench()
    bench.give(batch(llm("s1", [1], [2]), begin=True, end=end()), reward)
    assert bench.last().final_reward == 1.0
    with pytest.raises(InvalidRecord, match="attempt_id has 1001 characters"):
        check_ids(rew(1.0, attempt=LONG))


@pytest.mark.parametrize(
    "event",
    [batch(span("s1"), rollout=x) for x in (LONG, "")] + [batch(span("s1"), attempt=x) for x in (LONG, "")],
    ids=["long rollout_id", "no rollout_id", "long attempt_id", "no attempt_id"],
)
def test_an_event_with_an_id_that_nothing_could_be_written_under_is_set_aside(
    shell: Shell, embedded_settings: Settings, monkeypatch: pytest.MonkeyPatch, event: SpanBatch
) -> None:
    refused = list[InvalidRecord]()

    def put(_self: Quarantine, _message: Message, error: InvalidRecord) -> None:
        refused.append(error)

    monkeypatch.setattr(Quarantine, "put", put)
    value = encoder(embedded_settings).encode(event)
    asyncio.run(shell.take([Message("spans", NUMBER, 5, b"ro-1", value)]))
    assert [error.reason for error in refused] == ["unsupported"]
    assert shell.core.attempts == {}
    assert shell.positions(NUMBER)["spans"] == 6


def test_an_end_whose_context_is_long_ends_its_attempt(shell: Shell, embedded_settings: Settings) -> None:
    marker = batch(begin=True, end=end(context=AttemptContext(run_id=LONG, group_id=LONG, data_id=LONG)))
    value = encoder(embedded_settings).encode(marker)
    asyncio.run(shell.take([Message("spans", NUMBER, 5, b"ro-1", value)]))
    assert shell.core.counts["emitted"] == 1
