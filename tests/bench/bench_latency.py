"""How long a lone rollout's events take on a real Kafka: task → start, end marker → trajectory, span → visible in SQL.

Every part is a process of its own, and nothing else is under way.
"""

from __future__ import annotations

import json
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

from spanloop.infra.clickhouse import connect as connect_clickhouse
from spanloop.infra.kafka import Reader
from spanloop.infra.producer import Producer
from spanloop.infra.registry import connect
from spanloop.infra.settings import Settings
from spanloop.infra.stack import EmbeddedStack
from spanloop.parts import Processes
from spanloop.schemas import ids
from spanloop.schemas.records import Span, SpanBatch, Task, Trajectory
from spanloop.schemas.serde import Decoder
from spanloop.schemas.topics import SPANS, TRAJECTORIES

ROLLOUTS, WARM_UP = 50, 5
AGENT = f"{Path(__file__).parent / 'noop_agent.py'}:noop"
PATIENCE_S = 60.0
POLL_S = 0.002
NS_PER_MS = 1_000_000


class Watch:
    """Sends one task after another and notes when what follows from each was there."""

    def __init__(self, settings: Settings, stack: ExitStack) -> None:
        self._decoder = Decoder(connect(settings))
        self._producer = Producer(settings, "bench", linger_ms=0)
        stack.callback(self._producer.close)
        self._reader = Reader(settings, "bench")
        stack.callback(self._reader.close)
        self._reader.assign_topics([SPANS, TRAJECTORIES])
        self._sql = connect_clickhouse(settings)

    def one(self) -> tuple[float, float, float, float]:
        """Milliseconds task → start, end → trajectory, span → SQL, and task → trajectory."""
        task = Task(ids.rollout_id(), "bench", mode="val", created_ns=time.time_ns())
        self._producer.send_wait(task)
        spans: list[Span] = []
        for record in self._records():
            if record.rollout_id != task.rollout_id:
                continue
            if isinstance(record, SpanBatch):
                spans += record.spans
                continue
            there_ns = time.time_ns()
            # an agent's first span starts when it does; its last one is the last to become visible
            started_ns, ended_ns = min(s.start_ns for s in spans), max(s.end_ns or 0 for s in spans)
            visible_ns = self._visible_ns(task.rollout_id, len(spans))
            return (
                (started_ns - task.created_ns) / NS_PER_MS,
                (there_ns - record.end_ns) / NS_PER_MS,
                (visible_ns - ended_ns) / NS_PER_MS,
                (there_ns - task.created_ns) / NS_PER_MS,
            )
        raise AssertionError("unreachable")

    def _records(self) -> Iterator[SpanBatch | Trajectory]:
        deadline = time.monotonic() + PATIENCE_S
        while time.monotonic() < deadline:
            for message in self._reader.poll(100, 0.01):
                kind = SpanBatch if message.topic == SPANS.name else Trajectory
                yield self._decoder.decode(kind, message.value or b"")
        raise TimeoutError(f"no trajectory within {PATIENCE_S:g} s")

    def _visible_ns(self, rollout_id: str, count: int) -> int:
        deadline = time.monotonic() + PATIENCE_S
        query = f"SELECT count() FROM v_spans WHERE rollout_id = '{rollout_id}'"
        while self._sql.query(query).result_rows[0][0] < count:
            if time.monotonic() > deadline:
                raise TimeoutError(f"the spans of {rollout_id} were not visible within {PATIENCE_S:g} s")
            time.sleep(POLL_S)
        return time.time_ns()


def main() -> dict[str, float]:
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        settings = stack.enter_context(EmbeddedStack(folder, kafka=True)).settings
        parts = stack.enter_context(Processes(settings, folder / "logs"))
        for only in ("controller", "assembler"):
            parts.start(only, ["streams", "--only", only])
        parts.start("sink", ["sink"])
        parts.start("worker", ["worker", AGENT, "--slots", "2"])
        watch = Watch(settings, stack)
        found = [watch.one() for _ in range(WARM_UP + ROLLOUTS)][WARM_UP:]
        parts.check()
    figures: dict[str, float] = {}
    for name, column in zip(
        ("task_to_start", "end_to_trajectory", "span_to_sql", "task_to_trajectory"),
        zip(*found, strict=True),
        strict=True,
    ):
        ordered = sorted(column)
        figures[f"{name}_p50_ms"] = ordered[len(ordered) // 2]
        figures[f"{name}_p99_ms"] = ordered[int(len(ordered) * 0.99)]
    return figures


if __name__ == "__main__":
    sys.stdout.write(json.dumps({"figures": main()}) + "\n")
