"""Settings of every Kafka client, names with and without the prefix, and how a client's errors become ours."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from typing import Any, Literal, TypeVar, cast

from confluent_kafka import Consumer, KafkaError, KafkaException, TopicPartition
from confluent_kafka.admin import AdminClient

from ..schemas.errors import ConfigError, DataLost, Fenced, NotAllowed, SpanloopError, Unavailable
from ..schemas.topics import DEAD_LETTER_MAX_BYTES, TOPICS, Topic
from .settings import Settings

log = logging.getLogger(__name__)
C = TypeVar("C")

FETCH_MAX_BYTES = 2 * DEAD_LETTER_MAX_BYTES
METADATA_TIMEOUT_S = 10.0
# A client without a broker fails several times a second; people need to hear of it now and then.
TROUBLE_EVERY_S = 30.0
Isolation = Literal["read_committed", "read_uncommitted"]
ClientConfig = dict[str, Any]  # librdkafka's names; values as confluent-kafka takes them, callbacks among them

LOST = frozenset({KafkaError._AUTO_OFFSET_RESET, KafkaError.OFFSET_OUT_OF_RANGE, KafkaError._NO_OFFSET})
MISSING = frozenset({KafkaError.UNKNOWN_TOPIC_OR_PART, KafkaError._UNKNOWN_TOPIC, KafkaError._UNKNOWN_PARTITION})
# A leader is being chosen, as for a topic just made; librdkafka does not wait for it where it is asked for offsets.
NO_LEADER = frozenset(
    {KafkaError.NOT_LEADER_FOR_PARTITION, KafkaError.LEADER_NOT_AVAILABLE, KafkaError.FENCED_LEADER_EPOCH}
)
LEADER_PAUSE_S = 0.1
# A group that does not take this member, however often it asks.
GROUP_REFUSED = frozenset({KafkaError.GROUP_AUTHORIZATION_FAILED, KafkaError.INVALID_SESSION_TIMEOUT})
REFUSED = GROUP_REFUSED | frozenset(
    {
        KafkaError.TOPIC_AUTHORIZATION_FAILED,
        KafkaError.CLUSTER_AUTHORIZATION_FAILED,
        KafkaError.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
        KafkaError.SASL_AUTHENTICATION_FAILED,
        KafkaError._AUTHENTICATION,
    }
)
FENCED = frozenset(
    {
        KafkaError._FENCED,
        KafkaError.FENCED_INSTANCE_ID,
        KafkaError.INVALID_PRODUCER_EPOCH,
        KafkaError.PRODUCER_FENCED,
    }
)
# The group went on without this member; it joins again by itself.
REBALANCED = frozenset(
    {
        KafkaError.ILLEGAL_GENERATION,
        KafkaError.REBALANCE_IN_PROGRESS,
        KafkaError.UNKNOWN_MEMBER_ID,
        KafkaError._ASSIGNMENT_LOST,
    }
)


class Trouble:
    """Logs what a client says of its connections, each kind once in a while."""

    def __init__(self, client: str) -> None:
        self._client = client
        self._told: dict[int, float] = {}
        self.refusal: KafkaError | None = None
        """The last word of a broker that does not let this client in."""

    def __call__(self, error: KafkaError) -> None:
        if error.code() in REFUSED:
            self.refusal = error
        now, code = time.monotonic(), error.code()
        if now - self._told.get(code, -TROUBLE_EVERY_S) >= TROUBLE_EVERY_S:
            self._told[code] = now
            log.warning("kafka client %s: %s", self._client, error.str())


def common_config(settings: Settings, client_id: str) -> ClientConfig:
    """What every client gets."""
    return {
        "bootstrap.servers": settings.bootstrap,
        "client.id": client_id,
        "reconnect.backoff.max.ms": 2000,
        "allow.auto.create.topics": False,
        "log_level": 2,  # connections that fail are told by error_cb, in measure
        "error_cb": Trouble(client_id),
        **settings.kafka,
    }


def consumer_config(settings: Settings, group: str, *, isolation: Isolation) -> ClientConfig:
    """A consumer that never skips: data lost to retention is an error, offsets are committed by hand."""
    return {
        **common_config(settings, group),
        "session.timeout.ms": int(settings.session_timeout_s * 1000),
        "heartbeat.interval.ms": int(settings.session_timeout_s * 1000 / 3),
        "fetch.message.max.bytes": FETCH_MAX_BYTES,
        "fetch.max.bytes": FETCH_MAX_BYTES,
        "receive.message.max.bytes": FETCH_MAX_BYTES + 1_000_000,
        "fetch.wait.max.ms": 50,
        "queued.max.messages.kbytes": 65536,
        **settings.kafka,
        # what the rest relies on is nobody's to change
        "group.id": f"{settings.prefix}-{group}",
        "enable.auto.commit": False,
        "enable.auto.offset.store": False,
        "auto.offset.reset": "error",
        "isolation.level": isolation,
        "partition.assignment.strategy": "range",
        # The only word of a position that has moved past records which are never handed out: transaction markers.
        "enable.partition.eof": True,
    }


def client_of(make: Callable[[ClientConfig], C], config: ClientConfig) -> C:
    """A client with these settings. Raises ConfigError where librdkafka takes them not."""
    try:
        return make(config)
    except KafkaException as error:
        reason = cast("KafkaError", error.args[0]).str()
        raise ConfigError(f"setting kafka: {reason} (SPANLOOP_KAFKA__…, or [kafka] in spanloop.toml)") from error


class Names:
    """Topic names with and without the prefix."""

    def __init__(self, prefix: str) -> None:
        self._short = {t.full(prefix): t.name for t in TOPICS.values()}
        self._full = {t.name: t.full(prefix) for t in TOPICS.values()}

    def short(self, full: str) -> str:
        """The name in TOPICS; other topics keep theirs."""
        return self._short.get(full, full)

    def full(self, short: str) -> str:
        """The name on the broker."""
        return self._full.get(short, short)


def lost(settings: Settings, what: str, kept: str = "") -> DataLost:
    """The error for records that are gone, with what to do about it."""
    hint = (
        "the embedded broker keeps 5 MiB a partition; for more use Redpanda (infra/compose.yaml) or "
        "`spanloop up --kafka`"
        if settings.profile == "embedded"
        else "raise the topic's retention, or reset the group's offsets by hand if the loss is accepted"
    )
    return DataLost(f"{what}: its records were removed before they were read{kept}; {hint}")


def failure(settings: Settings, error: KafkaError, group: str, where: str) -> SpanloopError | None:
    """What a consumer's error means beyond lost records; None = it will pass by itself."""
    code, who = error.code(), f"consumer {group}"
    if code in MISSING:
        return Unavailable(f"topic {where} does not exist on {settings.bootstrap}; run `spanloop init`")
    if code in REFUSED:
        return denied(settings, error, group, where)
    if code in FENCED:
        return Fenced(f"{who}: {error.str()}")
    return Unavailable(f"{who}: {error.str()}") if error.fatal() else None


