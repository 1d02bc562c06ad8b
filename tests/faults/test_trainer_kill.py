"""A trainer on a real Kafka, killed at every point of a step: each batch is applied once, bit for bit."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from spanloop.infra.clock import SystemClock
from spanloop.infra.kafka import Reader
from spanloop.infra.producer import Producer
from spanloop.infra.registry import Registry
from spanloop.infra.settings import Settings
from spanloop.schemas.packed import NAN, pack_ids, pack_logprobs
from spanloop.schemas.records import (
    AttemptContext,
    Batch,
    Call,
    Decision,
    Resource,
    Row,
    Sampling,
    Segment,
    Trajectory,
    VersionRun,
)
from spanloop.schemas.serde import Decoder
from spanloop.schemas.topics import BATCHES, DECISIONS, RESOURCES, TOPICS, Record, Topic
from spanloop.trainer.batch import StepContext, mini_batches, plan
from spanloop.trainer.config import TrainerConfig
from spanloop.trainer.groups import ClosedGroup, group_of
from spanloop.trainer.lineage import Lineage
from spanloop.trainer.step import make_trainer
from spanloop.trainer.tiny import make_policy
from spanloop.trainer.weights import stage_weights

CHILD = Path(__file__).with_name("trainer_child.py")
STEPS, GROUPS_PER_BATCH, MEMBERS = 6, 2, 3
Kill = tuple[str, int]  # a point of the loop, a step
# (where it is killed, groups in the log by then): the log still grows while it is down
LIVES: tuple[tuple[Kill | None, int], ...] = (
    (("recorded", 1), 3),
    (("stepped", 2), 6),
    (("checkpointed", 4), 8),
    (("published", 5), 10),
    (("decided", 5), 11),
    (None, STEPS * GROUPS_PER_BATCH),
)


def member(group: int, sample: int, revision: int = 4) -> Trajectory:
    """A rollout of its group with a row of its own."""
    ids = [3 + (5 * group + 7 * sample + 3 * i) % 60 for i in range(6 + sample)]
    length = len(ids)
    return Trajectory(
        rollout_id=f"ro-{group}-{sample}",
        attempt_id=f"at-{group}-{sample}",
        revision=revision,
        input_digest=f"{group}-{sample}-{revision}",
        context=AttemptContext(run_id="run", group_id=f"group-{group}", sample=sample, group_size=MEMBERS),
        final=True,
        rows=[
            Row(
                token_ids=pack_ids(ids),
                mask=bytes([0] * 3 + [1] * (length - 3)),
                logprobs=pack_logprobs([NAN] * 3 + [-4.0 - 0.1 * sample] * (length - 3)),
                policy="policy",
                policy_versions=[VersionRun(1, 3, length)],
                segments=[Segment(3, length, 0)],
                sampling=Sampling(temperature=1.0),
            )
        ],
        calls=[Call(span_id="0" * 16)],
        final_reward=float((group + sample) % 3),
    )


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
        return [decoder.decode_topic(TOPICS[topic.name], value) for value in out]
    finally:
        reader.close()
        registry.close()


class Lives:
    """Starts lives of a trainer one after another; what they said is in `log`."""

    def __init__(self, log: Path) -> None:
        self.log = log
        with log.open("w") as said:
            self._parent = subprocess.Popen(
                [sys.executable, str(CHILD)],
                env=os.environ | {"OMP_NUM_THREADS": "1"},
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=said,
                text=True,
            )

    def live(self, settings: Settings, config: TrainerConfig, kill: Kill | None) -> int:
        """The exit status of a trainer that ran to its end or its kill."""
        assert self._parent.stdin is not None
        assert self._parent.stdout is not None
        given = {name: getattr(config, name) for name in config.__slots__}
        life = {"environment": settings.environment(), "config": given, "kill": kill}
        self._parent.stdin.write(json.dumps(life, default=str) + "\n")
        self._parent.stdin.flush()
        return int(self._parent.stdout.readline())

    def __enter__(self) -> Lives:
        return self

    def __exit__(self, *_: object) -> None:
        self._parent.kill()
        self._parent.wait()
        for pipe in (self._parent.stdin, self._parent.stdout):
            if pipe is not None:
                pipe.close()


def witness(config: TrainerConfig, batches: Sequence[Batch], lineage: Lineage) -> list[str]:
    """Digests of the weights after each batch, applied once in order with nothing else going on."""
    trainer = make_trainer(config)
    digests: list[str] = []
    for batch in batches:
        groups: dict[str, list[Trajectory]] = {g: [] for g in batch.groups}
        for m in batch.members:
            t = member(*map(int, m.attempt_id.split("-")[1:]), revision=m.revision)
            groups[group_of(t)].append(t)
        closed = [ClosedGroup(g, tuple(own), MEMBERS) for g, own in groups.items()]
        chain = lineage.chain(batch.policy_version)
        step = plan(closed, config, StepContext(batch.step, batch.policy_version, chain))
        trainer.step(mini_batches(step.rows, config.mini_batches), batch.seed)
        _, digest = stage_weights(config.folder.with_name("witness"), config.model_dir, trainer.weights())
        digests.append(digest)
    return digests


@pytest.mark.kafka
@pytest.mark.slow
@pytest.mark.timeout(900)
def test_a_trainer_killed_at_every_point_of_a_step_publishes_the_weights_of_an_undisturbed_run(
    kafka_settings: Settings, tmp_path: Path
) -> None:
    settings = kafka_settings
    assert settings.partitions >= 3
    make_policy(tmp_path / "model", seed=0)
    config = TrainerConfig(
        run_id="run",
        trainer_id="tr",
        policy="policy",
        model_dir=tmp_path / "model",
        folder=tmp_path / "trainer",
        correction="mu",
        total_steps=STEPS,
        groups_per_batch=GROUPS_PER_BATCH,
        checkpoint_every=2,
        max_staleness=9,
        mini_batches=2,
        no_engine_s=30.0,
    )
    producer = Producer(settings, "test")
    written = 0
    with Lives(tmp_path / "lives.log") as lives:
        for kill, groups in LIVES:
            for group in range(written, groups):
                for sample in range(MEMBERS):
                    producer.send(member(group, sample))
                producer.send(member(group, 0, revision=9))  # comes for a closed group, or wins before it closes
            producer.flush()
            written = groups
            status = lives.live(settings, config, kill)
            assert status == (-signal.SIGKILL if kill else 0), lives.log.read_text()[-4000:]
    producer.close()

    batches = [r for r in read_all(settings, BATCHES) if isinstance(r, Batch)]
    resources = [r for r in read_all(settings, RESOURCES) if isinstance(r, Resource)]
    decisions = [r for r in read_all(settings, DECISIONS) if isinstance(r, Decision)]
    assert [b.step for b in batches] == list(range(1, STEPS + 1))
    assert [(r.version, r.parent_version) for r in resources] == [(1, None), *((v + 1, v) for v in range(1, STEPS + 1))]
    assert {d.group_id for d in decisions} == {f"group-{g}" for g in range(written)}
    attempts = [m.attempt_id for b in batches for m in b.members]
    assert len(attempts) == len(set(attempts)) == written * MEMBERS
    lineage = Lineage("policy")
    for resource in resources:
        lineage.add(resource)
    wanted = witness(replace(config, folder=tmp_path / "witness"), batches, lineage)
    assert [r.sha256 for r in resources[1:]] == wanted
    assert len(set(wanted)) == STEPS
    assert all(r.created_ns <= SystemClock().now_ns() for r in resources)
