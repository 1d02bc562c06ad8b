"""The access rules of docs/security.md on a broker that enforces them: enough for the loop and every tool, and what is
refused without them is told by name.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import ExitStack, closing
from dataclasses import replace
from pathlib import Path
from threading import Event
from typing import Any, TypeAlias
from uuid import uuid4

import httpx
import pytest
from access_rig import allow, settings_of
from confluent_kafka import Producer as RawProducer
from faults import trainee
from faults.slow_engine import SlowEngine
from in_thread import in_thread
from waiting import until

from spanloop import cli
from spanloop.consumers import letters
from spanloop.consumers.export import ExportService
from spanloop.consumers.sink import SinkService
from spanloop.infra import admin
from spanloop.infra.access import PARTS
from spanloop.infra.clickhouse import connect, migrate
from spanloop.infra.doctor_fix import alter
from spanloop.infra.embedded_registry import EmbeddedRegistry
from spanloop.infra.lag import Lag
from spanloop.infra.process import Part
from spanloop.infra.producer import Producer
from spanloop.infra.real_kafka import RealKafka, free_port
from spanloop.infra.settings import Settings
from spanloop.producers.agent import rollout
from spanloop.producers.gateway import GatewayService
from spanloop.producers.llm import LLM
from spanloop.producers.worker import WorkerPolicy, WorkerService
from spanloop.schemas.errors import ConfigError, SpanloopError
from spanloop.schemas.records import Assignment, Limits, Task
from spanloop.schemas.serde import frame
from spanloop.schemas.topics import ATTEMPTS, RESOURCES, REWARDS, TRAJECTORIES
from spanloop.streams.assembler_service import AssemblerService
from spanloop.streams.controller_shell import ControllerService
from spanloop.trainer import loop
from spanloop.trainer.loader import LoaderService

pytestmark = [pytest.mark.kafka, pytest.mark.slow]
TIMEOUT_S = 60.0
RUN = "run"
Makers: TypeAlias = dict[str, Callable[[Settings], Part]]
# Rules of a kind, and what is said without them.
KINDS = {
    "reads": (["reads"], r"on (its topics|[a-z]+\[\d\]): .*Topic authorization failed"),
    "writes": (["writes"], "on every topic: "),
    "groups": (["joins", "asks"], "on group {prefix}-[a-z0-9-]+: "),
    "transactional": (["transactional"], "on transactional id {prefix}-controller: "),
}


@rollout
def agent(task: dict[str, Any], llm: LLM) -> float:
    """Asks the model once and returns the reward that its task names."""
    body = {"model": llm.model, "messages": [{"role": "user", "content": "hi"}]}
    headers = {"Authorization": f"Bearer {llm.api_key}"}
    httpx.post(f"{llm.base_url}/chat/completions", json=body, headers=headers, timeout=30).raise_for_status()
    return float(task["reward"])


@pytest.fixture
def makers(monkeypatch: pytest.MonkeyPatch) -> Iterator[Makers]:
    """Every part of the loop. The trainer has a toy policy and ends after a step; the loader finds no engine."""
    monkeypatch.setattr(loop, "make_trainer", trainee.make)

    def gateway(settings: Settings) -> Part:
        return GatewayService(settings, port=int(settings.gateway_url.rpartition(":")[2]), upstream_url=engine.url)

    def trainer(settings: Settings) -> Part:
        config = trainee.config(settings.home / settings.prefix, RUN, 1)
        return loop.TrainerService(settings, replace(config, total_steps=1, beat_s=0.2))

    with closing(SlowEngine()) as engine:
        yield {
            "controller": ControllerService,
            "assembler": AssemblerService,
            "gateway": gateway,
            "worker": lambda settings: WorkerService(settings, agent, WorkerPolicy(slots=2, trace=False)),
            "sink": SinkService,
            "loader": lambda settings: LoaderService(settings, "http://127.0.0.1:1", "policy", name="loader"),
            "trainer": trainer,
        }


@pytest.fixture
def common(registry: EmbeddedRegistry, clickhouse_url: str, tmp_path: Path) -> Settings:
    """All but a user and the broker's address."""
    settings = Settings(
        registry_url=registry.url,
        clickhouse_url=clickhouse_url,
        clickhouse_database=f"a{uuid4().hex[:8]}",
        gateway_url=f"http://127.0.0.1:{free_port()}",
        secret="s",
        prefix=f"a{uuid4().hex[:8]}",
        partitions=2,
        home=tmp_path,
    )
    migrate(connect(settings), settings.clickhouse_database)
    return settings


