"""The whole loop for three policy versions: in one process and as processes, embedded and on a real Kafka."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from waiting import until

from spanloop.consumers.tail import exported
from spanloop.demo import BATCH, CACHES, GROUPS_PER_BATCH
from spanloop.infra.real_kafka import missing
from spanloop.trainer.metrics import StepReport, read_metrics

STEPS = 3
TIMEOUT_S = 400.0
# What Ctrl-C promises from the signal to the end of the process. The demo's own deadline is a little shorter, and held
# by a thread that ends the process; on a loaded machine that thread, the kernel that takes down a process with torch in
# it, and this test wait for a processor besides.
PROMISE_S, LOADED_S = 5.0, 2.0
ON_KAFKA = pytest.param("--kafka", marks=pytest.mark.kafka)


def command(home: Path, *extra: str, steps: int = STEPS) -> list[str]:
    flags = ["--home", str(home), "--rollouts", str(steps * BATCH), "--warm-steps", "100"]
    return [sys.executable, "-m", "spanloop", "demo", *flags, *(flag for flag in extra if flag)]


def sql(home: Path, statement: str) -> list[str]:
    return [sys.executable, "-m", "spanloop", "sql", "--home", str(home), "--format", "json", statement]


def without(*names: str) -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if name not in names}


def ask(home: Path, statement: str) -> list[list[Any]]:
    done = subprocess.run(sql(home, statement), capture_output=True, text=True, check=True)
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
    elsewhere = {name: tmp_path / name for name in ("HOME", "TMPDIR")}
    for folder in elsewhere.values():
        folder.mkdir()
    done = subprocess.run(
        command(home, broker, processes, "--report", str(report)),
        capture_output=True, text=True, check=False, timeout=TIMEOUT_S,
        env={**without(*CACHES), **{name: str(folder) for name, folder in elsewhere.items()}},
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
    assert [file for folder in elsewhere.values() for file in folder.rglob("*")] == []
    steps = read_metrics(home / "trainer" / "metrics.jsonl")
    every_row_is_trained_or_dropped(home, figures, steps)
    engine_and_trainer_agree(steps)


def every_row_is_trained_or_dropped(home: Path, figures: dict[str, Any], steps: list[StepReport]) -> None:
    """As the trainer counted them."""
    assert figures["rows_trained"] == sum(step.rows for step in steps)
    assert figures["rows_dropped"] == sum((Counter(step.rows_dropped) for step in steps), Counter[str]())
    told = figures["rows_trained"] + sum(figures["rows_dropped"].values())
    assert ask(home, "select sum(row_count) from v_trajectories") == [[told]]


def engine_and_trainer_agree(steps: list[StepReport]) -> None:
    """Over every trained token drawn from the very weights that a step starts from, |Δ log-prob| stays below 1e-4."""
    fresh = [step.metrics for step in steps if step.metrics.get("onpolicy_tokens")]
    assert fresh, steps
    assert max(step["onpolicy_abs_diff_max"] for step in fresh) < 1e-4


# What has been made by then in the run's folder.
MOMENTS = {
    "services start": "clickhouse/stderr.log",
    "the policy is warmed up": "policy",
    "the parts start": "logs",
    "rollouts come in": "topics/trajectories.avro",
}


@pytest.mark.demo
@pytest.mark.slow
@pytest.mark.parametrize(
    ("moment", "processes"),
    [*((moment, "") for moment in MOMENTS), ("rollouts come in", "--processes")],
)
def test_an_interrupt_at_any_moment_ends_in_time_and_leaves_a_folder_that_can_be_read(
    moment: str, processes: str, tmp_path: Path
) -> None:
    home, report = tmp_path / "run", tmp_path / "report.json"
    flags = ["--report", str(report), "--warm-steps", "20", processes]
    run = subprocess.Popen(command(home, *flags, steps=20), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    until((home / MOMENTS[moment]).exists, moment)
    began = time.monotonic()
    run.send_signal(signal.SIGINT)
    output, _ = run.communicate(timeout=60)
    took_s = time.monotonic() - began
    assert run.returncode == 130, output[-3000:]
    assert took_s < PROMISE_S + LOADED_S, output[-3000:]
    assert "interrupted: flushing" in output
    assert "A thread cannot be killed" not in output
    figures = json.loads(report.read_text("utf-8"))
    assert figures["interrupted"]
    if moment == "services start":
        assert figures["rollouts"] is None
        asked = subprocess.run(sql(home, "select 1"), capture_output=True, text=True, check=False)
        assert "interrupted before they were made" in " ".join(asked.stderr.split())
        return
    assert figures["trajectories"] is not None
    stored = ask(home, "select count() from v_trajectories")[0][0]
    if moment == "rollouts come in":
        kept = len({line["record"]["attempt_id"] for line in exported(home, "trajectories")})
        assert 0 < stored <= kept
