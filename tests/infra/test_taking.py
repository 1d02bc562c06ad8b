from __future__ import annotations

import asyncio
import threading
from dataclasses import dataclass, field

import pytest

from spanloop.infra.message import Message
from spanloop.infra.taking import Taking
from spanloop.schemas.errors import InvalidRecord, Unavailable
from spanloop.schemas.records import Task
from spanloop.schemas.serde import Decoder, Encoder, LocalSchemas, local_ids
from spanloop.schemas.topics import Record

GOOD = Encoder(local_ids()).encode(Task("ro-1", "run-1"))
UNKNOWN = b"\0\0\0\x03\xe7" + GOOD[5:]


@dataclass
class Lookup:
    """A registry that is away for the first `outage` questions; then `stop` may be set, as a signal would."""

    outage: int = 0
    asked: int = 0
    stops: threading.Event | None = None

    def schema(self, schema_id: int | str) -> str:
        self.asked += 1
        if self.asked <= self.outage:
            if self.stops is not None:
                self.stops.set()
            raise Unavailable("registry:8081 cannot be reached")
        return LocalSchemas().schema(schema_id)


@dataclass
class Letters:
    """A quarantine that only remembers."""

    reasons: list[str] = field(default_factory=list[str])
    taken: int = 0

    def put(self, message: Message, error: InvalidRecord) -> None:
        self.reasons.append(f"{message.offset} {error.reason}")

    def good(self) -> None:
        self.taken += 1


def message(value: bytes | None = GOOD, offset: int = 7) -> Message:
    return Message("tasks", 0, offset, b"ro-1", value)


def taking(lookup: Lookup, letters: Letters | None, stop: threading.Event | None = None) -> Taking:
    return Taking(Decoder(lookup), letters, stop or threading.Event())  # pyright: ignore[reportArgumentType]  # Letters stands in for a Quarantine


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("spanloop.infra.taking.RETRY_S", 0.001)


def test_a_record_waits_while_its_schema_cannot_be_looked_up(caplog: pytest.LogCaptureFixture) -> None:
    lookup, letters = Lookup(outage=5), Letters()
    assert taking(lookup, letters).record(message()) == Task("ro-1", "run-1")
    assert (lookup.asked, letters.reasons, letters.taken) == (6, [], 1)
    assert [r.message for r in caplog.records] == [
        "tasks[0] waits at offset 7: registry:8081 cannot be reached",
        "goes on",
    ]


def test_an_id_met_before_needs_no_registry() -> None:
    lookup = Lookup()
    reading = taking(lookup, Letters())
    assert reading.record(message()) is not None
    lookup.outage = 1_000_000
    assert reading.record(message()) is not None
    assert lookup.asked == 1


def test_an_id_that_the_registry_does_not_know_is_quarantined_also_after_an_outage() -> None:
    letters = Letters()
    reading = taking(Lookup(outage=3), letters)
    assert reading.record(message(UNKNOWN, 1)) is None
    assert reading.record(message(b"{}", 2)) is None
    assert letters.reasons == ["1 unknown_schema_id", "2 bad_framing"]


def test_what_a_check_refuses_is_quarantined_and_not_counted_as_good() -> None:
    def refuse(record: Record) -> None:
        raise InvalidRecord("unsupported", f"no {type(record).__name__} here")

    letters = Letters()
    assert taking(Lookup(), letters).record(message(), refuse) is None
    assert (letters.reasons, letters.taken) == (["7 unsupported"], 0)


def test_a_tombstone_is_nothing() -> None:
    letters = Letters()
    assert taking(Lookup(), letters).record(message(None)) is None
    assert letters == Letters()


def test_a_stop_ends_the_wait_and_is_told_from_a_bad_record() -> None:
    stop = threading.Event()
    reading = taking(Lookup(outage=1_000_000, stops=stop), Letters(), stop)
    assert reading.record(message()) is None
    assert reading.gave_up


def test_reading_again_passes_bad_records_over() -> None:
    reading = taking(Lookup(), None)
    assert reading.record(message(UNKNOWN)) is None
    assert reading.record(message()) is not None
    assert not reading.gave_up


def test_asking_once_leaves_the_wait_to_the_caller() -> None:
    reading = taking(Lookup(outage=1), Letters())
    with pytest.raises(Unavailable, match="registry:8081"):
        reading.once(message())
    assert reading.once(message()) is not None


def test_a_registry_that_hangs_does_not_hold_up_the_event_loop() -> None:
    let_go = threading.Event()
    judged_in: list[threading.Thread] = []

    class Hanging(Lookup):
        def schema(self, schema_id: int | str) -> str:
            assert let_go.wait(10), "the event loop is held up"
            return super().schema(schema_id)

    async def read_two() -> None:
        reading = taking(Hanging(), Letters())
        first = asyncio.create_task(reading.record_async(message()))
        asyncio.get_running_loop().call_later(0.01, let_go.set)
        assert await first == Task("ro-1", "run-1")
        await reading.record_async(message(), lambda _: judged_in.append(threading.current_thread()))

    asyncio.run(read_two())
    assert judged_in == [threading.current_thread()]  # an id met before costs no thread


def test_an_event_loop_waits_the_same_way() -> None:
    lookup, letters = Lookup(outage=5), Letters()
    reading = taking(lookup, letters)
    assert asyncio.run(reading.record_async(message())) == Task("ro-1", "run-1")
    assert asyncio.run(reading.record_async(message(UNKNOWN))) is None
    assert letters.reasons == ["7 unknown_schema_id"]


def test_who_tries_again_waits_between_tries_and_hears_of_an_outage_once(caplog: pytest.LogCaptureFixture) -> None:
    @dataclass
    class Waits(threading.Event):
        seconds: list[float | None] = field(default_factory=list[float | None])

        def __post_init__(self) -> None:
            super().__init__()

        def wait(self, timeout: float | None = None) -> bool:
            self.seconds.append(timeout)
            return False

    stop = Waits()
    reading = taking(Lookup(outage=3), Letters(), stop)
    for _ in range(3):
        with pytest.raises(Unavailable):
            reading.within(message(), 0.05)
    assert reading.within(message(), 0.05) == Task("ro-1", "run-1")
    assert stop.seconds == [0.05, 0.05, 0.05]
    assert [r.message for r in caplog.records] == [
        "tasks[0] waits at offset 7: registry:8081 cannot be reached",
        "goes on",
    ]
