"""What is told of an assembler that does not come to its work, and how it leaves one whose broker is away."""

from __future__ import annotations

import asyncio
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from importlib import import_module
from operator import attrgetter
from typing import Any

import pytest
from faults.parts import FORESEEN
from in_thread import in_thread
from waiting import GONE_WITHIN_S, until

from spanloop.infra.embedded_broker import EmbeddedBroker
from spanloop.infra.settings import Settings
from spanloop.schemas.errors import ConfigError, Unavailable
from spanloop.streams import app, assembler_service
from spanloop.streams.assembler_service import AssemblerService
from spanloop.streams.controller_shell import ControllerService
from spanloop.streams.faust_consumer import Batches
from spanloop.streams.shell import Shell

ERRORS: Any = import_module("aiokafka.errors")  # it has no types

AWAY_S = 1.0  # it notices, and waits to fetch again


class CutOff:
    """A Faust app whose start is cancelled by a part of it that ends, as when the broker goes away meanwhile."""

    crashed = False
    crash_reason: BaseException | None = None

    def __init__(self, settings: Settings, *_: object) -> None:
        self.settings = settings

    async def start(self) -> None:
        raise asyncio.CancelledError

    async def stop(self) -> None:
        """Nothing to stop."""


class Unknown(CutOff):
    """One that waits for its topics in vain: a broker that goes as it is asked does not tell of them."""

    async def start(self) -> None:
        raise ERRORS.UnknownTopicOrPartitionError


class Broken(CutOff):
    """One with a fault of its own."""

    async def start(self) -> None:
        raise ERRORS.IllegalStateError("a fault")


def test_a_start_that_was_cancelled_is_told_as_what_it_means(
    embedded_settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(assembler_service, "AssemblerApp", CutOff)
    with pytest.raises(Unavailable, match="cut off from"):
        AssemblerService(embedded_settings).run(threading.Event())


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_a_broker_that_goes_as_the_assembler_starts_is_told_by_name(
    embedded_settings: Settings, broker: EmbeddedBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    def shell(*given: Any) -> Shell:
        made = Shell(*given)
        broker.set_down()
        return made

    monkeypatch.setattr(app, "Shell", shell)
    try:
        with pytest.raises(Unavailable, match=embedded_settings.bootstrap) as raised:
            AssemblerService(embedded_settings).run(threading.Event())
    finally:
        broker.set_up()
    assert isinstance(raised.value.__cause__, ERRORS.KafkaConnectionError)
    assert FORESEEN.fullmatch(f"PartFailed: assembler failed: Unavailable: {raised.value}")


def test_topics_that_are_not_told_of_are_told_as_an_absence(
    embedded_settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(assembler_service, "AssemblerApp", Unknown)
    with pytest.raises(Unavailable, match=f"{embedded_settings.bootstrap}.*UnknownTopicOrPartitionError"):
        AssemblerService(embedded_settings).run(threading.Event())


def test_it_leaves_at_once_while_its_broker_is_away(embedded_settings: Settings, broker: EmbeddedBroker) -> None:
    service = AssemblerService(embedded_settings)
    with in_thread(service, GONE_WITHIN_S):
        until(lambda: service.app is not None and service.app.is_ready, "the assembler to be ready")
        broker.set_down()
        time.sleep(AWAY_S)
    broker.set_up()


def test_a_fault_of_its_own_is_told_as_it_is(embedded_settings: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(assembler_service, "AssemblerApp", Broken)
    with pytest.raises(ERRORS.IllegalStateError, match="a fault"):
        AssemblerService(embedded_settings).run(threading.Event())


async def silent(*_: object) -> dict[object, int]:
    """Never tells a group's offsets."""
    await asyncio.Event().wait()
    return {}


def test_it_begins_though_the_group_does_not_tell_its_offsets_again(
    embedded_settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Faust would ask, take its time-out for its own end, and let no record through any more.
    monkeypatch.setattr(import_module("aiokafka").AIOKafkaConsumer, "seek_to_committed", silent)
    service = AssemblerService(embedded_settings)
    with in_thread(service, GONE_WITHIN_S):
        until(lambda: service.app is not None and service.app.is_ready, "the assembler to be ready")


def test_a_consumer_that_does_not_go_on_after_a_rebalance_is_told_of(
    embedded_settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Batches, "perform_seek", silent)
    monkeypatch.setattr(app, "SETTLE_S", 1.0)
    with pytest.raises(Unavailable, match="did not go on within 1 s"):
        AssemblerService(embedded_settings).run(threading.Event())


@pytest.mark.parametrize(
    ("failure", "said"), [(asyncio.CancelledError, "cut off from"), (asyncio.TimeoutError, "not told by")]
)
def test_a_call_of_its_consumers_that_is_cancelled_or_not_answered_stops_the_assembler(
    embedded_settings: Settings, monkeypatch: pytest.MonkeyPatch, failure: type[BaseException], said: str
) -> None:
    async def failing(*_: object) -> None:
        raise failure

    monkeypatch.setattr(Batches, "seek_wait", failing)
    with pytest.raises(Unavailable, match=f"{said} {embedded_settings.bootstrap}"):
        AssemblerService(embedded_settings).run(threading.Event())


@pytest.mark.kafka
@pytest.mark.parametrize("part", [AssemblerService, ControllerService])
def test_a_group_that_does_not_take_its_member_stops_the_part(
    kafka_settings: Settings, part: type[AssemblerService] | type[ControllerService]
) -> None:
    # neither client takes this for the end of its work: they would stand still, and tell nobody
    settings = kafka_settings.model_copy(update={"session_timeout_s": 0.1})
    with pytest.raises(ConfigError, match=r"refuses consumer (\w+) on group \w+-\1: .*`session_timeout_s`"):
        part(settings).run(threading.Event())


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
@pytest.mark.parametrize("task", ["_fetcher._fetch_task", "_coordinator._coordination_task"])
def test_a_consumer_whose_work_has_ended_stops_the_assembler(embedded_settings: Settings, task: str) -> None:
    service, stop = AssemblerService(embedded_settings), threading.Event()
    with ThreadPoolExecutor(1) as pool:
        done = pool.submit(service.run, stop)
        try:
            until(lambda: service.app is not None and service.app.is_ready, "the assembler to be ready")
            assert service.app is not None
            loop, work = attrgetter("_thread.thread_loop", f"_thread._consumer.{task}")(service.app.consumer)
            loop.call_soon_threadsafe(work.cancel)
            with pytest.raises(Unavailable, match="ceased to work"):
                done.result(GONE_WITHIN_S)
        finally:
            stop.set()
