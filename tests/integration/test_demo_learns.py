"""The demo learns on seeds that nobody chose, and does not where it must not."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parent.parent.parent
TIMEOUT_S = 560
GOAL = 0.95
CONTROL_BOUND = 0.6
# By then a run that learns is past the bound; see the curve in the README.
CONTROL_ROLLOUTS = 1280


def seeds() -> list[int]:
    """In CI three seeds drawn from the commit's hash, elsewhere seed 0."""
    if os.environ.get("CI") != "true":
        return [0]
    asked = subprocess.run(["git", "rev-parse", "HEAD"], cwd=ROOT, capture_output=True, text=True, check=True)
    digest = hashlib.sha256(asked.stdout.strip().encode()).digest()
    return [int.from_bytes(digest[2 * i : 2 * i + 2], "big") for i in range(3)]


def demo(folder: Path, *flags: str) -> dict[str, Any]:
    """The report of a run."""
    report = folder / "report.json"
    command = [sys.executable, "-m", "spanloop", "demo", "--home", str(folder / "run"), "--report", str(report), *flags]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=TIMEOUT_S)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    return json.loads(report.read_text("utf-8"))


@pytest.mark.demo
@pytest.mark.slow
@pytest.mark.timeout(TIMEOUT_S + 20)
@pytest.mark.parametrize("seed", seeds())
def test_the_agent_learns_through_the_whole_loop(seed: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    figures = demo(tmp_path, "--seed", str(seed))
    told = {name: figures[name] for name in ("seed", "wall_s", "reward_first", "reward_last", "max_staleness_trained")}
    with capsys.disabled():
        sys.stdout.write(f"\ndemo: {json.dumps(told)}\n")
    assert figures["rollouts"] < 3800
    assert 0.2 < figures["reward_first"] < 0.6
    assert figures["reward_last"] >= GOAL
    assert figures["max_staleness_trained"] <= 4
    assert figures["dead_letters"] == 0


@pytest.mark.demo
@pytest.mark.slow
@pytest.mark.timeout(TIMEOUT_S + 20)
@pytest.mark.parametrize("control", ["frozen", "shuffled"])
def test_nothing_is_learned_without_new_weights_or_with_shuffled_rewards(control: str, tmp_path: Path) -> None:
    figures = demo(tmp_path, "--control", control, "--rollouts", str(CONTROL_ROLLOUTS))
    assert figures["rollouts"] == CONTROL_ROLLOUTS
    assert figures["policy_versions"] > 1
    assert figures["reward_last"] < CONTROL_BOUND
