"""What the assembler commits when something goes wrong: nothing past a record whose handling failed, or is not over."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from operator import attrgetter

import pytest
from events import batch, end, llm
from in_thread import in_thread
from waiting import GONE_WITHIN_S, LIMIT_S, until

from spanloop.infra.producer import Ack, OnDelivery, Producer
from spanloop.infra.settings import Settings
from spanloop.schemas.errors import BackPressure, DeliveryFailed
from spanloop.schemas.records import Trajectory
from spanloop.schemas.topics import SPANS, Record, partition_of
from spanloop.streams.acks import Epoch
from spanloop.streams.app import AssemblerService
from spanloop.streams.first_offsets import committed_offsets

Trouble = Callable[[OnDelivery], None]


def committed(settings: Settings) -> int:
    at = (SPANS.name, partition_of("ro-1", settings.partitions))
    return committed_offsets(settings, "assembler", [at])[at]


def send_an_attempt(settings: Settings) -> None:
    with closing(Producer(settings, "test")) as producer:
        producer.send(batch(llm("s1", [1], [2]), begin=True, end=end(span_count=1)))


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