def test_the_loop_turns_and_every_tool_works_under_exactly_these_rules(
    real_kafka: RealKafka,
    common: Settings,
    makers: Makers,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    def of(part: str) -> Settings:
        return settings_of(part, real_kafka, common)

    def ran(part: str, *command: str) -> str:
        """What a command says to the user of this part."""
        for name, value in of(part).environment().items():
            monkeypatch.setenv(name, value)
        monkeypatch.setattr(sys, "argv", ["spanloop", *command])
        with pytest.raises(SystemExit) as ended:
            cli.main()
        said = capsys.readouterr()
        assert not ended.value.code, f"{command}: {said.err}{said.out}"
        return said.out

    def stored(what: str) -> int:
        with closing(connect(common)) as client:
            return int(client.rows(f"SELECT count() AS n FROM {what}")[0]["n"])

    monkeypatch.chdir(common.home)
    allow(real_kafka, common.prefix, PARTS)
    schema_ids, junk = admin.init(of("init")), RawProducer({"bootstrap.servers": real_kafka.bootstrap})
    for topic in (REWARDS, ATTEMPTS, RESOURCES, TRAJECTORIES):  # each part has to write a dead letter about one
        junk.produce(topic.full(common.prefix), frame(schema_ids[topic.name], b""), b"ro-0", 0)
    assert junk.flush(TIMEOUT_S) == 0
    with ExitStack() as stack:
        runs = {name: stack.enter_context(in_thread(make(of(name)), TIMEOUT_S)) for name, make in makers.items()}
        task = Task("ro-0", RUN, group_id="g", group_size=2, pins={"policy": None}, limits=Limits(timeout_s=60))
        with closing(Producer(of("orders, tasks"), "tasks")) as producer:
            for i in range(2):
                producer.send_wait(replace(task, rollout_id=f"ro-{i}", sample=i, input=f'{{"reward": {i}}}'))

        def trained() -> bool:
            assert [run.raised for run in runs.values() if run.raised] == []
            return not runs["trainer"].thread.is_alive()

        until(trained, "the trainer's step", TIMEOUT_S)
        until(lambda: stored("v_rollouts WHERE status = 'succeeded'") == 2, "the sink's rollouts", TIMEOUT_S)
        until(lambda: stored("v_decisions") == 1, "the sink's decision", TIMEOUT_S)
        assert {x.dead.consumer for x in letters.read(of("dead letters"))} == set(makers)

    ran("init", "init")
    assert '"committed"' in ran("lag", "lag", "--format", "json")
    alter(common.with_(bootstrap=real_kafka.bootstrap), {"decisions": {"retention.ms": "1000"}})
    assert "retention.ms" in ran("doctor --fix", "doctor", "--fix").partition("broker")[0]
    said = ran("doctor", "doctor")
    assert all(f"ok    {check}" in said for check in ("topic settings", "transactions: none", "lag sink")), said
    ran("tail, export, assemble", "tail", "rollouts", "--from-beginning", "-n", "1")
    ran("tail, export, assemble", "assemble", "--from-log", "ro-0")
    with in_thread(ExportService(of("tail, export, assemble"), common.home / "topics"), TIMEOUT_S):
        until((common.home / "topics" / "batches.avro").is_file, "the export")
    ran("orders, tasks", "requeue", "ro-0")
    ran("dead letters", "dlq", "show", "0")
    assert "put back letter" in ran("dead letters, replay", "dlq", "replay", "--topic", "rewards")


def test_a_part_without_some_of_its_rules_ends_and_says_what_it_is_refused(
    real_kafka: RealKafka, common: Settings, makers: Makers
) -> None:
    cases: list[tuple[Settings, str, str]] = []
    for kind, (fields, _) in KINDS.items():
        one = common.with_(prefix=f"{common.prefix}-{kind}", gateway_url=f"http://127.0.0.1:{free_port()}")
        admin.init(direct := one.with_(bootstrap=real_kafka.bootstrap))
        with closing(Producer(direct, "test")) as producer:
            producer.send_wait(Assignment("wo-0", "at-0", "cancel"))  # something for the sink, and for nobody else
        for part in makers:
            some = replace(PARTS[part], **dict.fromkeys(fields, ()))
            user = "lag" if kind == "writes" else part  # who may write nowhere at all is refused at once
            allow(real_kafka, one.prefix, {user: some})
            if some != PARTS[part]:
                cases.append((settings_of(user, real_kafka, one), part, kind))

    stop = Event()

    def ended(settings: Settings, part: str) -> str:
        try:
            makers[part](settings).run(stop)
        except SpanloopError as error:
            return f"{type(error).__name__}: {error}"
        return "it did not end by itself"

    with ThreadPoolExecutor(len(cases)) as pool:
        asked = [pool.submit(ended, settings, part) for settings, part, _ in cases]
        wait(asked, TIMEOUT_S)
        stop.set()
    for (settings, part, kind), said in zip(cases, asked, strict=True):
        told = f"(ConfigError|NotAllowed): .* refuses .*{KINDS[kind][1].format(prefix=settings.prefix)}"
        assert re.match(told, said.result()), f"{part} without {kind}"
    group = f"on group {common.prefix}-sink: "
    lag = Lag(settings_of("lag", real_kafka, common), "sink", [REWARDS])
    with closing(lag), pytest.raises(ConfigError, match=group):
        lag.records()
