"""A record as it lies in the log, and where."""

from __future__ import annotations

from dataclasses import dataclass

from ..schemas.serde import Headers

Position = tuple[str, int]  # (topic without prefix, partition)


@dataclass(frozen=True, slots=True)
class Message:
    """One record as it lay in the log; value None = tombstone."""

    topic: str
    partition: int
    offset: int
    key: bytes | None
    value: bytes | None
    headers: Headers = None
    timestamp_ms: int = 0
