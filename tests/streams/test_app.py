"""The assembler in front of a broker: records in, trajectories out, offsets committed in order, errors loud."""

from __future__ import annotations

import asyncio
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Awaitable, Callable, Generator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from dataclasses import replace
from operator import attrgetter
from pathlib import Path
from random import randbytes

import pytest
from events import batch, end, llm, rew, span
from waiting import until

from spanloop.infra.kafka import Reader
from spanloop.infra.producer import Producer
from spanloop.infra.registry import Registry
from spanloop.infra.settings import Settings
from spanloop.schemas.errors import DataLost
from spanloop.schemas.records import Assembly, Attempt, DeadLetter, Trajectory
from spanloop.schemas.serde import Decoder
from spanloop.schemas.topics import (
    ASSEMBLIES,
    ATTEMPTS,
    DEAD_LETTERS,
    REWARDS,
    SPANS,
    TRAJECTORIES,
    Record,
    Topic,
    partition_of,
)
from spanloop.streams.assembler import Assembler
from spanloop.streams.assembler_service import AssemblerService
from spanloop.streams.first_offsets import commit_first_offsets, committed_offsets
from spanloop.streams.messages import Policy
from spanloop.streams.offsets import overtaken
from spanloop.streams.shell import Shell

DEADLINE_S = 60.0
Enough = Callable[[list[Record]], bool]


@contextmanager
def running(settings: Settings, policy: Policy | None = None) -> Generator[None]:
    """An assembler in a thread; an error of its own is raised here."""
    stop = threading.Event()
    with ThreadPoolExecutor(1) as pool:
        done = pool.submit(AssemblerService(settings, policy).run, stop)
        try:
            yield
        finally:
            stop.set()
            done.result(DEADLINE_S)


def all_of(settings: Settings, topic: Topic, enough: Enough) -> list[Record]:
    """Everything on a topic, once there is enough of it."""
    registry, reader = Registry(settings.registry_url), Reader(settings, "test")
    decoder, out, limit = Decoder(registry), list[Record](), time.monotonic() + DEADLINE_S
    try:
        reader.assign_topics([topic])
        while not enough(out):
            assert time.monotonic() < limit, f"only {out} came"
            found = reader.poll(100, 0.1)
            out += [decoder.decode_topic(topic, m.value, m.headers) for m in found if m.value is not None]
    finally:
        reader.close()
        registry.close()
    return out


def trajectories(settings: Settings, enough: Callable[[dict[str, Trajectory]], bool]) -> dict[str, Trajectory]:
    """The last revision of each attempt, once there is enough of them."""

    def latest(records: list[Record]) -> dict[str, Trajectory]:
        found = [r for r in records if isinstance(r, Trajectory)]
        return {t.attempt_id: t for t in sorted(found, key=lambda t: t.revision)}

    return latest(all_of(settings, TRAJECTORIES, lambda records: enough(latest(records))))


def committed(settings: Settings, topic: Topic) -> int:
    """The committed offset of ro-1's partition."""
    at = (topic.name, partition_of("ro-1", settings.partitions))
    return committed_offsets(settings, "assembler", [at])[at]


@pytest.fixture
def producer(each_settings: Settings) -> Generator[Producer]:
    made = Producer(each_settings, "test")
    yield made
    made.close()


def test_an_attempt_becomes_a_trajectory(each_settings: Settings, producer: Producer) -> None:
    with running(each_settings):
        producer.send(batch(llm("s1", [1, 2], [3]), begin=True))
        producer.send(rew(1.0))
        producer.send(batch(end=end(span_count=1)))
        producer.flush()
        found = trajectories(each_settings, lambda t: t != {} and t["at-1"].revision == 2)["at-1"]
        assert (found.final_reward, len(found.rows), found.flags) == (1.0, 1, [])
        events = all_of(each_settings, ATTEMPTS, lambda r: len(r) >= 2)
        assert [e.status for e in events if isinstance(e, Attempt)] == ["running", "ended"]
        assemblies = all_of(
            each_settings, ASSEMBLIES, lambda r: any(isinstance(a, Assembly) and a.revision == 2 for a in r)
        )
        assert isinstance(assemblies[-1], Assembly)
        assert assemblies[-1].input_digest == found.input_digest
        until(lambda: committed(each_settings, SPANS) == 2 and committed(each_settings, REWARDS) == 1)


