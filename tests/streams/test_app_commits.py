"""What the assembler commits when something goes wrong: nothing past a record whose handling failed, or is not over."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from operator import attrgetter

import pytest
from events import batch, end, llm
from in_thread import in_thread
from waiting import GONE_WITHIN_S, LIMIT_S, until

from spanloop.infra.kafka import Names, Position
from spanloop.infra.producer import Ack, OnDelivery, Producer
from spanloop.infra.settings import Settings
from spanloop.schemas.errors import BackPressure, DeliveryFailed
from spanloop.schemas.records import Trajectory
from spanloop.schemas.topics import SPANS, Record, partition_of
from spanloop.streams import app, faust_offsets
from spanloop.streams.acks import Epoch
from spanloop.streams.assembler_service import AssemblerService
from spanloop.streams.faust_types import Consumer
from spanloop.streams.first_offsets import committed_offsets
from spanloop.streams.messages import Source
from spanloop.streams.shell import Shell

Trouble = Callable[[OnDelivery], None]


def committed(settings: Settings) -> int:
    at = (SPANS.name, partition_of("ro-1", settings.partitions))
    return committed_offsets(settings, "assembler", [at])[at]


def send_an_attempt(settings: Settings, rollout: str = "ro-1") -> None:
    with closing(Producer(settings, "test")) as producer:
        producer.send(batch(llm("s1", [1], [2]), rollout=rollout, begin=True, end=end(span_count=1)))


def befall(monkeypatch: pytest.MonkeyPatch, trouble: Trouble) -> None:
    """Has something else happen to trajectories than being sent."""
    send = Producer.send

    def sent(
        self: Producer, record: Record, *, partition: int | None = None, on_delivery: OnDelivery | None = None
    ) -> None:
        if isinstance(record, Trajectory) and on_delivery is not None:
            trouble(on_delivery)
        else:
            send(self, record, partition=partition, on_delivery=on_delivery)

    monkeypatch.setattr(Producer, "send", sent)


def full(on_delivery: OnDelivery) -> None:
    del on_delivery
    raise BackPressure("the queue is full")


def lost(on_delivery: OnDelivery) -> None:
    on_delivery(DeliveryFailed("lost"), None)


@pytest.mark.parametrize(("trouble", "said"), [(full, BackPressure), (lost, DeliveryFailed)])
def test_nothing_is_committed_past_a_trajectory_that_failed(
    embedded_settings: Settings, monkeypatch: pytest.MonkeyPatch, trouble: Trouble, said: type[Exception]
) -> None:
    befall(monkeypatch, trouble)
    stop, service = threading.Event(), AssemblerService(embedded_settings)
    with ThreadPoolExecutor(1) as pool:
        done = pool.submit(service.run, stop)
        try:
            until(lambda: service.app is not None and service.app.is_ready)
            send_an_attempt(embedded_settings)
            with pytest.raises(said):
                done.result(LIMIT_S)
        finally:
            stop.set()
    assert committed(embedded_settings) == 0


def test_a_stop_does_not_commit_past_a_trajectory_that_is_not_acknowledged(
    embedded_settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    owed, waits, wait = list[OnDelivery](), list[Epoch](), Epoch.wait

    def waited(self: Epoch, timeout_s: float) -> None:
        waits.append(self)
        wait(self, timeout_s)

    monkeypatch.setattr(Epoch, "wait", waited)
    befall(monkeypatch, owed.append)
    send_an_attempt(embedded_settings)
    with in_thread(AssemblerService(embedded_settings), GONE_WITHIN_S):
        until(lambda: owed and any(attrgetter("_open")(epoch) for epoch in waits))
    assert committed(embedded_settings) == 0
    for on_delivery in owed:  # lets the thread that waits end
        on_delivery(None, Ack(0, 0))


def test_nothing_is_committed_that_others_have_gone_past_meanwhile(
    embedded_settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    # A member that was frozen is given partitions again that another has gone on with: its own offsets are old.
    mine, other = ((SPANS.name, partition_of(rollout, embedded_settings.partitions)) for rollout in ("ro-1", "ro-2"))
    assert other < mine  # is caught up first
    asked, told, refused, taken = threading.Event(), threading.Event(), list[int](), list[int]()
    settled, settle, take_over = list[int](), Shell.settle, Shell.take_over
    service = AssemblerService(embedded_settings)

    async def commit(consumer: Consumer, names: Names, offsets: Mapping[Position, int]) -> bool:
        if mine in offsets:
            (taken if asked.is_set() else refused).append(offsets[mine])
        return asked.is_set() and await faust_offsets.commit(consumer, names, offsets)

    def others(settings: Settings, group: str, positions: Sequence[Position]) -> dict[Position, int]:
        asked.set()
        assert told.wait(LIMIT_S)
        return {**committed_offsets(settings, group, positions), mine: 2, other: 1}

    async def slow(shell: Shell) -> dict[Position, int]:
        offsets = await settle(shell)
        if asked.is_set():
            settled.append(offsets.get(mine, 0))
            while not attrgetter("_compared")(service.app):  # what it found is older than what the group tells
                await asyncio.sleep(0.01)
        return offsets

    async def later(shell: Shell, partition: int, committed: dict[Source, int], superseded: Callable[[], bool]) -> bool:
        while asked.is_set() and partition == other[1] and len(settled) < 3:
            await asyncio.sleep(0.01)
        return await take_over(shell, partition, committed, superseded)

    monkeypatch.setattr(app, "commit", commit)
    monkeypatch.setattr(Shell, "settle", slow)
    monkeypatch.setattr(Shell, "take_over", later)
    with in_thread(service, GONE_WITHIN_S):
        until(lambda: service.app is not None and service.app.is_ready)
        send_an_attempt(embedded_settings)
        until(lambda: 1 in refused)
        monkeypatch.setattr(app, "committed_offsets", others)
        assert service.app is not None
        loop, coordinator = attrgetter("_thread.thread_loop", "_thread._consumer._coordinator")(service.app.consumer)
        loop.call_soon_threadsafe(coordinator.request_rejoin)
        until(asked.is_set)
        for rollout in ("ro-1", "ro-1", "ro-2"):
            send_an_attempt(embedded_settings, rollout)
        until(lambda: settled)
        told.set()
        until(lambda: 3 in taken)
    assert settled[0] == 1
    assert min(taken) >= 2  # where it begins anew may be committed, and nothing before
