"""What the SDK's and the worker's tests share: a producer in memory, a spool on it, waiting for a condition."""

from __future__ import annotations

import json
from collections.abc import Callable, Generator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from waiting import until

from spanloop.infra.clock import ManualClock
from spanloop.infra.producer import Ack
from spanloop.producers.attempts import Attempts
from spanloop.producers.held import Links
from spanloop.producers.resources import Resources
from spanloop.producers.slots import Slots, local_slots
from spanloop.producers.spool import Spool
from spanloop.schemas.errors import BackPressure, DeliveryFailed
from spanloop.schemas.records import Assignment, AttemptEnd, Limits, Reward, Span, SpanBatch, Task

OnDelivery = Callable[[DeliveryFailed | None, Ack | None], None]


@dataclass
class FakeSender:
    """A `spool.Sender` that keeps what it gets; with `hold` it acknowledges nothing until `release`."""

    records: list[SpanBatch | Reward] = field(default_factory=list[SpanBatch | Reward])
    held: list[OnDelivery] = field(default_factory=list[OnDelivery])
    hold: bool = False
    full: bool = False
    fail: bool = False

    def send(self, record: SpanBatch | Reward, *, on_delivery: OnDelivery | None = None) -> None:
        if self.full:
            raise BackPressure("full")
        self.records.append(record)
        assert on_delivery is not None
        if self.hold:
            self.held.append(on_delivery)
        else:
            self._settle(on_delivery)

    def release(self) -> None:
        self.hold = False
        while self.held:
            self._settle(self.held.pop(0))

    def _settle(self, on_delivery: OnDelivery) -> None:
        if self.fail:
            on_delivery(DeliveryFailed("lost"), None)
        else:
            on_delivery(None, Ack(0, len(self.records)))

    @property
    def batches(self) -> list[SpanBatch]:
        return [r for r in self.records if isinstance(r, SpanBatch)]

    @property
    def rewards(self) -> list[Reward]:
        return [r for r in self.records if isinstance(r, Reward)]

    @property
    def spans(self) -> list[Span]:
        return [span for batch in self.batches for span in batch.spans]

    def end_of(self, attempt_id: str) -> SpanBatch | None:
        return next((b for b in self.batches if b.attempt_id == attempt_id and b.end is not None), None)


@contextmanager
def spool_of(
    sender: FakeSender, *, linger_s: float = 0.05, max_pending: int = 100_000, max_block_s: float = 5.0
) -> Generator[Spool]:
    """A spool that is closed behind the block."""
    spool = Spool(sender, producer_id="p", linger_s=linger_s, max_pending=max_pending, max_block_s=max_block_s)
    try:
        yield spool
    finally:
        spool.close(1.0)


class Bench:
    """Attempts on a spool in memory, with a clock that stands still."""

    def __init__(self, sender: FakeSender, attempts: Attempts, clock: ManualClock, resources: Resources) -> None:
        self.sender, self.attempts, self.clock, self.resources = sender, attempts, clock, resources

    def accept(
        self, n: int, *, age_s: float = 0.0, task_input: object = None, pins: Any = None, unresponsive_s: float = 60.0
    ) -> None:
        limits = Limits(timeout_s=10.0, unresponsive_s=unresponsive_s)
        task = Task(f"ro-{n}", "run-1", input=json.dumps(task_input), limits=limits)
        assignment = Assignment("wo-1", f"at-{n}", task=task, claim_s=30.0, pins=pins or {})
        self.attempts.accept(assignment, task, age_s)

    def end(self, n: int) -> AttemptEnd:
        until(lambda: self.sender.end_of(f"at-{n}"))
        batch = self.sender.end_of(f"at-{n}")
        assert batch is not None
        assert batch.end is not None
        return batch.end


@contextmanager
def bench(agent: Any, *, slots: int = 2, places: Slots | None = None) -> Generator[Bench]:
    """`places`: where agents run, by default in this process."""
    sender, clock, resources = FakeSender(), ManualClock(), Resources()
    with spool_of(sender, linger_s=0.005) as spool:
        attempts = Attempts(
            places or local_slots(agent),
            spool,
            resources,
            Links("http://g", lambda rollout_id, attempt_id: f"{rollout_id}/{attempt_id}"),
            count=slots,
            clock=clock,
            changed=lambda: None,
        )
        yield Bench(sender, attempts, clock, resources)
        attempts.hand_back("the test is over")
        attempts.close(5.0)
