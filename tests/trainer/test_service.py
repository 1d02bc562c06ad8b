"""The trainer as a service on the embedded broker: what it reads, writes, refuses and reports."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest
from waiting import until

from spanloop.infra.clock import SystemClock
from spanloop.infra.embedded_broker import EmbeddedBroker
from spanloop.infra.kafka import Reader
from spanloop.infra.producer import Producer
from spanloop.infra.registry import Registry
from spanloop.infra.settings import Settings
from spanloop.infra.taking import Taking
from spanloop.schemas.errors import ConfigError
from spanloop.schemas.records import Batch, DeadLetter, Decision, Resource, Trajectory, Worker
from spanloop.schemas.serde import Decoder
from spanloop.schemas.topics import BATCHES, DEAD_LETTERS, DECISIONS, RESOURCES, WORKERS, Record, Topic
from spanloop.trainer.config import TrainerConfig
from spanloop.trainer.feed import NS_PER_MS, KafkaFeed, Logged
from spanloop.trainer.journal import KafkaJournal
from spanloop.trainer.loop import TrainerService
from spanloop.trainer.metrics import read_metrics

Make = Callable[..., Trajectory]
RUN_TIMEOUT_S = 120.0
PRODUCE, TOPIC_AUTHORIZATION_FAILED = 0, 29  # of Kafka's protocol


def read_all(settings: Settings, topic: Topic) -> list[Record]:
    """Every record of a one-partition topic."""
    registry, reader = Registry(settings.registry_url), Reader(settings, "test")
    decoder = Decoder(registry)
    try:
        reader.assign_topics([topic])
        ends = reader.ends()
        out: list[bytes] = []
        while not reader.reached(ends):
            out += [m.value for m in reader.poll() if m.value is not None]
        return [decoder.decode_topic(topic, value) for value in out]
    finally:
        reader.close()
        registry.close()


def test_a_feed_tells_when_each_trajectory_was_written(embedded_settings: Settings, make_trajectory: Make) -> None:
    before = time.time_ns() - NS_PER_MS
    with closing(Producer(embedded_settings, "test")) as producer:
        producer.send_wait(make_trajectory(1.0))
    registry = Registry(embedded_settings.registry_url)
    feed = KafkaFeed(embedded_settings, "run", Taking(Decoder(registry), None, threading.Event()))
    with closing(registry), closing(feed):
        feed.start(None)
        found: list[Logged] = []
        until(lambda: found.extend(feed.poll(0.1)) or bool(found), "a trajectory")
    assert [(f.trajectory.attempt_id, before <= (f.written_ns or 0) <= time.time_ns()) for f in found] == [
        ("at-g-0-1", True)
    ]


def test_a_trainer_in_a_thread_turns_trajectories_into_policy_versions(
    embedded_settings: Settings, config: TrainerConfig, make_trajectory: Make, toy_model: Path
) -> None:
    settings = embedded_settings
    config = replace(config, model_dir=toy_model, total_steps=2, beat_s=0.2)
    producer = Producer(settings, "test")
    broken = make_trajectory(1.0, group="broken", size=1)
    producer.send(replace(broken, rows=[replace(broken.rows[0], mask=b"\x01")]))
    producer.send(make_trajectory(1.0, group="other", size=1, run="another run"))
    val = make_trajectory(1.0, group="val", size=1)
    producer.send(replace(val, context=replace(val.context, mode="val")))
    for group in range(4):
        for sample in range(4):
            producer.send(make_trajectory(float(sample % 2), group=f"g{group}", sample=sample))
    producer.flush()

    service, failures = TrainerService(settings, config), list[BaseException]()

    def run() -> None:
        try:
            service.run(threading.Event())
        except BaseException as error:  # noqa: BLE001  a thread's entry point: the test raises it again
            failures.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    thread.join(RUN_TIMEOUT_S)
    assert not thread.is_alive()
    assert failures == []
    producer.close()

    resources = [r for r in read_all(settings, RESOURCES) if isinstance(r, Resource)]
    assert [(r.version, r.parent_version, r.step) for r in resources] == [(1, None, 0), (2, 1, 1), (3, 2, 2)]
    assert len({r.sha256 for r in resources}) == 3
    batches = [r for r in read_all(settings, BATCHES) if isinstance(r, Batch)]
    assert sorted(g for b in batches for g in b.groups) == ["g0", "g1", "g2", "g3"]
    decisions = [r for r in read_all(settings, DECISIONS) if isinstance(r, Decision)]
    assert {d.outcome for d in decisions} == {"used"}
    letters = [r for r in read_all(settings, DEAD_LETTERS) if isinstance(r, DeadLetter)]
    assert [(d.consumer, d.topic, d.reason) for d in letters] == [("trainer", "trajectories", "bad_packing")]
    beats = [r for r in read_all(settings, WORKERS) if isinstance(r, Worker)]
    assert {(b.role, b.run_id, b.policy, b.credit) for b in beats} == {("trainer", "run", "policy", 80)}
    assert beats[-1].policy_version == 3
    assert [b.alive for b in beats][-1] is False

    reports = read_metrics(config.folder / "metrics.jsonl")
    assert [(r.step, r.groups_used, r.rows, r.tokens, r.skipped) for r in reports] == [
        (1, 2, 8, 16, None),
        (2, 2, 8, 16, None),
    ]
    assert all(r.reward_mean == 0.5 and r.loss is not None and math.isfinite(r.loss) for r in reports)
    assert [r.staleness_max for r in reports] == [0, 1]


def test_a_trainer_whose_heartbeats_are_refused_does_not_go_on_unheard(
    broker: EmbeddedBroker, embedded_settings: Settings
) -> None:
    with closing(Producer(embedded_settings, "test")) as producer:
        registry = Registry(embedded_settings.registry_url)
        taking = Taking(Decoder(registry), None, threading.Event())
        journal = KafkaJournal(embedded_settings, "policy", producer, taking, SystemClock())
        with closing(registry), closing(journal):
            journal.refresh()
            broker.refuse_next(PRODUCE, TOPIC_AUTHORIZATION_FAILED)
            producer.send(Worker("wo-1", "trainer", "trainer"))
            with pytest.raises(ConfigError):
                producer.flush()
            with pytest.raises(ConfigError, match=r"refuses producer test on topic .*-workers: "):
                journal.refresh()


def test_published_weights_load_in_transformers_and_answer_the_probe(
    embedded_settings: Settings, config: TrainerConfig, toy_model: Path
) -> None:
    import json

    import torch
    from transformers import AutoModelForCausalLM

    config = replace(config, model_dir=toy_model)
    stop = threading.Event()
    stop.set()
    TrainerService(embedded_settings, config).run(stop)
    (resource,) = [r for r in read_all(embedded_settings, RESOURCES) if isinstance(r, Resource)]
    model = AutoModelForCausalLM.from_pretrained(resource.uri or "", dtype=torch.float32)  # pyright: ignore[reportUnknownMemberType] loose stubs
    probe = json.loads(resource.probe or "")
    ids = torch.tensor(probe["ids"])
    with torch.no_grad():
        logits: torch.Tensor = model(input_ids=ids[None]).logits[0]
    found = torch.log_softmax(logits, -1)[:-1].gather(1, ids[1:, None])[:, 0]
    assert probe["logprobs"][0] is None
    assert torch.allclose(found, torch.tensor(probe["logprobs"][1:]), atol=1e-5)
