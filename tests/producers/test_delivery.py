"""The spool on a broker: large spans, back-pressure, processes that end in every way."""

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Generator
from pathlib import Path

import pytest
from waiting import GONE_WITHIN_S, until

from spanloop.infra.embedded_broker import EmbeddedBroker
from spanloop.infra.kafka import Reader
from spanloop.infra.producer import Producer
from spanloop.infra.registry import Registry
from spanloop.infra.settings import Settings
from spanloop.producers import context, emit_annotation, emit_message
from spanloop.producers.context import Scope
from spanloop.producers.spool import Spool
from spanloop.schemas import ids
from spanloop.schemas.records import Assignment, AttemptEnd, Span, SpanBatch, Task, Worker
from spanloop.schemas.serde import Decoder
from spanloop.schemas.topics import SPANS, TOPICS, WORKERS


class Log:
    """Reads what arrives on spans and workers."""

    def __init__(self, settings: Settings) -> None:
        self._registry = Registry(settings.registry_url)
        self._decoder = Decoder(self._registry)
        self._reader = Reader(settings, "log")
        self._reader.assign_topics([SPANS, WORKERS])
        self.batches: list[SpanBatch] = []
        self.workers: list[Worker] = []

    def read(self) -> None:
        for m in self._reader.poll(500, 0.02):
            assert m.value is not None
            record = self._decoder.decode_topic(TOPICS[m.topic], m.value)
            if isinstance(record, SpanBatch):
                self.batches.append(record)
            elif isinstance(record, Worker):
                self.workers.append(record)

    def spans(self) -> list[Span]:
        self.read()
        return [span for batch in self.batches for span in batch.spans]

    def read_to_end(self) -> None:
        ends = self._reader.ends()
        until(lambda: self.read() or self._reader.reached(ends))

    def close(self) -> None:
        self._reader.close()
        self._registry.close()


@pytest.fixture
def log(embedded_settings: Settings) -> Generator[Log]:
    made = Log(embedded_settings)
    yield made
    made.close()


def scope_on(spool: Spool) -> Scope:
    attempt_id = ids.attempt_id()
    return Scope("ro-1", attempt_id, spool.producer_id, spool.open("ro-1", attempt_id))


def test_huge_and_many_large_values_arrive(embedded_settings: Settings, log: Log) -> None:  # PS-3
    producer = Producer(embedded_settings, "spool")
    spool = Spool(producer, producer_id="p", linger_s=0.5)
    with context.attempt(scope_on(spool)):
        emit_message("x" * (5 << 20))
        emit_message("a" * (700 << 10))
        emit_message("b" * (700 << 10))
        emit_annotation({f"v{i}": "y" * (2 << 20) for i in range(30)})
    assert spool.close(60)
    producer.close()
    until(lambda: len(log.spans()) == 4)
    assert spool.dropped == 0
    assert [len(b.spans) for b in log.batches] == [1, 1, 1, 1]
    assert '"spanloop.body.length":5242880' in log.batches[0].spans[0].attributes


def test_a_paused_broker_holds_an_agent_up_and_loses_nothing(
    embedded_settings: Settings, broker: EmbeddedBroker, log: Log
) -> None:  # PS-8
    producer = Producer(embedded_settings, "spool")
    spool = Spool(producer, producer_id="p", max_pending=10, max_block_s=120.0)
    scope = scope_on(spool)

    def work() -> None:
        with context.attempt(scope):
            for i in range(1000):
                emit_message(str(i))

    broker.set_down()
    try:
        thread = threading.Thread(target=work)
        thread.start()
        until(lambda: spool.pending == 10)
        thread.join(2)
        assert thread.is_alive()
    finally:
        broker.set_up()
    thread.join(60)
    assert spool.close(60)
    producer.close()
    until(lambda: len(log.spans()) >= 1000)
    assert [s.sequence for s in sorted(log.spans(), key=lambda s: s.sequence)] == list(range(1000))
    assert len({s.span_id for s in log.spans()}) == 1000
    assert spool.dropped == 0


