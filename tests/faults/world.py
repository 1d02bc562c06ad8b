"""A small log with all that an audit looks at, as it has to be, for tests of the audit to do harm to."""

from __future__ import annotations

from dataclasses import replace

from events import Bench, batch, end, llm, rew

from spanloop.infra.settings import Settings
from spanloop.schemas.records import (
    Assignment,
    Attempt,
    AttemptContext,
    Batch,
    BatchMember,
    DeadLetter,
    Decision,
    Resource,
    Reward,
    Rollout,
    SpanBatch,
    Task,
    Trajectory,
)
from spanloop.schemas.topics import BY_RECORD, Record

from .reading import undisturbed
from .seen import Fed, Line, Seen, Strike, Tables, every_position

SETTINGS = Settings(partitions=1)
POISON = ("tasks", 0, 2)
GROUP = "gr-1"


def world() -> Seen:
    """Two rollouts of one group from task to decision, and one poisoned task: all as it has to be."""
    log: list[Record] = []
    for n in (1, 2):
        rollout, attempt = f"ro-{n}", f"at-{n}"
        context = AttemptContext(run_id="run", group_id=GROUP, sample=n - 1, group_size=2)
        log += [
            Task(f"ro-{n}", "run", group_id=GROUP, sample=n - 1, group_size=2),
            Assignment("wo-1", f"at-{n}", task=Task(f"ro-{n}", "run")),
            batch(llm(f"c{n}", [1, 2], [3]), rollout=rollout, attempt=attempt),
            batch(end=end(span_count=1, reward_count=1, context=context), rollout=rollout, attempt=attempt),
            rew(n / 2, rid=f"rw-{n}", rollout=rollout, attempt=attempt, producer_id="p1"),
            Attempt(f"ro-{n}", f"at-{n}", "ended", outcome="succeeded", final=True),
            Rollout(f"ro-{n}", "succeeded", Task(f"ro-{n}", "run"), final=True, counting_attempt=f"at-{n}"),
        ]
    log += made_of(log)
    trajectories = [r for r in log if isinstance(r, Trajectory)]
    members = [BatchMember(t.attempt_id, t.revision, t.input_digest) for t in trajectories]
    log += [Batch("tr", 1, 1, members=members, groups=[GROUP]), Decision("tr", 1, "run", GROUP)]
    log += [Resource("policy", 1, "policy", step=0), Resource("policy", 2, "policy", step=1)]
    log.append(DeadLetter("controller", *POISON, reason="bad_framing"))
    lines = placed(log)
    lines.append(Line(*POISON, None))
    lines.sort(key=lambda line: (line.topic, line.partition, line.offset))
    ends = {at: 1 + max((x.offset for x in lines if x.topic == at[0]), default=-1) for at in every_position(1)}
    spans = [(b.attempt_id, s.span_id) for b in log if isinstance(b, SpanBatch) for s in b.spans]
    fed = Fed(
        tasks={"ro-1": 0.5, "ro-2": 1.0},
        groups={GROUP: ["ro-1", "ro-2"]},
        answers=spans,
        spans=spans,
        rewards=[("at-1", "rw-1"), ("at-2", "rw-2")],
        poison={POISON: frozenset({"controller"})},
        strikes=[Strike("both have begun", lambda seen: len(seen.of(Assignment)) == 2)],
    )
    seen = Seen(lines, ends, Tables(), fed, committed={"sink": dict(ends)}, replayed=undisturbed(SETTINGS, lines))
    seen.tables = shown(seen)
    return replace(seen)  # forgets what it has worked out: tests change the log


def placed(log: list[Record]) -> list[Line]:
    """Each record at the next offset of its topic."""
    nexts: dict[str, int] = {}
    out: list[Line] = []
    for record in log:
        topic = BY_RECORD[type(record)].name
        out.append(Line(topic, 0, nexts.get(topic, 0), record))
        nexts[topic] = nexts.get(topic, 0) + 1
    return out


def made_of(log: list[Record]) -> list[Trajectory]:
    """The trajectories of a log."""
    bench = Bench()
    bench.give(*(r for r in log if isinstance(r, SpanBatch | Reward)))
    bench.wait(1e6)
    return [bench.last("at-1"), bench.last("at-2")]


def shown(seen: Seen) -> Tables:
    """What ClickHouse shows of a log that the sink took in whole."""
    rows = {
        topic: [(x.partition, x.offset) for x in seen.lines if x.topic == topic and x.record is not None]
        for topic in ("tasks", "attempts", "trajectories")
    }
    last = seen.last_revisions
    return Tables(
        rows=rows,
        spans=[(b.attempt_id, s.span_id) for b in seen.of(SpanBatch) for s in b.spans],
        rewards=[("rw-1", 0.5), ("rw-2", 1.0)],
        ends=[("at-1", "succeeded"), ("at-2", "succeeded")],
        trajectories=[(a, t.revision, t.input_digest) for a, t in last.items()],
        rollouts=[(f"ro-{n}", "succeeded", True, f"at-{n}") for n in (1, 2)],
        decisions=[("run", GROUP)],
        letters=[("controller", *POISON)],
        ingest=[
            (t, p, 0, end - 1, sum(1 for x in seen.lines if x.topic == t)) for (t, p), end in seen.ends.items() if end
        ],
        tombstones={},
    )
