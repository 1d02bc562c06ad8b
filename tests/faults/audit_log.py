"""The audit's checks of the log itself: control, capture, assembly. Pure."""

from __future__ import annotations

from collections import Counter, defaultdict

from spanloop.schemas.records import Assignment, Attempt, Reward, Rollout, SpanBatch, Task, Trajectory

from .checked import Checked, Fault
from .seen import Seen

LACKING = {"missing_spans", "missing_rewards", "orphaned"}
CLOSED_BY_OTHERS = ("timeout", "unresponsive", "unclaimed", "cancelled", "returned")


def tasks(seen: Seen) -> Checked:
    """Every acknowledged task is in the log and became one finished rollout, which succeeded unless it cannot."""
    out = Checked("tasks")
    asked = {t.rollout_id for t in seen.of(Task) if t.action == "run"}
    states = seen.last_states
    for rollout_id in seen.fed.tasks:
        out.expect(rollout_id in asked, "lost", f"task {rollout_id} is not in the log")
        state = states.get(rollout_id)
        out.expect(state is not None and state.final, "lost", f"rollout {rollout_id} did not end: {_told(state)}")
        good = state is None or not state.final or state.status == "succeeded" or rollout_id in seen.fed.may_fail
        out.expect(good, "differs", f"rollout {rollout_id} has to succeed: {_told(state)}")
    for rollout_id in states.keys() - asked:
        out.expect(False, "differs", f"rollout {rollout_id} was never asked for")
    return out


def _told(state: Rollout | None) -> str:
    if state is None:
        return "no state"
    return f"{state.status}, attempt {state.attempt_id} {state.attempt_status}, {state.error_type}: {state.reason}"


def attempts(seen: Seen) -> Checked:
    """An attempt is given out once, has an end marker, and is told to have ended as its first marker says."""
    out = Checked("attempts")
    given = Counter(a.attempt_id for a in seen.of(Assignment) if a.action == "run")
    ends = seen.first_ends
    told: dict[str, set[str | None]] = defaultdict(set)
    for event in seen.of(Attempt):
        if event.status == "ended":
            told[event.attempt_id].add(event.outcome)
    for attempt_id, times in given.items():
        out.expect(times == 1, "twice", f"attempt {attempt_id} was given out {times} times")
        out.expect(attempt_id in ends, "lost", f"attempt {attempt_id} has no end marker")
    for attempt_id, end in ends.items():
        found = told.get(attempt_id, set())
        out.expect(bool(found), "lost", f"attempts(ended) of {attempt_id}")
        out.expect(
            found <= {end.status}, "differs", f"attempt {attempt_id} ended {end.status}, told {sorted(map(str, found))}"
        )
    return out


def finals(seen: Seen) -> Checked:
    """Each finished rollout has one final trajectory, that of the attempt that counts, and the reward asked for."""
    out = Checked("final trajectories")
    final: dict[str, list[Trajectory]] = defaultdict(list)
    for t in seen.last_revisions.values():
        if t.final:
            final[t.rollout_id].append(t)
    for rollout_id, state in seen.last_states.items():
        if not state.final:
            continue
        found = final.get(rollout_id, [])
        out.expect(len(found) >= 1, "lost", f"rollout {rollout_id} has no final trajectory")
        out.expect(len(found) <= 1, "twice", f"rollout {rollout_id} has {len(found)} final trajectories")
        for t in found:
            out.expect(t.status == _allowed(state.status, t), "differs", f"{rollout_id} {state.status}, {t.status}")
            wanted = seen.fed.tasks.get(rollout_id)
            if t.status == "succeeded" and wanted is not None:
                out.expect(t.final_reward == wanted, "lost", f"{rollout_id}: reward {t.final_reward}, asked {wanted}")
    return out


def _allowed(status: str, t: Trajectory) -> str:
    """The end status that a rollout's status allows: a rollout that failed may have failed in several ways."""
    return t.status if status == "failed" and t.status not in ("succeeded", "cancelled") else status


