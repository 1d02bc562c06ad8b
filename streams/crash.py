"""What it means that the assembler's app crashed, or did not start."""

from __future__ import annotations

import asyncio

from confluent_kafka import KafkaError as Refusal

from ..infra.kafka import lost
from ..infra.kafka_config import denied
from ..infra.settings import Settings
from ..schemas.errors import SpanloopError, Unavailable
from .faust_types import BrokerResponseError, KafkaError, NoOffsetForPartitionError, OffsetOutOfRangeError
from .first_offsets import has_lost_offsets


def meaning(settings: Settings, group: str, reason: BaseException) -> SpanloopError | None:
    """DataLost, Unavailable or ConfigError where records, offsets or the broker are gone, or it refuses; else None.

    Raises Unavailable and ConfigError as `has_lost_offsets` does.
    """
    if isinstance(reason, OffsetOutOfRangeError):
        return lost(settings, f"consumer {group}: {reason}")
    if isinstance(reason, NoOffsetForPartitionError):
        return _without_offset(settings, group, reason)
    if isinstance(reason, asyncio.CancelledError):
        return Unavailable(f"the {group}'s consumer was cut off from {settings.bootstrap}")
    # the client wraps much of what passes in an error of no kind
    if isinstance(reason, KafkaError) and (reason.retriable or type(reason) is KafkaError):
        return Unavailable(f"the {group}'s consumer cannot go on with {settings.bootstrap}: {reason}")
    if isinstance(reason, BrokerResponseError):
        return denied(settings, Refusal(reason.errno), group)
    return None


def _without_offset(settings: Settings, group: str, reason: NoOffsetForPartitionError) -> SpanloopError:
    """A consumer was refused its offset: it is lost, or the coordinator stood still while it was asked."""
    if has_lost_offsets(settings, group):
        return lost(settings, f"consumer {group}: {reason}")
    return Unavailable(
        f"the coordinator of group {group} did not tell its offsets in time, and has them: {reason}; nothing is "
        "lost, start again"
    )
