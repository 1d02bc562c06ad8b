"""A trainer's and a loader's connections, told to stop while nothing answers: none holds its process for long."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import ClassVar, cast

import pytest
from in_thread import in_thread
from waiting import GONE_WITHIN_S, until

from spanloop.infra.clock import ManualClock
from spanloop.infra.kafka import Message, Position
from spanloop.infra.producer import Ack, OnDelivery, Producer
from spanloop.infra.registry import Registry
from spanloop.infra.settings import Settings
from spanloop.infra.taking import Taking
from spanloop.schemas.errors import Unavailable
from spanloop.schemas.records import Batch, Trajectory
from spanloop.schemas.serde import Decoder
from spanloop.schemas.topics import Record
from spanloop.trainer import loader
from spanloop.trainer.feed import MARK_S, Feed, KafkaFeed, Marker
from spanloop.trainer.journal import KafkaJournal
from spanloop.trainer.loader import LoaderService
from spanloop.trainer.stoppable import TURN_S, StoppableReader

Make = Callable[..., Trajectory]
RESOURCES: Position = ("resources", 0)
NOBODY = "127.0.0.1:1"
HOUR_S = 3600.0


class Silent:
    """A producer whose records are never acknowledged."""

    def __init__(self) -> None:
        self.asked, self.freed = threading.Event(), threading.Event()

    def send_wait(self, record: Record) -> Ack:
        del record
        self.asked.set()
        self.freed.wait()
        raise Unavailable("freed")

    def check(self) -> None:
        return


@pytest.fixture
def registry_client(embedded_settings: Settings) -> Iterator[Registry]:
    with closing(Registry(embedded_settings.registry_url)) as made:
        yield made


def journal(settings: Settings, registry: Registry, stop: threading.Event, silent: Silent) -> KafkaJournal:
    taking = Taking(Decoder(registry), None, stop)
    return KafkaJournal(settings, "policy", cast("Producer", silent), taking, Hurried())


class Hurried(ManualClock):
    """Half a second goes by whenever it is looked at."""

    def steady_s(self) -> float:
        self.advance(0.5)
        return super().steady_s()


class Asking:
    """A part that asks a broker which is not there, for an hour if need be."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.asks = threading.Event()

    def run(self, stop: threading.Event) -> None:
        with closing(StoppableReader(self.settings, "test", stop)) as reader:
            self.asks.set()
            with pytest.raises(Unavailable, match=r"resources\[0\] on 127\.0\.0\.1:1"):
                reader.watermarks(RESOURCES, HOUR_S)


def test_a_question_to_a_broker_that_is_away_is_given_up_once_told_to_stop(tmp_path: Path) -> None:
    part = Asking(Settings(bootstrap=NOBODY, home=tmp_path))
    with in_thread(part, GONE_WITHIN_S):
        until(part.asks.is_set, "the question")