def test_a_broker_that_stays_away_costs_an_agent_its_limit_once(
    embedded_settings: Settings, broker: EmbeddedBroker, log: Log
) -> None:  # PS-8
    producer = Producer(embedded_settings, "spool")
    spool = Spool(producer, producer_id="p", max_pending=10, max_block_s=0.3)
    scope = scope_on(spool)
    broker.set_down()
    try:
        started = time.monotonic()
        with context.attempt(scope):
            for i in range(1000):
                emit_message(str(i))
        took_s = time.monotonic() - started
    finally:
        broker.set_up()
    assert spool.close(60)
    producer.close()
    until(lambda: len(log.spans()) >= 1000 - spool.dropped)
    assert took_s < 100 * 0.3  # once a message would be 990 times
    assert spool.dropped == 990
    assert sorted(s.sequence for s in log.spans()) == list(range(10))


PROGRAM = """
import os, sys
from spanloop.infra.producer import Producer
from spanloop.infra.settings import Settings
from spanloop.producers import context, emit_message
from spanloop.producers.spool import Spool
spool = Spool(Producer(Settings(), "program"), producer_id="p")
spool.flush_at_exit()
with context.attempt(context.Scope("ro-1", "at-1", "p", spool.open("ro-1", "at-1"))):
    emit_message("1")
    if sys.argv[1] == "_exit":
        spool.flush(20)
    emit_message("2")
    emit_message("3")
    if sys.argv[1] == "_exit":
        os._exit(3)
    raise ValueError("unhandled")
"""


def run_program(settings: Settings, how: str) -> int:
    environment = {**os.environ, **settings.environment()}
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, how], env=environment, capture_output=True, timeout=60, check=False
    )
    return done.returncode


def test_an_unhandled_exception_loses_nothing(embedded_settings: Settings, log: Log) -> None:  # PS-9
    assert run_program(embedded_settings, "raise") == 1
    log.read_to_end()
    assert [s.sequence for s in log.spans()] == [0, 1, 2]


def test_a_process_that_just_ends_leaves_whole_records_and_all_that_was_acknowledged(
    embedded_settings: Settings, log: Log
) -> None:  # PS-9
    assert run_program(embedded_settings, "_exit") == 3
    log.read_to_end()
    assert [s.sequence for s in log.spans()] in ([0], [0, 1, 2])


AGENT = """
import time
from spanloop import emit_message, rollout
@rollout
def agent(task):
    for i in range(3):
        emit_message(str(i))
    time.sleep(3600)
"""


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_worker_process_that_is_told_to_end_flushes_hands_back_and_goes_within_five_seconds(
    embedded_settings: Settings, log: Log, tmp_path: Path, number: signal.Signals
) -> None:  # PS-9
    (tmp_path / "sleepy.py").write_text(AGENT)
    command = [sys.executable, "-m", "spanloop.producers.worker", f"{tmp_path}/sleepy.py:agent"]
    worker = subprocess.Popen(command, env={**os.environ, **embedded_settings.environment()})
    try:
        until(lambda: log.read() or log.workers)
        producer = Producer(embedded_settings, "controller")
        task = Task("ro-1", "run-1")
        producer.send_wait(Assignment(log.workers[0].worker_id, "at-1", task=task, at_ns=time.time_ns()))
        producer.close()
        until(lambda: log.read() or log.batches)
        worker.send_signal(number)
        assert worker.wait(GONE_WITHIN_S) == 0
    finally:
        worker.kill()
        worker.wait()
    log.read_to_end()
    ends = [b.end for b in log.batches if b.end]
    assert [type(end) for end in ends] == [AttemptEnd]
    assert [(end.status, end.span_count) for end in ends] == [("returned", 4)]
    assert sum(s.name == "spanloop.message" for s in log.spans()) == 3
    assert not log.workers[-1].alive
