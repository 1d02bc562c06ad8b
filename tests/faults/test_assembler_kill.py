"""The assembler killed again and again comes to the same last revisions as one that never was."""

from __future__ import annotations

import random
import subprocess
import sys
import threading
from collections import defaultdict
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import replace

import pytest
from events import NOW, batch, end, llm, rew, span
from waiting import until

from spanloop.infra.kafka import Reader
from spanloop.infra.producer import Producer
from spanloop.infra.registry import Registry
from spanloop.infra.settings import Settings
from spanloop.schemas.records import Attempt, Reward, SpanBatch, Trajectory
from spanloop.schemas.semconv import AGENT
from spanloop.schemas.serde import Decoder
from spanloop.schemas.topics import ATTEMPTS, REWARDS, SPANS, TOPICS, TRAJECTORIES, Record
from spanloop.streams.assembler import Assembler
from spanloop.streams.first_offsets import committed_offsets
from spanloop.streams.messages import Emitted, Message, Output, Source

pytestmark = [pytest.mark.kafka, pytest.mark.slow]

ATTEMPTS_IN_ALL = 160
KILLS = 3
DEADLINE_S = 120.0
Last = dict[str, tuple[int, str]]


def recorded(seed: int) -> list[SpanBatch | Reward]:
    """A log of interleaved attempts: several batches each, one of them sent twice, rewards early and late."""
    dice = random.Random(seed)
    streams: list[list[SpanBatch | Reward]] = []
    for i in range(ATTEMPTS_IN_ALL):
        rollout, attempt = f"ro-{i // 2}", f"at-{i}"
        root, agent = span(f"{i}r"), span(f"{i}a", f"{i}r", attrs={AGENT: "a"}, seq=1)
        calls = [llm(f"{i}c{k}", [1, i] + [7] * (2 * k), [7], parent=f"{i}a", seq=2 + k) for k in range(4)]
        of = [batch(s, rollout=rollout, attempt=attempt) for s in (root, agent, *calls)]
        of[0] = replace(of[0], begin=True)
        of.insert(dice.randrange(1, 6), dice.choice(of[1:]))
        marker = end(final=i % 2 == 1, span_count=6, mode="sum")
        stream: list[SpanBatch | Reward] = [*of, batch(rollout=rollout, attempt=attempt, end=marker)]
        stream.insert(dice.randrange(len(stream) + 1), rew(i / 7, rid=f"rw-{i}", rollout=rollout, attempt=attempt))
        if i % 5 == 1:
            stream.append(rew(1.0, rid=f"rw-late-{i}", rollout=rollout, attempt=None, name="judge"))
        streams.append(stream)
    out: list[SpanBatch | Reward] = []
    while streams:
        stream = streams[dice.randrange(min(len(streams), 12))]
        out.append(stream.pop(0))
        if not stream:
            streams.remove(stream)
    return out


def undisturbed(settings: Settings) -> Last:
    """Last revisions of the log as it lies in Kafka, by the pure core."""
    assembler, last = Assembler(), Last()
    for partition in range(settings.partitions):
        assembler.assign(partition, spans=0, rewards=0)
    for topic in (SPANS, REWARDS):
        for message in log_of(settings, topic.name):
            last |= emitted(assembler.add(message, NOW))
    return last | emitted(assembler.tick(NOW + 10**18))


def emitted(outputs: list[Output]) -> Last:
    found = [o.trajectory for o in outputs if isinstance(o, Emitted)]
    return {t.attempt_id: (t.revision, t.input_digest) for t in found}


def log_of(settings: Settings, name: str) -> list[Message]:
    found = read_all(settings, name)
    source: Source = "spans" if name == "spans" else "rewards"
    return [Message(source, p, o, r) for p, o, r in found if isinstance(r, SpanBatch | Reward)]


def read_all(settings: Settings, name: str) -> list[tuple[int, int, Record]]:
    """(partition, offset, record) of everything on a topic."""
    registry, reader, topic = Registry(settings.registry_url), Reader(settings, "test"), TOPICS[name]
    decoder, out = Decoder(registry), list[tuple[int, int, Record]]()
    try:
        reader.assign_topics([topic])
        ends = reader.ends()
        while not reader.reached(ends):
            for m in reader.poll(1000, 0.1):
                if m.value is not None:
                    out.append((m.partition, m.offset, decoder.decode_topic(topic, m.value, m.headers)))
    finally:
        reader.close()
        registry.close()
    return out


def last_revisions(settings: Settings) -> Last:
    out: dict[str, Trajectory] = {}
    for _, _, record in read_all(settings, TRAJECTORIES.name):
        assert isinstance(record, Trajectory)
        known = out.get(record.attempt_id)
        if known is None or record.revision >= known.revision:
            out[record.attempt_id] = record
    return {a: (t.revision, t.input_digest) for a, t in out.items()}