def answers(seen: Seen) -> Checked:
    """Every answer that an agent saw in whole is in the log, delivered, before the attempt's end marker."""
    out = Checked("answers seen")
    calls: dict[tuple[str, str], tuple[int, bool]] = {}  # sequence, delivered: the highest sequence counts
    ended: set[str] = set()
    late: set[tuple[str, str]] = set()
    for batch in seen.of(SpanBatch):
        for span in batch.spans:
            at = (batch.attempt_id, span.span_id)
            if span.call is not None:
                if at not in calls and batch.attempt_id in ended:
                    late.add(at)
                calls[at] = max(calls.get(at, (-1, True)), (span.sequence, span.call.delivered))
        if batch.end is not None:
            ended.add(batch.attempt_id)
    for at in seen.fed.answers:
        found = calls.get(at)
        out.expect(found is not None, "lost", f"call {at[1]} of {at[0]}, which its agent saw")
        out.expect(found is None or found[1], "differs", f"call {at[1]} of {at[0]} was seen and is called undelivered")
        out.expect(
            at not in late or not _ended_itself(seen, at[0]), "lost", f"call {at[1]} of {at[0]} lies after its end"
        )
    return out


def _ended_itself(seen: Seen, attempt_id: str) -> bool:
    """Whether its worker ended it: one that others closed meanwhile is over before its agent knows."""
    end = seen.first_ends.get(attempt_id)
    return end is not None and end.status not in CLOSED_BY_OTHERS


def emitted(seen: Seen) -> Checked:
    """Every span and reward that an agent emitted is in the log, unless its worker died with it or let go of it."""
    out = Checked("emitted")
    spans = {(b.attempt_id, s.span_id) for b in seen.of(SpanBatch) for s in b.spans}
    rewards = {(r.attempt_id, r.reward_id) for r in seen.of(Reward)}
    for what, told, found in (("span", seen.fed.spans, spans), ("reward", seen.fed.rewards, rewards)):
        for at in told:
            if _ended_itself(seen, at[0]):
                out.expect(at in found, "lost", f"{what} {at[1]} of {at[0]}, which its agent emitted")
    return out


def counts(seen: Seen) -> Checked:
    """What an end marker's producer counted is in the log, and what succeeded lacks nothing."""
    out = Checked("counts")
    spans: dict[tuple[str, str], set[tuple[str, int]]] = defaultdict(set)
    for b in seen.of(SpanBatch):
        spans[b.attempt_id, b.producer_id].update((s.span_id, s.sequence) for s in b.spans)
    rewards: dict[tuple[str | None, str], set[str]] = defaultdict(set)
    for r in seen.of(Reward):
        rewards[r.attempt_id, r.producer_id].add(r.reward_id)
    for b in seen.of(SpanBatch):
        if b.end is not None:
            at = b.attempt_id, b.producer_id
            _counted(out, f"spans of {at}", b.end.span_count, len(spans[at]))
            _counted(out, f"rewards of {at}", b.end.reward_count, len(rewards[at]))
    for t in seen.last_revisions.values():
        lacks = sorted(LACKING & set(t.flags))
        if t.status == "succeeded":
            out.expect(not lacks, "lost", f"{t.attempt_id} is flagged {lacks}")
    return out


def _counted(out: Checked, what: str, count: int | None, found: int) -> None:
    if count is not None:
        out.expect(found >= count, "lost", f"{what}: {found} of {count}")
        out.expect(found <= count, "differs", f"{what}: {found}, and {count} were counted")


def revisions(seen: Seen) -> Checked:
    """The last revisions are those of an assembler that nothing ever disturbed, by digest."""
    out = Checked("last revisions")
    found = {a: (t.revision, t.input_digest) for a, t in seen.last_revisions.items()}
    for attempt_id in seen.first_ends:
        wanted, got = seen.replayed.get(attempt_id), found.get(attempt_id)
        out.expect(got is not None, "lost", f"attempt {attempt_id} has no trajectory")
        if got is not None:
            fault: Fault = "twice" if wanted is not None and got[0] > wanted[0] else "lost"
            out.expect(got == wanted, fault, f"attempt {attempt_id}: revision {got}, undisturbed {wanted}")
    return out


def lag(seen: Seen) -> Checked:
    """Each group has committed all there was."""
    out = Checked("lag")
    for group, committed in seen.committed.items():
        for position, offset in committed.items():
            end = seen.ends[position]
            out.expect(offset >= end, "lost", f"group {group} on {position} stands at {offset} of {end}")
    return out


def struck(seen: Seen) -> Checked:
    """Each fault did what it is there for."""
    out = Checked("strikes")
    for strike in seen.fed.strikes:
        out.expect(strike.holds(seen), "missed", strike.told)
    return out


def crashes(seen: Seen) -> Checked:
    """Processes end when they are told to, or with an error made on purpose."""
    out = Checked("crashes")
    for told in seen.fed.crashes:
        out.expect(False, "crashed", told)
    return out
