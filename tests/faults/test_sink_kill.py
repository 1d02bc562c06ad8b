"""A sink killed in mid-work: what the views show is what an undisturbed sink would have stored."""

from __future__ import annotations

import os
import random
import subprocess
import sys
import time
from collections.abc import Generator
from contextlib import contextmanager

import pytest
from sink_rig import Lab
from waiting import until

from spanloop.consumers.sink import GROUP, SINK_TOPICS
from spanloop.infra.clickhouse import connect, migrate
from spanloop.infra.clickhouse_client import Client
from spanloop.infra.lag import Lag
from spanloop.infra.producer import Producer
from spanloop.infra.settings import Settings
from spanloop.schemas.records import AttemptEnd, Reward

ROLLOUTS, SPANS_EACH, KILLS = 1500, 4, 5
DEADLINE_S = 240.0


@contextmanager
def sink(settings: Settings) -> Generator[subprocess.Popen[bytes]]:
    """`python -m spanloop.consumers.sink`, gone at the end."""
    process = subprocess.Popen(
        [sys.executable, "-m", "spanloop.consumers.sink"], env={**os.environ, **settings.environment()}
    )
    try:
        yield process
    finally:
        if process.poll() is None:
            process.kill()
        process.wait()


def produce(settings: Settings, first: int, last: int) -> None:
    producer = Producer(settings, "test")
    for i in range(first, last):
        spans = [Lab.span(f"{i * SPANS_EACH + k:016x}", sequence=k, name=f"n{k}") for k in range(SPANS_EACH)]
        ids = {"rollout_id": f"ro-{i}", "attempt_id": f"at-{i}"}
        producer.send(Lab.batch(*spans, **ids))
        producer.send(Lab.batch(end=AttemptEnd("succeeded", i), **ids))
        producer.send(Reward(f"rw-{i}", f"ro-{i}", value=float(i)))
    producer.close()


def stored(client: Client) -> int:
    return client.query("SELECT count() FROM spans").result_rows[0][0]


@pytest.mark.kafka
@pytest.mark.slow
def test_what_is_stored_does_not_depend_on_kills(kafka_settings: Settings, clickhouse_url: str) -> None:
    # CH-9
    settings = kafka_settings.with_(clickhouse_url=clickhouse_url, clickhouse_database=f"k_{kafka_settings.prefix}")
    client = connect(settings)
    migrate(client, settings.clickhouse_database)
    lag = Lag(settings, GROUP, SINK_TOPICS)
    chance = random.Random(7)
    for kill in range(KILLS):
        produce(settings, kill * ROLLOUTS // KILLS, (kill + 1) * ROLLOUTS // KILLS)
        before = stored(client)
        with sink(settings) as process:
            until(lambda: stored(client) > before or process.poll() is not None, "rows", DEADLINE_S)  # noqa: B023  # used in this round
            time.sleep(chance.uniform(0, 0.3))  # anywhere between an insert and what follows it
            assert process.poll() is None
            process.kill()
    total = ROLLOUTS + 1
    produce(settings, ROLLOUTS, total)  # something to do for the last one, so that it is up when it is told to stop
    with sink(settings) as process:
        until(lambda: lag.records() == 0 or process.poll() is not None, "the sink to catch up", DEADLINE_S)
        process.terminate()
        assert process.wait(60) == 0
    lag.close()
    spans = client.query("SELECT span_id, name, sequence FROM v_spans ORDER BY span_id").result_rows
    assert [tuple(s) for s in spans] == [
        (f"{i:016x}", f"n{i % SPANS_EACH}", i % SPANS_EACH) for i in range(total * SPANS_EACH)
    ]
    assert client.query("SELECT count(), sum(value) FROM v_rewards").result_rows == [(total, sum(range(total)))]
    assert client.query("SELECT count(), uniqExact(rollout_id) FROM v_ends").result_rows == [(total, total)]
    audit = client.query("SELECT sum(records), sum(rows), sum(without_record) FROM v_audit").result_rows
    assert audit == [(total * 3, total * 3, 0)]
    client.command(f"DROP DATABASE {settings.clickhouse_database}", use_database=False)
    client.close()
