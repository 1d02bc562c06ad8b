"""The whole loop beside agentlightning 0.3.0: rollouts a second of no-op agents that emit ten spans.

The peer gets an environment of its own (.peer/), made at the first run from the package index. It keeps everything in
the memory of one process; ours is on a real Kafka, with every record acknowledged.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).parent
VENV = HERE.parent.parent / ".peer"
# it works with the opentelemetry of its time only
PACKAGES = [
    "agentlightning==0.3.0",
    *(f"opentelemetry-{part}==1.38.0" for part in ("api", "sdk", "exporter-otlp")),
]
ROLLOUTS, SPANS, RUNNERS = 400, 10, 8
TIMEOUT_S = 600


def environment() -> Path:
    """The peer's Python; made where it is missing."""
    python = VENV / "bin" / "python"
    ready = VENV / "ready"
    if not ready.exists():
        subprocess.run([sys.executable, "-m", "venv", str(VENV)], check=True)
        subprocess.run([str(python), "-m", "pip", "install", "-q", *PACKAGES], check=True)
        ready.touch()
    return python


def figures(command: list[str]) -> dict[str, float]:
    """The figures in the last line of JSON that a program printed."""
    offline = {**os.environ, "LITELLM_LOCAL_MODEL_COST_MAP": "True"}  # else it fetches a price list at import
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=TIMEOUT_S, env=offline)
    lines = [line for line in done.stdout.splitlines() if line.startswith('{"figures"')]
    if not lines:
        raise RuntimeError(f"{command} printed no figures:\n{done.stdout[-1500:]}{done.stderr[-1500:]}")
    return json.loads(lines[-1])["figures"]


def main() -> dict[str, float]:
    counts = [str(n) for n in (ROLLOUTS, SPANS, RUNNERS)]
    peer = figures([str(environment()), str(HERE / "peer_agentlightning.py"), *counts])
    ours = figures([sys.executable, str(HERE / "bench_e2e.py")])
    return {
        **{f"agentlightning_{name}": peer[name] for name in ("rollouts_per_s", "spans_per_s")},
        **{f"spanloop_{name}": ours[name] for name in ("rollouts_per_s", "spans_per_s")},
        "times_the_rollouts": ours["rollouts_per_s"] / peer["rollouts_per_s"],
    }


if __name__ == "__main__":
    sys.stdout.write(json.dumps({"figures": main()}) + "\n")