def test_offsets_are_held_at_the_oldest_open_attempt_and_a_restart_goes_on_from_there(
    each_settings: Settings, producer: Producer
) -> None:
    producer.send(batch(llm("s1", [1], [2]), attempt="at-0", begin=True, end=end(span_count=1)))
    producer.send(batch(llm("s1", [1], [2]), attempt="at-1", begin=True))
    producer.send(batch(llm("s2", [5], [6]), attempt="at-2", begin=True, end=end(span_count=1)))
    producer.flush()
    with running(each_settings):
        trajectories(each_settings, lambda t: t.keys() == {"at-0", "at-2"})
        until(lambda: committed(each_settings, SPANS) == 1)
    producer.send(batch(attempt="at-1", end=end(span_count=1)))
    producer.flush()
    with running(each_settings):
        trajectories(each_settings, lambda t: "at-1" in t)
        until(lambda: committed(each_settings, SPANS) == 4)
    found = all_of(each_settings, TRAJECTORIES, lambda r: len(r) >= 3)
    assert sorted(t.attempt_id for t in found if isinstance(t, Trajectory)) == ["at-0", "at-1", "at-2"]


def test_a_reward_for_a_forgotten_attempt_reads_its_events_again(each_settings: Settings, producer: Producer) -> None:
    forgetful = Policy(hold_s=0.0)
    with running(each_settings, forgetful):
        producer.send(batch(llm("s1", [1], [2]), begin=True, end=end(span_count=1)))
        producer.flush()
        trajectories(each_settings, lambda t: "at-1" in t)
        until(lambda: committed(each_settings, SPANS) == 1)
        producer.send(rew(0.5, name="judge"))
        producer.flush()
        found = trajectories(each_settings, lambda t: t["at-1"].revision == 2 if t else False)["at-1"]
        assert (found.final_reward, len(found.rows)) == (0.5, 1)
        until(lambda: committed(each_settings, REWARDS) == 1)
    producer.send(rew(1.0, rid="rw-2", attempt=None))
    producer.flush()
    with running(each_settings, forgetful):
        found = trajectories(each_settings, lambda t: t["at-1"].revision == 3 if t else False)["at-1"]
        assert (found.final_reward, len(found.rewards)) == (1.0, 2)


def test_a_grace_begun_before_a_crash_ends_without_new_input(
    each_settings: Settings, producer: Producer
) -> None:  # SP-27
    with running(each_settings, Policy(grace_s=3600)):
        spans = [llm("s1", [1], [2], parent="s0"), span("s2", "s1", 110, 120, seq=2), span("s3", "s1", 130, 140, seq=3)]
        producer.send(batch(*spans, begin=True, end=end(span_count=3)))
        producer.flush()
        all_of(each_settings, ATTEMPTS, lambda r: len(r) >= 2)
    with running(each_settings):
        found = trajectories(each_settings, lambda t: "at-1" in t)["at-1"]
        assert (found.span_count, found.flags) == (3, ["orphaned", "unrewarded"])


def test_bad_records_are_quarantined_and_the_stream_goes_on(
    each_settings: Settings, producer: Producer
) -> None:  # SP-22
    poison = (b"\x01\x02\x03", b"\x00\x00\x0f\xff\xff" + b"x" * 20, b'{"json": true}')
    for i in range(1000):
        producer.send(batch(span(f"s{i}", seq=i), begin=i == 0))
        if i == 499:
            for value in poison:
                topic = SPANS.full(each_settings.prefix)
                producer.client.produce(topic, value, b"ro-1", partition_of("ro-1", each_settings.partitions))
    producer.send(rew(float("nan"), rid="rw-nan", producer_id="p1"))
    producer.send(batch(end=end(span_count=1000, reward_count=1)))
    producer.flush()
    with running(each_settings):
        found = trajectories(each_settings, lambda t: "at-1" in t and t["at-1"].revision == 1001)["at-1"]
        assert found.span_count == 1000
        letters = all_of(each_settings, DEAD_LETTERS, lambda r: len(r) >= 4)
        reasons = {(x.topic, x.reason, x.consumer) for x in letters if isinstance(x, DeadLetter)}
        assert reasons == {
            ("spans", "bad_framing", "assembler"),
            ("spans", "unknown_schema_id", "assembler"),
            ("rewards", "nonfinite_reward", "assembler"),
        }
        assert {x.raw for x in letters if isinstance(x, DeadLetter)} >= set(poison)
        until(lambda: committed(each_settings, SPANS) == 1004 and committed(each_settings, REWARDS) == 1)


