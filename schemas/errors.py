"""Every error spanloop raises on purpose, and why a record is refused.

SpanloopError
├── InvalidRecord            the record is at fault: dead letter, go on
│   ├── UnknownSchemaId      the registry does not know the id
│   └── ConflictingResource  (name, version) exists with other content
├── MissingKey               a keyed topic got a null key
├── RecordTooLarge           over the topic's limit, found before it was enqueued
├── SchemaMismatch           a schema breaks the topic's compatibility
├── BackPressure             the local queue stayed full: slow down
├── DeliveryFailed           the broker did not acknowledge
│   └── NotAllowed           it does not let this user write there; a ConfigError as well
├── Unavailable              a service cannot be reached: pause and retry
├── DataLost                 records were gone before they were read
├── InvalidKey               a key that this secret did not sign
├── Fenced                   another member has taken this one's place
├── TooManyDeadLetters       a bad deploy rather than bad records
├── NoLiveEngine             no engine serves weights fresh enough to train on
├── InvalidQuery             ClickHouse refused a query
└── ConfigError              a setting is missing or contradicts another
"""

from __future__ import annotations

from typing import Literal, get_args

Reason = Literal[
    "bad_framing",  # no Confluent magic byte, or shorter than its header
    "unknown_schema_id",  # the registry does not know the id
    "undecodable",  # the body does not fit its schema, or that is no Avro record's
    "missing_key",  # a null key on a keyed topic
    "nonfinite_reward",  # NaN or infinity as a reward
    "reward_out_of_range",  # a reward past ±1e30, which sums would turn into infinity
    "bad_packing",  # packed ids, masks or log-probs whose lengths contradict each other
    "conflicting_resource",  # same name and version, other content
    "insert_rejected",  # ClickHouse refused this record
    "too_large",  # over a limit of the consumer
    "unsupported",  # decodable, but not what this topic carries
    "unknown_attempt",  # a call for an attempt that is not live: kept out of every rollout
    "replayed",  # no refusal: a note in dead-letters that another letter was put back
]
REASONS: tuple[Reason, ...] = get_args(Reason)


class SpanloopError(Exception):
    """Base of all errors raised on purpose."""


class InvalidRecord(SpanloopError, ValueError):
    """The record itself is at fault; its consumer writes a dead letter with `reason` and goes on."""

    def __init__(self, reason: Reason, message: str) -> None:
        super().__init__(reason, message)
        self.reason: Reason = reason
        self.message = message

    def __str__(self) -> str:
        return f"{self.reason}: {self.message}"


class UnknownSchemaId(InvalidRecord):
    """The registry was reached and does not know the schema id."""

    def __init__(self, schema_id: int | str) -> None:
        super().__init__("unknown_schema_id", f"the registry does not know schema id {schema_id}")
        self.schema_id = schema_id

    def __reduce__(self) -> tuple[type[UnknownSchemaId], tuple[int | str]]:
        return (UnknownSchemaId, (self.schema_id,))


class ConflictingResource(InvalidRecord):
    """A resource's (name, version) is taken by other content."""

    def __init__(self, message: str) -> None:
        super().__init__("conflicting_resource", message)

    def __reduce__(self) -> tuple[type[ConflictingResource], tuple[str]]:
        return (ConflictingResource, (self.message,))


class MissingKey(SpanloopError, ValueError):
    """A record for a keyed topic has no key."""


class RecordTooLarge(SpanloopError, ValueError):
    """A record is over its topic's limit; found before it was enqueued."""


class SchemaMismatch(SpanloopError, ValueError):
    """A schema is not compatible with what its subject holds."""


class BackPressure(SpanloopError, TimeoutError):
    """The local queue stayed full for as long as the caller allowed."""


class DeliveryFailed(SpanloopError, ConnectionError):
    """The broker did not acknowledge a record."""


class Unavailable(SpanloopError, ConnectionError):
    """A service cannot be reached."""


class DataLost(SpanloopError, LookupError):
    """Records were removed before this consumer read them."""


class InvalidKey(SpanloopError, PermissionError):
    """A gateway key is malformed or was signed with another secret."""


class Fenced(SpanloopError, RuntimeError):
    """Another member has taken this one's place."""


class TooManyDeadLetters(SpanloopError, RuntimeError):
    """More records in a row were refused than the limit allows."""


class NoLiveEngine(SpanloopError, RuntimeError):
    """No engine serves weights fresh enough for its tokens to be trained on."""


class InvalidQuery(SpanloopError, ValueError):
    """ClickHouse refused a query that a person or a program asked."""


class ConfigError(SpanloopError, ValueError):
    """A setting is missing or contradicts another."""


class NotAllowed(DeliveryFailed, ConfigError):
    """The broker does not let this user write there."""
