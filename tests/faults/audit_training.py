"""The audit's checks of training: groups, batches, steps and the versions they led to. Pure."""

from __future__ import annotations

from collections import defaultdict

from spanloop.schemas.records import Batch, Decision, Resource, Trajectory

from .checked import Checked
from .seen import FILLER, Seen


def trained(seen: Seen) -> Checked:
    """Each group was closed into one batch, with the final trajectory of each of its rollouts, and decided once."""
    out = Checked("trained")
    known = {(t.attempt_id, t.revision, t.input_digest): t for t in seen.of(Trajectory)}
    batches = _batches(seen)
    out.same({b.step for b in batches}, [b.step for b in batches], "step")
    in_batches = [g for b in batches for g in b.groups]
    out.same(seen.fed.groups, in_batches, "group in a batch")
    decided = {(d.run_id, d.group_id, d.step) for d in seen.of(Decision) if d.trainer_id != FILLER}
    out.same(in_batches, [g for _, g, _ in decided], "decision on group")
    members: dict[str, list[str]] = defaultdict(list)
    for batch in batches:
        for m in batch.members:
            t = known.get((m.attempt_id, m.revision, m.input_digest))
            out.expect(t is not None, "differs", f"{m.attempt_id} revision {m.revision} was trained, is not in the log")
            if t is not None:
                out.expect(t.final, "differs", f"{t.attempt_id} was trained and is not its rollout's final attempt")
                members[t.context.group_id or t.rollout_id].append(t.rollout_id)
    for group_id, rollouts in seen.fed.groups.items():
        out.same(rollouts, members.get(group_id, []), f"group {group_id}: member")
    return out


def stepped(seen: Seen) -> Checked:
    """Each recorded batch was applied once: its step starts from the version before it and leads to one of its own."""
    out = Checked("stepped")
    published = [(r.step or 0, r.version) for r in seen.of(Resource) if r.kind == "policy"]
    out.same([0, *(b.step for b in _batches(seen))], [step for step, _ in published], "version after step")
    version_of = dict(published)
    for batch in _batches(seen):
        before = version_of.get(batch.step - 1)
        out.expect(
            batch.policy_version == before,
            "differs",
            f"step {batch.step} starts from version {batch.policy_version}, the step before it led to {before}",
        )
    return out


def _batches(seen: Seen) -> list[Batch]:
    return [b for b in seen.of(Batch) if b.trainer_id != FILLER]