def test_a_question_is_asked_again_until_its_time_is_over(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    clock, turns = ManualClock(), list[float]()

    def silent(self: StoppableReader, position: Position, timeout_s: float) -> tuple[int, int]:
        del self, position
        turns.append(timeout_s)
        clock.advance(timeout_s)
        raise Unavailable("no answer")

    monkeypatch.setattr("spanloop.infra.kafka.Reader.watermarks", silent)
    reader = StoppableReader(Settings(bootstrap=NOBODY, home=tmp_path), "test", threading.Event(), clock)
    with closing(reader), pytest.raises(Unavailable, match="no answer"):
        reader.watermarks(RESOURCES, 2 * TURN_S + 0.5)
    assert turns == [TURN_S, TURN_S, 0.5]


def test_an_answer_that_refuses_is_believed_at_once(embedded_settings: Settings) -> None:
    reader = StoppableReader(embedded_settings, "test", threading.Event())
    with closing(reader), pytest.raises(Unavailable, match="no-such-topic"):
        reader.watermarks(("no-such-topic", 0), HOUR_S)


def test_versions_that_do_not_come_are_not_waited_for_long_once_told_to_stop(
    embedded_settings: Settings, registry_client: Registry, monkeypatch: pytest.MonkeyPatch
) -> None:
    def further_on(self: StoppableReader, position: Position) -> tuple[int, int]:
        del self, position
        return 0, 9

    stop = threading.Event()
    with closing(journal(embedded_settings, registry_client, stop, Silent())) as made:
        monkeypatch.setattr(StoppableReader, "watermarks", further_on)
        stop.set()
        with pytest.raises(Unavailable, match="to the end within 2 s after it was told to stop"):
            made.refresh(to_end=True)


def test_an_end_is_reached_though_heartbeats_never_cease(
    embedded_settings: Settings, registry_client: Registry, monkeypatch: pytest.MonkeyPatch
) -> None:
    def busy(self: StoppableReader, max_records: int = 0, timeout_s: float = 0.0) -> list[Message]:
        del self, max_records, timeout_s
        return [Message("workers", 0, 0, b"wo-1", None, None)]

    with closing(journal(embedded_settings, registry_client, threading.Event(), Silent())) as made:
        monkeypatch.setattr(StoppableReader, "poll", busy)
        made.refresh(to_end=True)


def test_a_record_that_is_not_acknowledged_is_given_up_once_told_to_stop(
    embedded_settings: Settings, registry_client: Registry
) -> None:
    silent = Silent()

    class Writing:
        def run(self, stop: threading.Event) -> None:
            with (
                closing(journal(embedded_settings, registry_client, stop, silent)) as made,
                pytest.raises(Unavailable, match="writing a Batch goes on"),
            ):
                made.write(Batch("tr", 1, 0))

    try:
        with in_thread(Writing(), GONE_WITHIN_S):
            until(silent.asked.is_set, "the record")
    finally:
        silent.freed.set()


class Noted(threading.Event):
    """How long it was waited for."""

    def __init__(self) -> None:
        super().__init__()
        self.seconds: list[float | None] = []

    def wait(self, timeout: float | None = None) -> bool:
        self.seconds.append(timeout)
        return False


class NoRegistry:
    """A lookup that nobody answers."""

    def schema(self, schema_id: int | str) -> str:
        raise Unavailable(f"schema {schema_id} cannot be looked up")


def test_a_feed_waits_for_the_registry_and_tells_it_once(
    embedded_settings: Settings, make_trajectory: Make, caplog: pytest.LogCaptureFixture
) -> None:
    with closing(Producer(embedded_settings, "test")) as producer:
        producer.send_wait(make_trajectory(1.0))
    stop = Noted()
    feed = KafkaFeed(embedded_settings, "run", Taking(Decoder(NoRegistry()), None, stop))
    with closing(feed):
        feed.start(None)
        until(lambda: feed.poll(0.05) or len(stop.seconds) > 3, "some tries")
        feed.mark()
        assert not feed.reached()
    assert set(stop.seconds) == {0.05}
    (told,) = (r.getMessage() for r in caplog.records if r.levelname == "WARNING")
    assert "cannot be looked up" in told


def test_an_end_that_no_broker_tells_is_asked_for_shortly_and_told_once(caplog: pytest.LogCaptureFixture) -> None:
    limits: list[float] = []

    class Away:
        def mark(self, timeout_s: float) -> None:
            limits.append(timeout_s)
            if len(limits) < 4:
                raise Unavailable("no broker")

    marker = Marker(cast("Feed", Away()))
    assert [marker.marked() for _ in range(5)] == [False, False, False, True, True]
    assert set(limits) == {MARK_S}
    assert [r.getMessage() for r in caplog.records] == ["groups that are due wait: no broker", "goes on"]


class Stuck(Producer):
    """Its heartbeats never come back, and it notes how it is closed."""

    closed: ClassVar[list[float]]
    beats: ClassVar[threading.Event]
    freed: ClassVar[threading.Event]

    def send(self, record: Record, *, partition: int | None = None, on_delivery: OnDelivery | None = None) -> None:
        if threading.current_thread().name.endswith("-beats"):
            self.beats.set()
            self.freed.wait()
        super().send(record, partition=partition, on_delivery=on_delivery)

    def close(self, timeout_s: float = HOUR_S) -> None:
        self.closed.append(timeout_s)
        super().close(timeout_s)


def test_a_loader_told_to_stop_gives_its_heartbeat_and_its_records_little_time(
    embedded_settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    Stuck.closed, Stuck.beats, Stuck.freed = [], threading.Event(), threading.Event()
    monkeypatch.setattr(loader, "Producer", Stuck)
    try:
        with in_thread(LoaderService(embedded_settings, f"http://{NOBODY}", "policy"), GONE_WITHIN_S):
            until(Stuck.beats.is_set, "a heartbeat")
            (beating,) = (t for t in threading.enumerate() if t.name.endswith("-beats"))
            assert beating.daemon
    finally:
        Stuck.freed.set()
    assert Stuck.closed == [loader.LEAVE_S]