def refused(settings: Settings, error: KafkaError, who: str, where: str) -> ConfigError:
    """The error for a broker that does not let a client in, or not to something."""
    return ConfigError(_refusal(settings, error, who, where))


def not_allowed(settings: Settings, error: KafkaError, who: str, where: str) -> NotAllowed:
    """The same of somebody who writes."""
    return NotAllowed(_refusal(settings, error, who, where))


def denied(
    settings: Settings, error: KafkaError | KafkaException, group: str, where: str = "its topics"
) -> ConfigError | None:
    """The error for what a broker refuses to a consumer; None where it is something else."""
    reason = error if isinstance(error, KafkaError) else cast("KafkaError", error.args[0])
    if reason.code() not in REFUSED:
        return None
    if reason.code() in GROUP_REFUSED:
        where = f"group {settings.prefix}-{group}"
    return refused(settings, reason, f"consumer {group}", where)


def _refusal(settings: Settings, error: KafkaError, who: str, where: str) -> str:
    see = "see the setting `kafka` and docs/security.md"
    if error.code() == KafkaError.INVALID_SESSION_TIMEOUT:
        see = "its group.min.session.timeout.ms and group.max.session.timeout.ms bound the setting `session_timeout_s`"
    return f"{settings.bootstrap} refuses {who} on {where}: {error.str()}; {see}"


def partitions(settings: Settings, topic: Topic) -> int:
    """How many partitions a topic has, as the settings promise it; `spanloop init` holds them to it."""
    return settings.partitions if topic.spread else 1


def admin(settings: Settings) -> AdminClient:
    """An admin client. Keep it until its futures are resolved."""
    return client_of(AdminClient, common_config(settings, "admin"))


def no_broker(settings: Settings, timeout_s: float) -> Unavailable:
    """The error for a broker that does not answer."""
    return Unavailable(
        f"no Kafka broker answers at {settings.bootstrap or 'an empty address (SPANLOOP_BOOTSTRAP)'} within "
        f"{timeout_s:g} s; is it running? (`spanloop up` starts an embedded one)"
    )


def wait_for_broker(settings: Settings, timeout_s: float = METADATA_TIMEOUT_S) -> None:
    """Returns once a broker answers. Raises Unavailable naming host and port."""
    config = common_config(settings, "admin")
    client = client_of(AdminClient, config)
    try:
        client.list_topics(timeout=timeout_s)
    except KafkaException as error:
        client.poll(0)  # gives error_cb what it has to hear
        refusal = cast("Trouble", config["error_cb"]).refusal
        if refusal is not None:
            raise refused(settings, refusal, "this user", "connecting") from error
        raise no_broker(settings, timeout_s) from error


def watermarks(consumer: Consumer, at: TopicPartition, timeout_s: float = METADATA_TIMEOUT_S) -> tuple[int, int]:
    """(first offset kept, end offset) of a partition, waiting for a leader. Raises KafkaException.

    To the client a topic that it may not see is an unknown one; its metadata say which.
    """
    deadline = time.monotonic() + timeout_s
    while True:
        try:
            return consumer.get_watermark_offsets(at, timeout=max(LEADER_PAUSE_S, deadline - time.monotonic()))
        except KafkaException as error:
            code = cast("KafkaError", error.args[0]).code()
            if code in MISSING and (why := consumer.list_topics(at.topic, timeout=timeout_s).topics[at.topic].error):
                raise KafkaException(KafkaError(why.code(), f"{at.topic}: {why.str()}")) from error
            if code not in NO_LEADER or time.monotonic() > deadline:
                raise
            time.sleep(LEADER_PAUSE_S)
