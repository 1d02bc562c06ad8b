"""The audit's checks of what ClickHouse shows against the log. Pure."""

from __future__ import annotations

from collections import defaultdict

from spanloop.schemas.records import Decision, Reward, SpanBatch

from .checked import Checked
from .seen import At, Line, Seen


def ingested(seen: Seen) -> Checked:
    """ingest_log tells of every visible record once: no gap, no overlap, and as many as there are."""
    out = Checked("ingest_log")
    told: dict[tuple[str, int], list[tuple[int, int, int]]] = defaultdict(list)
    for topic, partition, first, last, records in seen.tables.ingest:
        told[topic, partition].append((first, last, records))
    for position, lines in seen.by_position().items():
        _ranges(out, position, sorted(told.get(position, [])), lines, seen.ends[position])
    return out


def _ranges(
    out: Checked, position: tuple[str, int], told: list[tuple[int, int, int]], lines: list[Line], end: int
) -> None:
    offsets = [line.offset for line in lines]
    covered: set[int] = set()
    upto = -1
    for first, last, records in told:
        out.expect(first > upto, "twice", f"{position}: {first} to {last} was told of up to {upto} before")
        upto = max(upto, last)
        own = [o for o in offsets if first <= o <= last]
        covered.update(own)
        if last < end:
            out.expect(len(own) == records, "differs", f"{position}: {first} to {last} has {len(own)}, told {records}")
    for offset in offsets:
        out.expect(offset in covered, "lost", f"{position}@{offset} is in no range of ingest_log")


def rows(seen: Seen) -> Checked:
    """Where a row is a record: every readable record is one row, every tombstone one tombstone."""
    out = Checked("rows")
    for topic, found in seen.tables.rows.items():
        own = [line for line in seen.lines if line.topic == topic]
        _compare(out, seen, topic, [_at(x) for x in own if x.record is not None], found)
    for topic, found in seen.tables.tombstones.items():
        own = [line for line in seen.lines if line.topic == topic and line.tombstone]
        _compare(out, seen, topic, [_at(x) for x in own], found)
    return out


def _at(line: Line) -> At:
    return line.partition, line.offset


def _compare(out: Checked, seen: Seen, topic: str, wanted: list[At], found: list[At]) -> None:
    out.same(wanted, [at for at in found if seen.within(topic, at)], f"row of {topic}")


def views(seen: Seen) -> Checked:
    """What people query holds every event once, and says what the log says."""
    out, tables = Checked("views"), seen.tables
    spans = {(b.attempt_id, s.span_id) for b in seen.of(SpanBatch) for s in b.spans}
    out.same(spans, tables.spans, "v_spans")
    out.same(_rewards(seen).items(), tables.rewards, "v_rewards")
    out.same({(a, e.status) for a, e in seen.first_ends.items()}, tables.ends, "v_ends")
    out.same(
        {(a, t.revision, t.input_digest) for a, t in seen.last_revisions.items()}, tables.trajectories, "v_trajectories"
    )
    counts = {t.rollout_id: t.attempt_id for t in seen.last_revisions.values() if t.final}
    states = seen.last_states.items()
    out.same({(r, s.status, s.final, counts.get(r, "")) for r, s in states if s.final},
             [row for row in tables.rollouts if row[2]], "v_rollouts")  # fmt: skip
    out.same({(d.run_id, d.group_id) for d in seen.of(Decision)}, tables.decisions, "v_decisions")
    return out


def _rewards(seen: Seen) -> dict[str, float | None]:
    """reward -> value; of one told several times the highest sequence counts, then the latest."""
    best: dict[str, tuple[int, int, float | None]] = {}
    for line in seen.lines:
        if isinstance(line.record, Reward):
            r = line.record
            held = best.get(r.reward_id)
            if held is None or (r.sequence, line.offset) >= held[:2]:
                best[r.reward_id] = (r.sequence, line.offset, r.value)
    return {reward_id: value for reward_id, (_, _, value) in best.items()}


def letters(seen: Seen) -> Checked:
    """Each consumer set each poisoned record aside once, and nothing else of the log."""
    out = Checked("dead letters")
    wanted = {(c, *where) for where, consumers in seen.fed.poison.items() for c in consumers}
    found = [row for row in seen.tables.letters if row[2] >= 0]  # below: never was in the log
    known = [row for row in found if row[1:] in seen.fed.poison]
    out.same(wanted, [row for row in known if row in wanted], "dead letter")
    for row in set(found) - set(known):
        out.expect(False, "lost", f"dead letter of a good record: {row}")
    return out
