"""The sink on a broker, a registry and a ClickHouse that come and go."""

from __future__ import annotations

import threading
from pathlib import Path

from sink_rig import Lab
from waiting import until

from spanloop.consumers.pump import PumpPolicy
from spanloop.consumers.sink import GROUP, SINK_TOPICS, SinkService
from spanloop.infra.clickhouse import connect, migrate
from spanloop.infra.embedded_clickhouse import ClickHouseProcess
from spanloop.infra.kafka import Member
from spanloop.infra.lag import Lag
from spanloop.infra.producer import Producer
from spanloop.infra.settings import Settings
from spanloop.schemas.topics import SPANS

POLICY = PumpPolicy(max_wait_s=0.2, retry_s=0.1)


class Running:
    """A sink in a thread; its error is raised when it is stopped."""

    def __init__(self, settings: Settings) -> None:
        self.stop = threading.Event()
        self.error: BaseException | None = None
        self._settings = settings
        self.thread = threading.Thread(target=self._run)
        self.thread.start()

    def _run(self) -> None:
        try:
            SinkService(self._settings, POLICY).run(self.stop)
        except Exception as error:  # noqa: BLE001  # shown by the test's own thread
            self.error = error

    def end(self) -> None:
        self.stop.set()
        self.thread.join(60)
        assert not self.thread.is_alive()
        if self.error is not None:
            raise self.error


def port_of(url: str) -> int:
    return int(url.rsplit(":", 1)[1])


def test_an_outage_of_clickhouse_delays_records_and_loses_none(embedded_settings: Settings, tmp_path: Path) -> None:
    # CH-8
    with ClickHouseProcess(tmp_path / "clickhouse") as first:
        port = port_of(first.url)
        settings = embedded_settings.with_(clickhouse_url=first.url)
        client = connect(settings)
        migrate(client, settings.clickhouse_database)
        client.close()
    sink = Running(settings)  # started while nobody answers
    lag = Lag(settings, GROUP, SINK_TOPICS)
    producer = Producer(settings, "test")
    for i in range(1000):
        spans = [Lab.span(f"{i * 10 + k:016x}", sequence=k) for k in range(10)]
        producer.send(Lab.batch(*spans, rollout_id=f"ro-{i}"))
    producer.flush()
    with ClickHouseProcess(tmp_path / "clickhouse", port):
        client = connect(settings)
        until(lambda: client.query("SELECT count() FROM v_spans").result_rows[0][0] == 10_000)
        until(lambda: lag.records() == 0)
        client.close()
    # away again, now under a running member: what comes is kept back, the member stays
    producer.send(Lab.batch(Lab.span("f" * 16), rollout_id="ro-late"))
    producer.close()
    until(lambda: lag.records() == 1)
    with ClickHouseProcess(tmp_path / "clickhouse", port):
        client = connect(settings)
        until(lambda: client.query("SELECT count() FROM v_spans").result_rows[0][0] == 10_001)
        until(lambda: lag.records() == 0)
        sink.end()
        lag.close()
        assert client.query("SELECT sum(rows), sum(quarantined) FROM v_audit").result_rows == [(1001, 0)]
        client.close()


def test_stopping_the_sink_stores_and_commits_what_it_holds(embedded_settings: Settings, clickhouse_url: str) -> None:
    settings = embedded_settings.with_(
        clickhouse_url=clickhouse_url, clickhouse_database=f"stop_{embedded_settings.prefix}"
    )
    client = connect(settings)
    migrate(client, settings.clickhouse_database)
    producer = Producer(settings, "test")
    producer.send_wait(Lab.batch(Lab.span("s1")))
    producer.close()
    sink = Running(settings)
    until(lambda: client.query("SELECT count() FROM v_spans").result_rows[0][0] == 1)
    sink.end()
    member = Member(settings, GROUP, [SPANS])
    until(lambda: member.poll(10, 0.1) == [] and len(member.assignment()) == settings.partitions)
    assert sum(member.committed().values()) == 1
    member.close()
    client.command(f"DROP DATABASE {settings.clickhouse_database}", use_database=False)
    client.close()
