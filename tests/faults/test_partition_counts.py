"""A topic with the wrong number of partitions: whoever needs it names it and ends, before it reads anything."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from uuid import uuid4

import pytest

from spanloop.infra import admin
from spanloop.infra.real_kafka import RealKafka
from spanloop.infra.settings import Settings
from spanloop.schemas.topics import ASSIGNMENTS, REWARDS, TOPICS, Topic

PARTITIONS = 4
WRONG = 3
DEADLINE_S = 90.0


def uneven(kafka: RealKafka, home: Path, wrong: Topic) -> Settings:
    """A fresh prefix in which one topic has a partition too few."""
    settings = Settings(
        bootstrap=kafka.bootstrap,
        registry_url=kafka.registry_url,
        prefix=f"t{uuid4().hex[:12]}",
        partitions=PARTITIONS,
        home=home,
    )
    admin.create(settings.with_(partitions=WRONG), [wrong])
    admin.create(settings, [t for t in TOPICS.values() if t is not wrong])
    admin.register(settings)
    return settings


@pytest.mark.kafka
@pytest.mark.slow
@pytest.mark.parametrize(
    ("wrong", "command"),
    [
        (REWARDS, ["init"]),
        (REWARDS, ["streams", "--only", "assembler"]),
        (ASSIGNMENTS, ["worker", f"{Path(__file__).with_name('fault_agent.py')}:agent"]),
    ],
    ids=["init", "assembler", "worker"],
)
def test_it_is_named_and_the_process_ends(
    real_kafka: RealKafka, tmp_path: Path, wrong: Topic, command: Sequence[str]
) -> None:
    settings = uneven(real_kafka, tmp_path, wrong)
    environment = {**os.environ, **settings.environment(), "FAULTS_DIARY": str(tmp_path / "diary")}
    done = subprocess.run(
        [sys.executable, "-m", "spanloop", *command],
        env=environment,
        capture_output=True,
        text=True,
        timeout=DEADLINE_S,
        check=False,
    )
    said = " ".join((done.stdout + done.stderr).split())
    assert done.returncode == 1, said
    assert "ConfigError" in said
    assert wrong.name in said
    assert f"{WRONG}" in said
    assert "Traceback" not in said
