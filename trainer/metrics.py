"""What each step reports, as one line of `metrics.jsonl`. Of a step that is there twice the last counts."""

from __future__ import annotations

import json
import math
from collections import Counter
from dataclasses import asdict, dataclass, field
from pathlib import Path

import numpy as np

from ..infra.telemetry import Meter
from .batch import Plan, TrainRow
from .step import StepResult


@dataclass(frozen=True, slots=True)
class StepReport:
    """One step in figures."""

    step: int
    policy_version: int | None  # weights the step started from
    reward_mean: float | None  # over members with a valid reward; None = there was none
    members: int  # trajectories in the batch
    groups: int  # closed groups in the batch
    groups_used: int
    groups_dropped: dict[str, int]  # by reason; zero_spread among them
    rows: int  # rows trained
    rows_dropped: dict[str, int]  # by reason
    tokens: int  # tokens trained
    tokens_masked: dict[str, int]  # by reason, in rows that were looked at
    staleness_max: int | None
    staleness_mean: float | None
    loss: float | None  # None = no optimiser step, or not finite
    grad_norm: float | None
    skipped: str | None  # why there was no optimiser step
    late: int  # trajectories for closed groups, so far
    replayed: bool  # true: a recorded batch, applied again
    wait_s: float
    step_s: float
    at_ns: int
    metrics: dict[str, float] = field(default_factory=dict[str, float])  # of the optimiser step


def report(
    plan: Plan,
    result: StepResult | None,
    *,
    late: int,
    replayed: bool,
    wait_s: float,
    step_s: float,
    at_ns: int,
    skipped: str | None,
) -> StepReport:
    """Figures of a step; `result` is None where nothing could be trained on."""
    reasons = Counter(d.reason or "" for d in plan.decisions if d.outcome == "dropped")
    ages = token_ages(plan.rows)
    return StepReport(
        step=plan.batch.step,
        policy_version=plan.batch.policy_version,
        reward_mean=math.fsum(plan.rewards) / len(plan.rewards) if plan.rewards else None,
        members=len(plan.batch.members),
        groups=len(plan.decisions),
        groups_used=sum(d.outcome == "used" for d in plan.decisions),
        groups_dropped=dict(reasons),
        rows=len(plan.rows),
        rows_dropped=dict(plan.dropped),
        tokens=len(ages),
        tokens_masked=dict(plan.masked),
        staleness_max=int(ages.max()) if len(ages) else None,
        staleness_mean=float(ages.mean()) if len(ages) else None,
        loss=_finite(result.loss) if result else None,
        grad_norm=_finite(result.grad_norm) if result else None,
        skipped=skipped,
        late=late,
        replayed=replayed,
        wait_s=wait_s,
        step_s=step_s,
        at_ns=at_ns,
        metrics={k: v for k, v in result.metrics.items() if math.isfinite(v)} if result else {},
    )


def token_ages(rows: tuple[TrainRow, ...]) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    """(N,) staleness of every trained token."""
    return np.concatenate([np.zeros(0, np.int64), *(r.staleness[r.mask] for r in rows)])


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None


class MetricsFile:
    """Appends reports to a file, one JSON object a line."""

    def __init__(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        self._path = path

    def __call__(self, step: StepReport) -> None:
        with self._path.open("a", encoding="utf-8") as f:
            f.write(json.dumps(asdict(step)) + "\n")


def read_metrics(path: Path) -> list[StepReport]:
    """Every step once, the last report of it, in order."""
    lines = (json.loads(line) for line in path.read_text("utf-8").splitlines())
    found = {line["step"]: StepReport(**line) for line in lines}
    return [found[step] for step in sorted(found)]


class MetricsTelemetry:
    """Tells the same to OpenTelemetry."""

    def __init__(self, meter: Meter, policy: str) -> None:
        self._meter = meter
        self._policy = policy

    def __call__(self, step: StepReport) -> None:
        add, policy = self._meter.add, self._policy
        add("spanloop.trainer.step", step.step_s, policy=policy)
        add("spanloop.trainer.rows", step.rows, policy=policy, outcome="trained")
        for reason, count in step.rows_dropped.items():
            add("spanloop.trainer.rows", count, policy=policy, outcome=reason)
        if step.reward_mean is not None:
            add("spanloop.trainer.reward", step.reward_mean, policy=policy)
        if step.staleness_mean is not None:
            add("spanloop.trainer.staleness", step.staleness_mean, policy=policy)
