"""What a rollout costs as rollouts grow to 100,000: the first and the last tenth of them, and a start behind them all.

The processor time is that of controller, assembler and worker together, so it holds on a busy machine too (Linux only).
"""

from __future__ import annotations

import json
import sys
import time
from contextlib import closing

from bench_e2e import broker, loop, task, wait_for
from processor_time import cpu_s

from spanloop.infra.kafka import Reader
from spanloop.infra.producer import Producer
from spanloop.schemas.topics import TRAJECTORIES

ROLLOUTS, PORTIONS = 100_000, 10


def portion(to: Producer, reader: Reader, count: int) -> None:
    for _ in range(count):
        to.send(task())
    wait_for(reader, count)


def main() -> dict[str, float]:
    figures: dict[str, float] = {}
    with broker() as settings, closing(Reader(settings, "bench")) as reader, closing(Producer(settings, "bench")) as to:
        reader.assign_topics([TRAJECTORIES])
        for start in ("empty", "behind_all"):
            began = time.monotonic()
            with loop(settings) as parts:
                portion(to, reader, 1)
                figures[f"start_{start}_s"] = time.monotonic() - began
                for i in range(PORTIONS if start == "empty" else 0):
                    began, used = time.monotonic(), cpu_s(*parts.pids().values())
                    portion(to, reader, ROLLOUTS // PORTIONS)
                    if i in (0, PORTIONS - 1):
                        name = "last" if i else "first"
                        figures[f"{name}_tenth_rollouts_per_s"] = ROLLOUTS / PORTIONS / (time.monotonic() - began)
                        cpu = cpu_s(*parts.pids().values()) - used
                        figures[f"{name}_tenth_cpu_ms_per_rollout"] = 1000 * cpu / (ROLLOUTS / PORTIONS)
    return figures


if __name__ == "__main__":
    sys.stdout.write(json.dumps({"figures": main()}) + "\n")
