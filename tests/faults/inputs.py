"""Bad, repeated and outsized input, put onto topics past our own producer, which would refuse it."""

from __future__ import annotations

import json
import time
from collections.abc import Iterable
from contextlib import closing
from typing import cast

import pytest
from confluent_kafka import KafkaError, KafkaException, Message
from confluent_kafka import Producer as KafkaProducer

from spanloop.infra.kafka import Reader, common_config
from spanloop.infra.producer import Producer
from spanloop.infra.registry import Registry
from spanloop.infra.settings import Settings
from spanloop.schemas import ids
from spanloop.schemas.records import Assignment, Batch, DeadLetter, Decision, Resource, Reward, Task, Worker
from spanloop.schemas.serde import encode_body, frame, schema_json
from spanloop.schemas.topics import REWARDS, SPANS, TASKS, TOPICS, Record, Topic

from .flow import LIMITS
from .seen import FILLER, Fed

FLUSH_S = 60.0
UNKNOWN_ID = 999_999_999
POISON_KEY = b"poison"
# SP-22: three random bytes; the right magic byte and a schema id that nobody knows; JSON.
POISON = (b"\x93\xf1\x07", frame(UNKNOWN_ID, b"body"), b'{"rollout_id": "ro-1"}')
# Who reads every record of each topic, under the name in its dead letters. Others read some only when they start; a
# trainer that starts takes up `workers` at its end, as the engines will tell of themselves again.
READERS: dict[str, frozenset[str]] = {
    "tasks": frozenset({"controller"}),
    "workers": frozenset({"controller", "gateway"}),
    "spans": frozenset({"assembler"}),
    "rewards": frozenset({"assembler"}),
    "attempts": frozenset({"controller", "gateway"}),
    "trajectories": frozenset({"trainer"}),
    "decisions": frozenset({"controller"}),
    "resources": frozenset({"controller", "worker", "trainer"}),
}
PARROT_RECORDS = 500
MIB = 1 << 20
LOUD_BYTES = SPANS.max_bytes + MIB


class Raw:
    """A producer that writes whatever it is given, and waits for the broker."""

    def __init__(self, settings: Settings) -> None:
        config = common_config(settings, "faults-raw") | {"acks": "all", "message.max.bytes": 32 * MIB}
        self._settings = settings
        self._producer = KafkaProducer(config | {"partitioner": "murmur2_random"})

    def put(self, topic: Topic, values: Iterable[bytes], key: bytes = POISON_KEY) -> list[tuple[str, int, int]]:
        """Writes values under one key; where each of them lies. Raises KafkaException."""
        return self.copy(topic, [(key, value) for value in values])

    def copy(self, topic: Topic, records: Iterable[tuple[bytes | None, bytes | None]]) -> list[tuple[str, int, int]]:
        """Writes (key, value) pairs."""
        placed: list[tuple[str, int, int]] = []
        failed: list[KafkaError] = []

        def settle(error: KafkaError | None, message: Message) -> None:
            if error is not None:
                failed.append(error)
            else:
                placed.append((topic.name, cast("int", message.partition()), cast("int", message.offset())))

        for key, value in records:
            self._producer.produce(topic.full(self._settings.prefix), value, key, on_delivery=settle)
        left = self._producer.flush(FLUSH_S)
        assert left == 0, f"{left} records were not acknowledged within {FLUSH_S:g} s"
        if failed:
            raise KafkaException(failed[0])
        return placed


def poison(settings: Settings, fed: Fed) -> list[tuple[str, int, int]]:
    """The three kinds into every topic; whoever reads the topic must set each aside. Where they lie."""
    raw = Raw(settings)
    placed = [where for topic in TOPICS.values() for where in raw.put(topic, POISON)]
    for where in placed:
        topic = TOPICS[where[0]]
        fed.poison[where] = READERS.get(topic.name, frozenset()) | {"sink"}
    return placed


def repeat(settings: Settings) -> None:
    """Writes the last spans and rewards once more, as a producer does that lost its acknowledgements."""
    raw = Raw(settings)
    with closing(Reader(settings, "faults-parrot")) as reader:
        for topic in (SPANS, REWARDS):
            reader.assign_topics([topic])
            ends = reader.ends()
            reader.assign({at: max(0, end - PARROT_RECORDS) for at, end in ends.items()})
            again: list[tuple[bytes | None, bytes | None]] = []
            while not reader.reached(ends):
                again += [(m.key, m.value) for m in reader.poll(1000, 0.2) if m.key != POISON_KEY]
            raw.copy(topic, again)


def fill(settings: Settings, numbers: Iterable[int]) -> None:
    """Good records into the topics that rollouts fill slowly, if at all; they tell of nobody's work."""
    with closing(Producer(settings, "faults-fill")) as producer:
        for i in numbers:
            for record in _fillers(i):
                producer.send(record)


def _fillers(i: int) -> tuple[Record, ...]:
    group = f"{FILLER}-{i}"
    return (
        Assignment(POISON_KEY.decode(), group, "cancel"),  # beside the poison: real ones have few keys
        Worker(FILLER, FILLER, alive=False),
        Batch(FILLER, i, 0),
        Decision(FILLER, 0, FILLER, group, outcome="dropped"),
        Resource(FILLER, i, body=json.dumps(i)),
        DeadLetter(FILLER, TASKS.name, -1, i, "undecodable"),
    )


def outsized(settings: Settings, fed: Fed) -> tuple[str, str]:
    """A record that the broker refuses, a task too large to be handed on, and an agent with a span over the limit.

    Returns the rollouts of the last two.
    """
    raw = Raw(settings)
    with pytest.raises(KafkaException) as refused:
        raw.put(REWARDS, [b"x" * (REWARDS.max_bytes + MIB)])
    assert cast("KafkaError", refused.value.args[0]).code() == KafkaError.MSG_SIZE_TOO_LARGE
    large, loud = ids.rollout_id(), ids.rollout_id()
    wide = json.dumps({"n": 0, "reward": 0.5, "padding": "x" * (TASKS.max_bytes - 40 * 1024)})
    given = {large: wide, loud: json.dumps({"n": 0, "reward": 0.5, "message_bytes": LOUD_BYTES})}
    with closing(Producer(settings, "faults-outsized")) as producer:
        for rollout_id, task_input in given.items():
            producer.send_wait(Task(rollout_id, "outsized", mode="val", input=task_input, limits=LIMITS))
    fed.tasks |= dict.fromkeys(given, 0.5)
    fed.may_fail.add(large)
    return large, loud


def newer(settings: Settings) -> int:
    """Registers a later version of the reward's schema, which no process has looked up yet; its id."""
    schema = json.loads(schema_json(Reward))
    schema["fields"].append({"name": f"mood_{time.time_ns()}", "type": "string", "default": ""})
    with closing(Registry(settings.registry_url)) as registry:
        return registry.register(REWARDS.subject(settings.prefix), json.dumps(schema))


def late_rewards(settings: Settings, schema_id: int, rollouts: Iterable[str]) -> None:
    """A later step reward for each rollout, written by a producer of a later version."""
    raw = Raw(settings)
    for rollout_id in rollouts:
        reward = Reward(
            ids.reward_id(),
            rollout_id,
            name="late",
            scope="step",
            value=0.125,
            source="human",
            created_ns=time.time_ns(),
        )
        raw.put(REWARDS, [frame(schema_id, encode_body(reward) + b"\x00")], rollout_id.encode())
