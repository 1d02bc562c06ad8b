"""What may be committed behind the broker's acknowledgements: nothing while one of them is owed, or was refused."""

from __future__ import annotations

import asyncio
from contextlib import closing
from dataclasses import dataclass, field
from typing import cast

import pytest

from spanloop.infra.producer import Ack, OnDelivery, Producer
from spanloop.schemas.errors import DeliveryFailed, RecordTooLarge
from spanloop.schemas.records import Assembly, Attempt
from spanloop.streams.acks import Outbox

FIRST, SECOND = Attempt("ro-1", "at-1", "ended"), Attempt("ro-2", "at-2", "ended")
ASSEMBLY = Assembly("at-1", "ro-1", 1, "digest")
# A wait that must go on is given up after this; one that need not returns at once.
SHORT_S = 0.1


@dataclass
class Broker:
    """A producer that acknowledges a record when told to."""

    sent: list[object] = field(default_factory=list[object])
    owed: list[OnDelivery] = field(default_factory=list[OnDelivery])

    def send(self, record: Attempt | Assembly, *, partition: int | None, on_delivery: OnDelivery) -> None:
        del partition
        if isinstance(record, Attempt) and record.reason == "long":
            raise RecordTooLarge("a long reason")
        self.sent.append(record)
        self.owed.append(on_delivery)

    def answer(self, failure: DeliveryFailed | None = None) -> None:
        """Tells of the oldest record that it is there, or failed."""
        self.owed.pop(0)(failure, Ack(0, 0) if failure is None else None)

    def close(self) -> None:
        """Lets every wait end."""
        while self.owed:
            self.answer()


def outbox(broker: Broker) -> Outbox:
    return Outbox(cast("Producer", broker))


def test_a_wait_that_was_given_up_holds_back_those_that_follow() -> None:
    async def play() -> None:
        with closing(Broker()) as broker:
            box = outbox(broker)
            box.send(FIRST)
            box.remember(ASSEMBLY, 0)
            for _ in range(2):
                with pytest.raises(asyncio.TimeoutError):
                    await asyncio.wait_for(box.settle(), SHORT_S)
            assert broker.sent == [FIRST]
            broker.answer()
            settled = asyncio.ensure_future(box.settle())
            while ASSEMBLY not in broker.sent:
                await asyncio.sleep(0)
            broker.answer()
            await settled

    asyncio.run(play())


def test_a_record_that_failed_fails_every_later_wait() -> None:
    async def play() -> None:
        broker = Broker()
        box = outbox(broker)
        box.send(FIRST)
        broker.answer(DeliveryFailed("lost"))
        for _ in range(2):
            with pytest.raises(DeliveryFailed, match="lost"):
                await box.settle()
            box.send(SECOND)
            broker.answer()

    asyncio.run(play())


def test_the_first_version_that_is_not_too_large_is_sent() -> None:
    broker = Broker()
    box = outbox(broker)
    long = Attempt("ro-1", "at-1", "ended", reason="long")
    box.send_first((long, FIRST, SECOND))
    box.send_first((long,))
    assert broker.sent == [FIRST]
