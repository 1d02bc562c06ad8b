"""The audit can find what it is for: each kind of loss and each kind of duplication, by the check that is about it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
from events import Bench, batch, end, llm, rew
from faults.audit import CHECKS, audit, discrepancies
from faults.checked import Checked
from faults.reading import undisturbed
from faults.seen import Fed, Line, Seen, Tables, every_position

from spanloop.infra.settings import Settings
from spanloop.schemas.records import (
    Assignment,
    Attempt,
    AttemptContext,
    Batch,
    BatchMember,
    DeadLetter,
    Decision,
    Reward,
    Rollout,
    SpanBatch,
    Task,
    Trajectory,
)
from spanloop.schemas.topics import BY_RECORD, Record

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
            batch(end=end(span_count=1, context=context), rollout=rollout, attempt=attempt),
            rew(n / 2, rid=f"rw-{n}", rollout=rollout, attempt=attempt),
            Attempt(f"ro-{n}", f"at-{n}", "ended", outcome="succeeded", final=True),
            Rollout(f"ro-{n}", "succeeded", Task(f"ro-{n}", "run"), final=True, counting_attempt=f"at-{n}"),
        ]
    log += made_of(log)
    trajectories = [r for r in log if isinstance(r, Trajectory)]
    members = [BatchMember(t.attempt_id, t.revision, t.input_digest) for t in trajectories]
    log += [Batch("tr", 1, 1, members=members, groups=[GROUP]), Decision("tr", 1, "run", GROUP)]
    log.append(DeadLetter("controller", *POISON, reason="bad_framing"))
    lines = placed(log)
    lines.append(Line(*POISON, None))
    lines.sort(key=lambda line: (line.topic, line.partition, line.offset))
    ends = {at: 1 + max((x.offset for x in lines if x.topic == at[0]), default=-1) for at in every_position(1)}
    fed = Fed(
        tasks={"ro-1": 0.5, "ro-2": 1.0},
        groups={GROUP: ["ro-1", "ro-2"]},
        answers=[(b.attempt_id, s.span_id) for b in log if isinstance(b, SpanBatch) for s in b.spans],
        poison={POISON: frozenset({"controller"})},
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


def lose(seen: Seen, topic: str, nth: int = 0) -> None:
    """A record is gone from the log."""
    seen.lines.remove([line for line in seen.lines if line.topic == topic][nth])


def again(seen: Seen, topic: str, **changes: object) -> None:
    """The last record of a topic is there once more, changed."""
    last = [line for line in seen.lines if line.topic == topic and line.record is not None][-1]
    assert last.record is not None
    seen.lines.append(replace(last, offset=last.offset + 50, record=replace(last.record, **changes)))


def other_digest(seen: Seen) -> None:
    seen.replayed["at-1"] = (seen.replayed["at-1"][0], "other")


def fewer_events(seen: Seen) -> None:
    seen.replayed["at-1"] = (seen.replayed["at-1"][0] - 1, seen.replayed["at-1"][1])


def trained_elsewhere(seen: Seen) -> None:
    (line,) = [x for x in seen.lines if x.topic == "batches"]
    assert isinstance(line.record, Batch)
    members = [replace(line.record.members[0], input_digest="other"), *line.record.members[1:]]
    seen.lines[seen.lines.index(line)] = replace(line, record=replace(line.record, members=members))


def told_once_more(seen: Seen) -> None:
    """A sink that was frozen tells of what another has taken in meanwhile."""
    topic, partition, first, last, records = seen.tables.ingest[0]
    seen.tables.ingest.append((topic, partition, first + 1, last, records - 1))


def miscounted(seen: Seen) -> None:
    topic, partition, first, last, records = seen.tables.ingest[0]
    seen.tables.ingest[0] = (topic, partition, first, last, records + 1)


def undelivered(seen: Seen) -> None:
    """A correction says that the agent never got an answer that it did get."""
    span = llm("c1", [1, 2], [3], seq=9, delivered=False)
    seen.lines.append(Line("spans", 0, 60, batch(span, rollout="ro-1", attempt="at-1")))


def after_its_end(seen: Seen) -> None:
    """A call lies behind the end marker of its attempt."""
    (call, marker, *rest) = [x for x in seen.lines if x.topic == "spans"]
    seen.lines = [x for x in seen.lines if x.topic != "spans"]
    seen.lines += [replace(marker, offset=0), replace(call, offset=1), *rest]


HARM: list[tuple[str, str, str, Callable[[Seen], object]]] = [
    ("a task", "tasks", "lost", lambda s: lose(s, "tasks")),
    ("a rollout's end", "tasks", "lost", lambda s: lose(s, "rollouts")),
    ("a rollout nobody asked for", "tasks", "differs", lambda s: again(s, "rollouts", rollout_id="ro-9")),
    ("an attempt given out twice", "attempts", "twice", lambda s: again(s, "assignments")),
    ("an end marker", "attempts", "lost", lambda s: lose(s, "spans", 1)),
    ("the news of an end", "attempts", "lost", lambda s: lose(s, "attempts")),
    ("other news of an end", "attempts", "differs", lambda s: again(s, "attempts", outcome="timeout")),
    ("a final trajectory", "final trajectories", "lost", lambda s: lose(s, "trajectories")),
    ("two final trajectories", "final trajectories", "twice", lambda s: again(s, "trajectories", attempt_id="at-9")),
    ("a reward", "final trajectories", "lost", lambda s: s.fed.tasks.update({"ro-1": 0.75})),
    ("an answer", "answers seen", "lost", lambda s: lose(s, "spans", 0)),
    ("an answer's delivery", "answers seen", "differs", undelivered),
    ("an answer behind the end", "answers seen", "lost", after_its_end),
    ("a trajectory", "last revisions", "lost", lambda s: lose(s, "trajectories")),
    ("other events in a trajectory", "last revisions", "lost", other_digest),
    ("an event counted twice", "last revisions", "twice", fewer_events),
    ("a group never trained", "trained", "lost", lambda s: lose(s, "batches")),
    ("a group trained twice", "trained", "twice", lambda s: again(s, "batches", step=2)),
    ("a step taken twice", "trained", "twice", lambda s: again(s, "batches")),
    ("a member trained that is not there", "trained", "differs", trained_elsewhere),
    ("a decision", "trained", "lost", lambda s: lose(s, "decisions")),
    ("a range never told of", "ingest_log", "lost", lambda s: s.tables.ingest.pop()),
    ("a range told of twice", "ingest_log", "twice", told_once_more),
    ("a count", "ingest_log", "differs", miscounted),
    ("a row", "rows", "lost", lambda s: s.tables.rows["tasks"].pop()),
    ("a row that is there twice", "rows", "twice", lambda s: s.tables.rows["tasks"].append((0, 0))),
    ("a row of nothing", "rows", "differs", lambda s: s.tables.rows["tasks"].append((0, 2))),
    ("a span", "views", "lost", lambda s: s.tables.spans.pop()),
    ("a span that is there twice", "views", "twice", lambda s: s.tables.spans.append(s.tables.spans[0])),
    ("a reward that is there twice", "views", "twice", lambda s: s.tables.rewards.append(s.tables.rewards[0])),
    ("an end that is there twice", "views", "twice", lambda s: s.tables.ends.append(s.tables.ends[0])),
    ("a trajectory's row", "views", "lost", lambda s: s.tables.trajectories.pop()),
    ("a rollout that is there twice", "views", "twice", lambda s: s.tables.rollouts.append(s.tables.rollouts[0])),
    ("a decision's row", "views", "lost", lambda s: s.tables.decisions.pop()),
    ("a dead letter", "dead letters", "lost", lambda s: s.tables.letters.pop()),
    ("a second dead letter", "dead letters", "twice", lambda s: s.tables.letters.append(s.tables.letters[0])),
    ("a good record set aside", "dead letters", "lost", lambda s: s.tables.letters.append(("sink", "spans", 0, 0))),
    ("a group that is behind", "lag", "lost", lambda s: s.committed["sink"].update({("spans", 0): 0})),
    ("a crash", "crashes", "crashed", lambda s: s.fed.crashes.append("sink-a ended with status -11")),
]


def test_a_world_without_faults_has_no_discrepancy_and_every_check_looks_at_something() -> None:
    checked = audit(world())
    assert discrepancies(checked) == []
    idle = [one.check for one in checked if not one.looked_at]
    assert idle == ["crashes"]
    assert len(checked) == len(CHECKS)


@pytest.mark.parametrize(("what", "check", "fault", "harm"), HARM, ids=[h[0] for h in HARM])
def test_it_finds(what: str, check: str, fault: str, harm: Callable[[Seen], object]) -> None:
    del what
    seen = world()
    harm(seen)
    assert (check, fault) in {(d.check, d.fault) for d in discrepancies(audit(seen))}


def test_an_answer_behind_the_end_is_no_loss_where_others_ended_the_attempt() -> None:
    seen = world()
    after_its_end(seen)
    seen.lines = [
        replace(x, record=replace(x.record, end=replace(x.record.end, status="unresponsive")))
        if isinstance(x.record, SpanBatch) and x.record.end is not None and x.record.attempt_id == "at-1"
        else x
        for x in seen.lines
    ]
    found = {d.fault for d in discrepancies(audit(seen)) if d.check == "answers seen"}
    assert found == set()


def test_things_are_compared_by_how_often_they_are_there() -> None:
    out = Checked("test")
    out.same(["a", "b", "b"], ["b", "b", "b", "c"], "thing")
    assert {(d.fault, d.what) for d in out.wrong} == {
        ("lost", "thing a"),
        ("twice", "thing b: 3 times"),
        ("differs", "thing c comes from nowhere"),
    }
