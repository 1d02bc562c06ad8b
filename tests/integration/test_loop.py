"""The whole loop for three policy versions: in one process and as processes, embedded and on a real Kafka."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from spanloop.consumers.tail import exported
from spanloop.demo import BATCH, GROUPS_PER_BATCH
from spanloop.infra.real_kafka import missing

STEPS = 3
TIMEOUT_S = 400.0
ON_KAFKA = pytest.param("--kafka", marks=pytest.mark.kafka)


def command(home: Path, *extra: str, steps: int = STEPS) -> list[str]:
    flags = ["--home", str(home), "--rollouts", str(steps * BATCH), "--warm-steps", "100"]
    return [sys.executable, "-m", "spanloop", "demo", *flags, *(flag for flag in extra if flag)]


def ask(home: Path, statement: str) -> list[list[Any]]:
    asked = [sys.executable, "-m", "spanloop", "sql", "--home", str(home), "--format", "json", statement]
    done = subprocess.run(asked, capture_output=True, text=True, check=True)
    return [list(row.values()) for row in json.loads(done.stdout)]


@pytest.mark.demo
@pytest.mark.slow
@pytest.mark.timeout(TIMEOUT_S + 20)
@pytest.mark.parametrize("processes", ["", "--processes"], ids=["threads", "processes"])
@pytest.mark.parametrize("broker", ["", ON_KAFKA], ids=["embedded", "kafka"])
def test_the_loop_turns_for_three_policy_versions_and_loses_nothing(
    broker: str, processes: str, tmp_path: Path
) -> None:
    if broker and (reason := missing()):
        if os.environ.get("CI") == "true":
            pytest.fail(f"CI must run the loop on a real Kafka: {reason}")
        pytest.skip(f"no real Kafka: {reason}")
    home, report = tmp_path / "run", tmp_path / "report.json"
    done = subprocess.run(
        command(home, broker, processes, "--report", str(report)),
        capture_output=True, text=True, check=False, timeout=TIMEOUT_S,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    figures = json.loads(report.read_text("utf-8"))
    rollouts = STEPS * BATCH
    assert figures["rollouts"] == rollouts
    assert figures["trajectories"] == rollouts
    assert figures["model_calls"] == 2 * rollouts
    assert figures["policy_versions"] == STEPS + 1
    assert figures["groups"] == STEPS * GROUPS_PER_BATCH
    assert figures["dead_letters"] == 0
    assert figures["max_staleness_trained"] <= 4
    assert len({line["record"]["attempt_id"] for line in exported(home, "trajectories")}) == rollouts
    assert ask(home, "select count() from v_trajectories where final") == [[rollouts]]
    engine_and_trainer_agree(home)


def engine_and_trainer_agree(home: Path) -> None:
    """Over every trained token drawn from the very weights that a step starts from, |Δ log-prob| stays below 1e-4."""
    lines = (home / "trainer" / "metrics.jsonl").read_text("utf-8").splitlines()
    steps = [json.loads(line)["metrics"] for line in lines]
    fresh = [step for step in steps if step.get("onpolicy_tokens")]
    assert fresh, steps
    assert max(step["onpolicy_abs_diff_max"] for step in fresh) < 1e-4


@pytest.mark.demo
@pytest.mark.slow
def test_an_interrupted_run_exits_cleanly_and_its_folder_can_be_read(tmp_path: Path) -> None:
    home = tmp_path / "run"
    topic = home / "topics" / "trajectories.avro"
    run = subprocess.Popen(command(home, steps=20), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    deadline = time.monotonic() + TIMEOUT_S
    while not (topic.is_file() and topic.stat().st_size > 50_000):
        assert run.poll() is None, run.communicate()[0][-3000:]
        assert time.monotonic() < deadline
        time.sleep(0.1)
    run.send_signal(signal.SIGINT)
    output, _ = run.communicate(timeout=60)
    assert run.returncode == 130, output[-3000:]
    stored = ask(home, "select count() from v_trajectories")[0][0]
    assert stored == len({line["record"]["attempt_id"] for line in exported(home, "trajectories")})
    assert stored > 0
