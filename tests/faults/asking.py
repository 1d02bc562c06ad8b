"""What the broker and ClickHouse say of a group while a fault goes on."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import closing
from typing import cast

from confluent_kafka import ConsumerGroupState, KafkaException
from confluent_kafka.admin import ConsumerGroupDescription  # pyright: ignore[reportPrivateImportUsage] - where its documentation has it

from spanloop.consumers.sink import GROUP as SINK
from spanloop.consumers.sink import SINK_TOPICS
from spanloop.infra.clickhouse import connect
from spanloop.infra.kafka import Position, Reader, admin
from spanloop.infra.settings import Settings
from spanloop.schemas.topics import SPANS

from .reading import committed_of
from .rig import Rig
from .seen import every_position

ASK_S = 10.0


class Members:
    """Members of a consumer group as they are now, to see who comes and who goes; its processes have its name."""

    def __init__(self, rig: Rig, group: str) -> None:
        """Waits until all processes of the group's name that are to run are in it, and nobody else."""
        self._rig = rig
        self._name = group
        self._group = f"{rig.settings.prefix}-{group}"
        self._admin = admin(rig.settings)
        self._before: frozenset[str] = frozenset()
        rig.wait(self._settled, f"group {group} to have its members")

    def changed(self, *, come: int = 0, gone: int = 0) -> None:
        """Waits until at least so many new members have partitions and so many of the old ones are out of it."""

        def has() -> bool:
            now = self._now()
            return bool(now) and len(now - self._before) >= come and len(self._before - now) >= gone

        self._rig.wait(has, f"{come} to join and {gone} to leave group {self._name}")

    def _settled(self) -> bool:
        self._before = self._now()
        parts = self._rig.parts
        return len(self._before) == sum(parts.children[name].kind == self._name for name in parts.running())

    def _now(self) -> frozenset[str]:
        """None while they are given their partitions, or nobody can tell."""
        try:
            asked = self._admin.describe_consumer_groups([self._group], request_timeout=ASK_S)  # pyright: ignore[reportUnknownMemberType, reportUnknownVariableType] - its stubs leave out what comes
            found = cast("ConsumerGroupDescription", asked[self._group].result(2 * ASK_S))
        except KafkaException:
            return frozenset()
        if found.state != ConsumerGroupState.STABLE:
            return frozenset()
        return frozenset(member.member_id for member in found.members)


def ends_now(settings: Settings) -> dict[Position, int]:
    """Where each partition of the log ends."""
    with closing(Reader(settings, "faults-asking")) as reader:
        return reader.ends(every_position(settings.partitions))


def behind(settings: Settings) -> bool:
    """Whether the sink has not committed all spans."""
    ends = {at: end for at, end in ends_now(settings).items() if at[0] == SPANS.name}
    committed = committed_of(settings, SINK, list(ends))
    return any(committed[at] < end for at, end in ends.items())


def stored_past_commit(settings: Settings) -> bool:
    """Whether ClickHouse has rows that the sink has not committed."""
    stored = _stored(settings)
    committed = committed_of(settings, SINK, list(stored))
    return any(offset >= committed[at] for at, offset in stored.items())


def _stored(settings: Settings) -> Mapping[Position, int]:
    out: dict[Position, int] = {}
    with closing(connect(settings)) as client:
        for topic in SINK_TOPICS:
            table = topic.name.replace("-", "_")
            asked = f"SELECT k_partition, max(k_offset) FROM {table} GROUP BY k_partition"
            out |= {(topic.name, row[0]): row[1] for row in client.query(asked).result_rows}
    return out