def test_a_take_over_that_is_superseded_leaves_nothing_of_its_partition(
    embedded_settings: Settings,
) -> None:
    # what stayed would be closed as idle by a member that reads it no more, and would keep it from ever committing
    with closing(Producer(embedded_settings, "test")) as producer:
        ack = producer.send_wait(batch(span("s1")))
    shell = Shell(embedded_settings)
    try:
        done = asyncio.run(shell.take_over(ack.partition, {"spans": 0, "rewards": 0}, lambda: True))
        assert not done
        assert shell.core.partitions == {}
    finally:
        shell.close()


def test_a_member_is_overtaken_where_the_group_has_committed_what_it_has_not_read() -> None:
    assert overtaken({"spans": 8, "rewards": 3}, {"spans": 7, "rewards": 3})
    assert overtaken({"spans": 7, "rewards": 4}, {"spans": 7, "rewards": 3})
    assert not overtaken({"spans": 7, "rewards": 3}, {"spans": 7, "rewards": 3})
    assert not overtaken({"spans": 5, "rewards": 3}, {"spans": 7, "rewards": 3})


def test_an_unforeseen_error_stops_the_worker_and_commits_nothing(
    embedded_settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    sent = Producer(embedded_settings, "test")
    sent.send(batch(llm("s1", [1], [2]), begin=True, end=end(span_count=1)))
    sent.close()

    def broken(*_: object) -> None:
        raise RuntimeError("a defect")

    monkeypatch.setattr(Assembler, "add", broken)
    with pytest.raises(RuntimeError, match="a defect"):
        AssemblerService(embedded_settings).run(threading.Event())
    assert committed(embedded_settings, SPANS) == 0


def test_records_removed_before_they_were_read_are_an_error(embedded_settings: Settings) -> None:
    commit_first_offsets(embedded_settings, "assembler")
    sent = Producer(embedded_settings, "test")
    for i in range(8):
        sent.send(batch(replace(span(f"s{i}"), status_message=randbytes(900_000).hex())))  # does not compress
    sent.close()
    with pytest.raises(DataLost, match="assembler"):
        AssemblerService(embedded_settings).run(threading.Event())


def test_a_commit_that_a_rebalance_overtook_is_made_again_and_nothing_is_emitted_twice(
    each_settings: Settings, producer: Producer, monkeypatch: pytest.MonkeyPatch
) -> None:  # BR-8
    stop, service, answers = threading.Event(), AssemblerService(each_settings), list[bool]()
    with ThreadPoolExecutor(1) as pool:
        done = pool.submit(service.run, stop)
        try:
            until(lambda: service.app is not None and service.app.is_ready)
            assert service.app is not None
            consumer = service.app.consumer
            real: Callable[[object], Awaitable[bool]] = attrgetter("_commit")(consumer)

            async def overtaken(offsets: object) -> bool:
                if not answers:  # the broker answers ILLEGAL_GENERATION
                    attrgetter("_thread._consumer._coordinator")(consumer).generation += 1000
                answers.append(await real(offsets))
                return answers[-1]

            monkeypatch.setattr(consumer, "_commit", overtaken)
            producer.send(batch(llm("s1", [1], [2]), begin=True, end=end(span_count=1)))
            producer.flush()
            until(lambda: committed(each_settings, SPANS) == 1)
            producer.send(batch(llm("s2", [1], [2]), attempt="at-2", begin=True, end=end(span_count=1)))
            producer.flush()
            until(lambda: committed(each_settings, SPANS) == 2)
        finally:
            stop.set()
            done.result(DEADLINE_S)
    assert (answers[0], answers[-1]) == (False, True)
    found = all_of(each_settings, TRAJECTORIES, lambda r: len(r) >= 2)
    assert len({(t.attempt_id, t.revision, t.input_digest) for t in found if isinstance(t, Trajectory)}) == 2


def test_the_faust_command_runs_it_without_a_file_and_a_signal_ends_it(
    each_settings: Settings, producer: Producer, tmp_path: Path
) -> None:
    command = [sys.executable, "-m", "faust", "-A", "spanloop.streams.app", "worker", "--without-web", "-l", "warn"]
    process = subprocess.Popen(
        command,
        env={"PATH": "/usr/bin:/bin", "TMPDIR": str(tmp_path), **each_settings.environment()},
        cwd=each_settings.home,
    )
    try:
        producer.send(batch(llm("s1", [1], [2]), begin=True, end=end(span_count=1)))
        producer.flush()
        trajectories(each_settings, lambda t: "at-1" in t)
        assert list(tmp_path.iterdir()) == []  # as it is now, a kill -9 would leave it
        process.send_signal(signal.SIGTERM)
        assert process.wait(DEADLINE_S) == 0
    finally:
        process.kill()
        process.wait()
