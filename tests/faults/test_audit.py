"""The audit can find what it is for: each kind of loss and each kind of duplication, by the check that is about it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
from events import batch, llm
from faults.audit import CHECKS, audit, discrepancies
from faults.checked import Checked
from faults.seen import Line, Seen, Strike
from faults.world import world

from spanloop.schemas.records import Batch, Rollout, SpanBatch, Trajectory


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


def lacking(seen: Seen, flag: str) -> None:
    """Trajectories say that something of them never came."""
    for i, line in enumerate(seen.lines):
        if isinstance(line.record, Trajectory):
            seen.lines[i] = replace(line, record=replace(line.record, flags=[*line.record.flags, flag]))


def nothing_works(seen: Seen) -> None:
    """Every rollout came to its end, and failed."""
    for i, line in enumerate(seen.lines):
        if isinstance(line.record, Rollout | Trajectory):
            seen.lines[i] = replace(line, record=replace(line.record, status="failed"))


HARM: list[tuple[str, str, str, Callable[[Seen], object]]] = [
    ("a task", "tasks", "lost", lambda s: lose(s, "tasks")),
    ("a rollout's end", "tasks", "lost", lambda s: lose(s, "rollouts")),
    ("a rollout nobody asked for", "tasks", "differs", lambda s: again(s, "rollouts", rollout_id="ro-9")),
    ("a loop in which nothing works", "tasks", "differs", nothing_works),
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
    ("a span that its agent emitted", "emitted", "lost", lambda s: lose(s, "spans", 0)),
    ("a step reward that its agent emitted", "emitted", "lost", lambda s: lose(s, "rewards", 0)),
    ("a span that its producer counted", "counts", "lost", lambda s: lose(s, "spans", 0)),
    ("a step reward that its producer counted", "counts", "lost", lambda s: lose(s, "rewards", 0)),
    ("a reward more than its producer counted", "counts", "differs", lambda s: again(s, "rewards", reward_id="rw-9")),
    ("a trajectory without all its spans", "counts", "lost", lambda s: lacking(s, "missing_spans")),
    ("a trajectory without all its rewards", "counts", "lost", lambda s: lacking(s, "missing_rewards")),
    ("a trajectory without a parent", "counts", "lost", lambda s: lacking(s, "orphaned")),
    ("a trajectory", "last revisions", "lost", lambda s: lose(s, "trajectories")),
    ("other events in a trajectory", "last revisions", "lost", other_digest),
    ("an event counted twice", "last revisions", "twice", fewer_events),
    ("a group never trained", "trained", "lost", lambda s: lose(s, "batches")),
    ("a group trained twice", "trained", "twice", lambda s: again(s, "batches", step=2)),
    ("a step taken twice", "trained", "twice", lambda s: again(s, "batches")),
    ("a member trained that is not there", "trained", "differs", trained_elsewhere),
    ("a decision", "trained", "lost", lambda s: lose(s, "decisions")),
    ("a batch that was never applied", "stepped", "lost", lambda s: lose(s, "resources", 1)),
    ("a batch that was applied twice", "stepped", "twice", lambda s: again(s, "resources", version=3)),
    ("a step from other weights", "stepped", "differs", lambda s: again(s, "resources", step=0, version=3)),
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
    ("a fault that did not strike", "strikes", "missed", lambda s: s.fed.strikes.append(Strike("it", lambda _: False))),
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
