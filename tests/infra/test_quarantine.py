from __future__ import annotations

import hashlib
from collections.abc import Iterator

import pytest

from spanloop.infra.clock import ManualClock
from spanloop.infra.kafka import Message, Reader
from spanloop.infra.producer import Producer
from spanloop.infra.quarantine import Quarantine, is_cut
from spanloop.infra.registry import Registry
from spanloop.infra.settings import Settings
from spanloop.schemas.errors import InvalidRecord, TooManyDeadLetters
from spanloop.schemas.records import DeadLetter
from spanloop.schemas.serde import Decoder
from spanloop.schemas.topics import DEAD_LETTERS

BAD = InvalidRecord("bad_framing", "expected byte 0")


@pytest.fixture
def producer(embedded_settings: Settings) -> Iterator[Producer]:
    made = Producer(embedded_settings, "test")
    yield made
    made.close()


def message(offset: int, value: bytes | None = b"\x93\x00\x7f") -> Message:
    return Message("spans", 3, offset, b"ro-1", value)


def letters(settings: Settings) -> list[DeadLetter]:
    registry = Registry(settings.registry_url)
    reader = Reader(settings, "test")
    reader.assign_topics([DEAD_LETTERS])
    ends, found = reader.ends(), list[Message]()
    while not reader.reached(ends):
        found += reader.poll()
    out = [Decoder(registry).decode(DeadLetter, m.value or b"") for m in found]
    reader.close()
    registry.close()
    return out


def test_a_dead_letter_says_where_the_record_was_why_and_its_bytes(
    embedded_settings: Settings, producer: Producer
) -> None:
    clock = ManualClock()
    Quarantine(producer, "sink", 100, clock).put(message(500), BAD)
    assert letters(embedded_settings) == [
        DeadLetter(
            consumer="sink", topic="spans", partition=3, offset=500, reason="bad_framing", key=b"ro-1",
            raw=b"\x93\x00\x7f", message="expected byte 0", at_ns=clock.now_ns(),
        )
    ]  # fmt: skip


def test_more_in_a_row_than_the_limit_stop_the_consumer_and_each_is_kept(
    embedded_settings: Settings, producer: Producer
) -> None:
    quarantine = Quarantine(producer, "sink", 2)
    quarantine.put(message(0), BAD)
    quarantine.put(message(1), BAD)
    with pytest.raises(TooManyDeadLetters, match=r"sink refused 3 records in a row, the last at spans\[3\]@2"):
        quarantine.put(message(2), BAD)
    assert [letter.offset for letter in letters(embedded_settings)] == [0, 1, 2]


def test_a_good_record_begins_the_count_anew(producer: Producer) -> None:
    quarantine = Quarantine(producer, "sink", 1)
    for offset in range(5):
        quarantine.put(message(offset), BAD)
        quarantine.good()
    assert quarantine.count == 5


def test_a_limit_of_zero_stops_at_the_first(producer: Producer) -> None:
    with pytest.raises(TooManyDeadLetters):
        Quarantine(producer, "sink", 0).put(message(0), BAD)


def test_a_record_as_large_as_a_topic_allows_fits_its_dead_letter(
    embedded_settings: Settings, producer: Producer
) -> None:
    Quarantine(producer, "sink", 1).put(message(0, b"\xff" * (16 << 20)), BAD)
    (letter,) = letters(embedded_settings)
    assert len(letter.raw or b"") == 16 << 20


def test_of_a_record_that_no_letter_can_hold_the_first_bytes_are_kept_with_its_length_and_digest(
    embedded_settings: Settings, producer: Producer
) -> None:
    large, error = b"\x93" + b"x" * (30 << 20), InvalidRecord("bad_framing", "expected byte 0" + "!" * 20_000)
    quarantine = Quarantine(producer, "sink", 3)
    quarantine.put(message(0, large), error)
    quarantine.put(Message("spans", 3, 1, large, None), BAD)
    quarantine.put(message(2), BAD)
    value, key, whole = letters(embedded_settings)
    assert (value.key, value.raw) == (b"ro-1", large[: 1 << 20])
    digest = hashlib.sha256(large).hexdigest()
    assert value.message.endswith(f"!; cut, of a key of 4 and a value of {len(large)} bytes with SHA-256 {digest}")
    assert len(value.message) < 11_000
    assert (key.key, key.raw) == (large[: 1 << 20], None)
    assert f"; cut, of a key of {len(large)} and a value of 0 bytes" in key.message
    assert [is_cut(letter) for letter in (value, key, whole)] == [True, True, False]
