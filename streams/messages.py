"""What goes into the assembler, what comes out, and its policy."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from ..schemas.errors import InvalidRecord
from ..schemas.records import Assembly, Attempt, Reward, SpanBatch, Trajectory
from .assembly import AssemblyRules
from .attempt import OpenAttempt

Source = Literal["spans", "rewards"]
Bound = Literal["events", "bytes", "open", "total_bytes"]  # the field max_... of the policy
SOURCES: tuple[Source, ...] = ("spans", "rewards")


@dataclass(frozen=True, slots=True)
class Policy:
    """When an attempt is closed, and how much is held. Seconds, bytes."""

    grace_s: float = 2.0  # after an end marker whose counts are not met or whose tree has holes
    revision_s: float = 0.1  # a complete revision of a large attempt waits for what comes with it: each costs all of it
    revised_at_once: int = 100  # spans and rewards up to which an attempt is no large one
    idle_s: float = 600.0  # without any event, for attempts that have spans and neither begin nor end marker
    absolute_s: float = 86_400.0  # after the first event, whatever comes
    hold_s: float = 30.0  # an emitted attempt's events stay in memory, so that a late one need not be read for
    max_events: int = 20_000  # spans and rewards of one attempt
    max_bytes: int = 128 << 20  # of one attempt
    max_open: int = 20_000  # attempts in memory
    max_floating: int = 100_000  # rewards that wait for their rollout's final attempt, per partition
    max_total_bytes: int = 1 << 30  # of all attempts in memory
    max_remembered: int = 1_000_000  # emitted attempts whose offsets are kept, per partition
    rules: AssemblyRules = field(default_factory=AssemblyRules)


@dataclass(frozen=True, slots=True)
class Message:
    """A decoded record and where it was; record None = a tombstone, or one that was quarantined."""

    topic: Source
    partition: int
    offset: int
    record: SpanBatch | Reward | None


@dataclass(frozen=True, slots=True)
class Emitted:
    """A trajectory, and the assembly to be written to `partition` once the trajectory is acknowledged."""

    partition: int
    trajectory: Trajectory
    assembly: Assembly
    bound: Bound | None = None  # the bound that closed it


@dataclass(frozen=True, slots=True)
class Refused:
    """A record that is to become a dead letter."""

    message: Message
    error: InvalidRecord


@dataclass(frozen=True, slots=True)
class Reread:
    """Wish for the events of an emitted attempt, from these offsets to the present position; None = none there."""

    partition: int
    rollout_id: str
    attempt_id: str
    spans_offset: int | None
    rewards_offset: int | None
    number: int  # from 1, never used again: an attempt that was forgotten and opened anew has another


@dataclass(frozen=True, slots=True)
class Late:
    """Events that came too late to be put into a trajectory; the sink has them."""

    rollout_id: str
    attempt_id: str | None
    reason: str
    events: int = 1


Output = Emitted | Attempt | Refused | Reread | Late


def running(batch: SpanBatch, now_ns: int) -> Attempt:
    """The event that an attempt has begun."""
    return Attempt(batch.rollout_id, batch.attempt_id, "running", worker_id=batch.producer_id, at_ns=now_ns)


def ended(attempt: OpenAttempt, now_ns: int) -> Attempt:
    """The event that an attempt is over, by its first end marker."""
    assert attempt.end is not None
    end = attempt.end.end
    return Attempt(
        rollout_id=attempt.rollout_id,
        attempt_id=attempt.attempt_id,
        status="ended",
        attempt_number=end.context.attempt_number,
        outcome=end.status,
        failure_class=end.failure_class,
        error_type=end.error_type,
        final=end.final,
        mode=end.context.mode,
        pins=end.context.pins,
        worker_id=end.context.worker_id,
        reason=end.reason,
        at_ns=now_ns,
        span_count=end.span_count,
    )
