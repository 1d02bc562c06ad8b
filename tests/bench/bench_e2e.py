"""Rollouts a second through the whole loop on a real Kafka, each agent emitting ten spans.

Controller, assembler and worker are a process each; the clock runs from the first task to the last trajectory.
"""

from __future__ import annotations

import json
import sys
import tempfile
import time
from collections.abc import Generator
from contextlib import closing, contextmanager
from pathlib import Path

from spanloop.infra import admin
from spanloop.infra.kafka import Reader, partitions
from spanloop.infra.producer import Producer
from spanloop.infra.real_kafka import RealKafka
from spanloop.infra.settings import Settings
from spanloop.parts import Processes
from spanloop.schemas import ids
from spanloop.schemas.records import Task
from spanloop.schemas.topics import TOPICS, TRAJECTORIES

ROLLOUTS = 3000
SPANS = 10
SLOTS = 8
WARM_UP = 20
AGENT = f"{Path(__file__).parent / 'noop_agent.py'}:noop"
PATIENCE_S = 180.0


def task() -> Task:
    return Task(rollout_id=ids.rollout_id(), run_id="bench", mode="val", created_ns=time.time_ns())


def wait_for(reader: Reader, count: int) -> None:
    """Waits for so many trajectories."""
    deadline = time.monotonic() + PATIENCE_S
    while count > 0:
        count -= len(reader.poll(5000, 0.01))
        if time.monotonic() > deadline:
            raise TimeoutError(f"{count} trajectories did not come within {PATIENCE_S:g} s")


def records(reader: Reader, settings: Settings) -> int:
    """Records in all topics."""
    everything = [(t.name, p) for t in TOPICS.values() for p in range(partitions(settings, t))]
    return sum(high - low for low, high in map(reader.watermarks, everything))


@contextmanager
def broker() -> Generator[Settings]:
    """A real Kafka with its topics."""
    with tempfile.TemporaryDirectory() as folder, RealKafka(Path(folder)) as kafka:
        settings = Settings(
            bootstrap=kafka.bootstrap, registry_url=kafka.registry_url, prefix="bench", home=Path(folder)
        )
        admin.init(settings)
        yield settings


@contextmanager
def loop(settings: Settings) -> Generator[Processes]:
    """Controller, assembler and worker, each a process."""
    with Processes(settings, settings.home / "logs") as parts:
        parts.start("controller", ["streams", "--only", "controller"])
        parts.start("assembler", ["streams", "--only", "assembler"])
        parts.start("worker", ["worker", AGENT, "--slots", str(SLOTS)])
        yield parts
        parts.check()


def main() -> dict[str, float]:
    with broker() as settings, closing(Reader(settings, "bench")) as reader, closing(Producer(settings, "bench")) as to:
        reader.assign_topics([TRAJECTORIES])
        with loop(settings):
            for _ in range(WARM_UP):
                to.send_wait(task())
                wait_for(reader, 1)
            before, start = records(reader, settings), time.monotonic()
            for _ in range(ROLLOUTS):
                to.send(task())
            wait_for(reader, ROLLOUTS)
            took = time.monotonic() - start
            written = records(reader, settings) - before
    return {
        "rollouts_per_s": ROLLOUTS / took,
        "spans_per_s": ROLLOUTS * SPANS / took,
        "records_per_rollout": written / ROLLOUTS,
    }


if __name__ == "__main__":
    sys.stdout.write(json.dumps({"figures": main()}) + "\n")