@contextmanager
def assembler(settings: Settings) -> Generator[subprocess.Popen[bytes]]:
    """An assembler process, killed when the block ends."""
    command = [sys.executable, "-m", "faust", "-A", "spanloop.streams.app", "worker", "--without-web", "-l", "error"]
    process = subprocess.Popen(command, env={"PATH": "/usr/bin:/bin", **settings.environment()}, cwd=settings.home)
    try:
        yield process
    finally:
        process.kill()
        process.wait()


def feed(settings: Settings, log: list[SpanBatch | Reward], go: threading.Semaphore) -> None:
    """Writes a part of the log each time it is let go."""
    producer = Producer(settings, "feeder")
    size = len(log) // (KILLS + 1) + 1
    for at in range(0, len(log), size):
        go.acquire()
        for record in log[at : at + size]:
            producer.send(record)
        producer.flush()
    producer.close()


@pytest.mark.timeout(600)
def test_kills_at_random_points_change_no_last_revision(kafka_settings: Settings) -> None:
    seed = random.SystemRandom().randrange(1 << 32)
    dice, log, go = random.Random(seed), recorded(seed), threading.Semaphore(0)
    feeder = threading.Thread(target=feed, args=(kafka_settings, log, go))
    feeder.start()
    for kill in range(KILLS):
        go.release()
        before = len(last_revisions(kafka_settings))
        more = dice.randrange(1, ATTEMPTS_IN_ALL // (KILLS + 1) // 2)
        with assembler(kafka_settings):
            until(
                lambda n=before + more: len(last_revisions(kafka_settings)) >= n, f"seed {seed}: stuck at kill {kill}"
            )
    go.release()
    feeder.join(DEADLINE_S)
    expected = undisturbed(kafka_settings)
    assert len(expected) == ATTEMPTS_IN_ALL
    with assembler(kafka_settings):
        until(lambda: last_revisions(kafka_settings) == expected, f"seed {seed}: the last revisions differ")
        positions = [(t.name, p) for t in (SPANS, REWARDS) for p in range(kafka_settings.partitions)]
        ends: dict[tuple[str, int], int] = defaultdict(int)
        for name in ("spans", "rewards"):
            for partition, offset, _ in read_all(kafka_settings, name):
                ends[name, partition] = max(ends[name, partition], offset + 1)
        until(
            lambda: all(o == ends[at] for at, o in committed_offsets(kafka_settings, "assembler", positions).items()),
            f"seed {seed}: offsets are still held",
        )
    events = [r for _, _, r in read_all(kafka_settings, ATTEMPTS.name) if isinstance(r, Attempt)]
    assert {e.attempt_id for e in events if e.status == "ended"} == expected.keys()
    assert {e.attempt_id for e in events if e.status == "running"} == expected.keys()


def ten_spans_each(attempts: int, beside: int) -> list[SpanBatch | Reward]:
    """A log of attempts of ten spans, a record each; `beside` of them are open at a time."""
    out: list[SpanBatch | Reward] = []
    for start in range(0, attempts, beside):
        for k in range(10):
            for i in range(start, start + beside):
                made = span(f"{i}root") if k == 0 else llm(f"{i}-{k}", [7] * (2 * k), [7], parent=f"{i}root", seq=k)
                marker = end(span_count=10) if k == 9 else None
                out.append(batch(made, rollout=f"ro-{i}", attempt=f"at-{i}", begin=k == 0, end=marker))
    return out


@pytest.mark.timeout(600)
def test_a_worker_killed_in_the_middle_and_a_third_one_change_no_output(kafka_settings: Settings) -> None:  # SP-21
    log, producer = ten_spans_each(200, beside=20), Producer(kafka_settings, "feeder")
    positions = [(t.name, p) for t in (SPANS, REWARDS) for p in range(kafka_settings.partitions)]
    with assembler(kafka_settings) as first, assembler(kafka_settings):
        for record in log[:900]:
            producer.send(record)
        producer.flush()
        until(lambda: len(last_revisions(kafka_settings)) == 80, "the first 900 spans end 80 attempts")
        first.kill()
        for record in log[900:]:
            producer.send(record)
        producer.close()
        with assembler(kafka_settings):
            expected = undisturbed(kafka_settings)
            until(lambda: last_revisions(kafka_settings) == expected, "not the output of a single worker")
            ends = dict.fromkeys(positions, 0)
            for partition, offset, _ in read_all(kafka_settings, SPANS.name):
                ends[SPANS.name, partition] = max(ends[SPANS.name, partition], offset + 1)
            until(lambda: committed_offsets(kafka_settings, "assembler", positions) == ends, "offsets are held")
    assert len(expected) == 200
    contents: dict[tuple[str, int], set[str]] = defaultdict(set)
    for _, _, found in read_all(kafka_settings, TRAJECTORIES.name):
        assert isinstance(found, Trajectory)
        contents[found.attempt_id, found.revision].add(repr(found))
    assert {key: len(same) for key, same in contents.items()} == {(f"at-{i}", 10): 1 for i in range(200)}
