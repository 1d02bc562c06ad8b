"""Closed groups to masked, weighted rows. Pure: (groups, lineage, config) -> Plan.

A token is trained when its row and its call may be, its version is fresh enough and its behaviour log-prob is known;
everything else is masked, with a count by reason. Loss = Σ weight · advantage · (…) over tokens, so the whole
normalisation lies in `weights`:

    rollout (default)   1 / (R · T_ρ)    R rollouts of the closed groups, zero-spread ones too; T_ρ trained tokens of ρ
    token               1 / Σ T_ρ
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import numpy.typing as npt

from ..schemas.records import Batch, BatchMember, Call, Decision, DecisionMember, Row, Trajectory
from .advantage import ADVANTAGES, GroupAdvantage, MemberAdvantage
from .config import TrainerConfig, Weighting, named
from .groups import ClosedGroup
from .selection import no_rows_reason, of_agents, row_reason

Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]
Bools = npt.NDArray[np.bool_]
UNKNOWN_VERSION = -1
NEVER = 1 << 40  # staleness of a version that is on no line: above any bound
ANY_ID = 1 << 31  # a vocabulary of every token id that a row can hold


@dataclass(frozen=True, slots=True)
class TrainRow:
    """One row to train on. All arrays have shape (T,)."""

    rollout_id: str
    token_ids: Ints
    mask: Bools  # trained tokens
    logprobs: Floats  # under the behaviour policy, 0 where not trained
    advantages: Floats  # 0 where not trained
    weights: Floats  # 0 where not trained
    staleness: Ints  # publishes since each token was drawn; 0 where not trained
    temperature: float = 1.0

    @property
    def trained(self) -> int:
        """Tokens that are trained."""
        return int(self.mask.sum())


@dataclass(frozen=True, slots=True)
class Plan:
    """What one step does: the rows it trains on, what it records before and after, what it counts."""

    rows: tuple[TrainRow, ...]  # in the order of the groups' members
    batch: Batch
    decisions: tuple[Decision, ...]
    rewards: tuple[float, ...]  # valid rewards of all members
    dropped: Counter[str] = field(default_factory=Counter[str])  # rows without any trained token, rollouts without rows
    masked: Counter[str] = field(default_factory=Counter[str])  # tokens masked, by reason

    @property
    def cause(self) -> str | None:
        """Why nothing can be trained on; None = something can."""
        if self.rows:
            return None
        counts = {"groups": Counter(d.reason or "used" for d in self.decisions), "rows or rollouts": self.dropped}
        told = [f"{n} {of} {reason}" for of, found in counts.items() for reason, n in sorted(found.items())]
        return ", ".join(told) or "no members"


@dataclass(frozen=True, slots=True)
class StepContext:
    """Where a step stands: its number, the weights it starts from and the versions behind them."""

    step: int
    policy_version: int
    chain: dict[int, int]  # version -> publishes since; see Lineage.chain
    vocabulary: int = ANY_ID  # token ids that the policy has
    at_ns: int = 0


def build_row(
    t: Trajectory, row: Row, advantage: MemberAdvantage, chain: dict[int, int], bound: int
) -> tuple[TrainRow, Counter[str]]:
    """One row with the tokens masked that must not be trained, and their count by reason. Weights are still 0."""
    length = len(row.mask)
    mask = np.frombuffer(row.mask, np.uint8).astype(bool)
    mask[:1] = False  # nothing predicts the first token
    logprobs = np.frombuffer(row.logprobs, "<f4").astype(np.float64)
    values, reasons = _by_call(row, t.calls, advantage, length)
    ages = _ages(row, chain, length)
    masked: Counter[str] = Counter()
    for reason, bad in (
        *reasons.items(),
        ("no_version", ages == UNKNOWN_VERSION),
        ("abandoned_version", ages == NEVER),
        ("stale", ages > bound),
        ("nonfinite_logprobs", ~np.isfinite(logprobs)),
    ):
        masked[reason] += int((mask & bad).sum())
        mask &= ~bad
    return TrainRow(
        rollout_id=t.rollout_id,
        token_ids=np.frombuffer(row.token_ids, "<i4").astype(np.int64),
        mask=mask,
        logprobs=np.where(mask, logprobs, 0.0),
        advantages=np.where(mask, values, 0.0),
        weights=np.zeros(length),
        staleness=np.where(mask, ages, 0),
        temperature=1.0 if row.sampling.temperature is None else row.sampling.temperature,
    ), +masked


def _by_call(
    row: Row, calls: Sequence[Call], advantage: MemberAdvantage, length: int
) -> tuple[Floats, dict[str, Bools]]:
    """Advantage per token, and masks of tokens whose call is not trained, by reason."""
    values = np.zeros(length)
    reasons = {"no_credit": np.ones(length, bool)}
    for s in row.segments:
        excluded, value = calls[s.call].excluded, advantage.calls[s.call]
        if excluded is not None:
            reasons.setdefault(excluded, np.zeros(length, bool))[s.start : s.end] = True
        if excluded is not None or value is not None:
            reasons["no_credit"][s.start : s.end] = False
        values[s.start : s.end] = 0.0 if value is None else value
    return values, reasons


def _ages(row: Row, chain: dict[int, int], length: int) -> Ints:
    """(T,) publishes since each token's version; UNKNOWN_VERSION without one, NEVER off the line."""
    ages = np.full(length, UNKNOWN_VERSION, np.int64)
    for run in row.policy_versions:
        ages[run.start : run.end] = chain.get(run.version, NEVER)
    return ages


def weigh(rows: Sequence[TrainRow], rollouts: int, weighting: Weighting) -> list[TrainRow]:
    """Rows with their token weights; `rollouts` is R."""
    tokens: Counter[str] = Counter()
    for row in rows:
        tokens[row.rollout_id] += row.trained
    total = sum(tokens.values())

    def weight(row: TrainRow) -> float:
        return 1.0 / total if weighting == "token" else 1.0 / (rollouts * tokens[row.rollout_id])

    return [replace(row, weights=np.where(row.mask, weight(row), 0.0)) for row in rows]


def plan(groups: Sequence[ClosedGroup], config: TrainerConfig, at: StepContext) -> Plan:
    """Everything about one step, from its groups in order."""
    estimate = named("advantage", ADVANTAGES, config.advantage)
    rows: list[TrainRow] = []
    decisions: list[Decision] = []
    dropped: Counter[str] = Counter()
    masked: Counter[str] = Counter()
    rewards: list[float] = []
    for group in groups:
        left_out: dict[str, list[str]] = {}
        group = _selected(group, config.agents, left_out)
        advantages: GroupAdvantage = estimate(group, config.std)
        kept = _group_rows(group, advantages, config, at, left_out, masked)
        dropped.update(reason for reasons in left_out.values() for reason in reasons)
        rows += kept
        rewards += [m.reward for m in advantages.members if m.reward is not None]
        decisions.append(_decision(group, advantages, kept, left_out, config, at))
    members = [t for g in groups for t in g.members]
    batch = Batch(
        trainer_id=config.trainer_id,
        step=at.step,
        policy_version=at.policy_version,
        members=[BatchMember(t.attempt_id, t.revision, t.input_digest) for t in members],
        groups=[g.group_id for g in groups],
        seed=config.seed + at.step,
        config_digest=config.digest(),
        at_ns=at.at_ns,
    )
    weighted = tuple(weigh(rows, len(members), config.weighting))
    return Plan(weighted, batch, tuple(decisions), tuple(rewards), dropped, masked)


def _selected(group: ClosedGroup, agents: str, dropped: dict[str, list[str]]) -> ClosedGroup:
    """A group with only the agents to be trained; `dropped` gets the reason of what has no row, under its rollout."""
    members: list[Trajectory] = []
    for t in group.members:
        selected, lost = of_agents(t, agents)
        if lost:
            dropped[t.rollout_id] = ["filtered"] * lost
        elif not t.rows:
            dropped[t.rollout_id] = [no_rows_reason(t)]
        members.append(selected)
    return replace(group, members=tuple(members))


def _group_rows(
    group: ClosedGroup,
    advantages: GroupAdvantage,
    config: TrainerConfig,
    at: StepContext,
    dropped: dict[str, list[str]],
    masked: Counter[str],
) -> list[TrainRow]:
    """Rows to train on; `dropped` gets the reason of every other row, under its rollout."""
    kept: list[TrainRow] = []
    for t, advantage in zip(group.members, advantages.members, strict=True):
        for row in t.rows:
            reason = advantages.dropped or ("no_reward" if advantage.reward is None else None)
            reason = reason or row_reason(row, config, at.vocabulary)
            if reason is None:
                built, counts = build_row(t, row, advantage, at.chain, config.max_staleness)
                masked += counts
                if built.trained:
                    kept.append(built)
                    continue
                reason = counts.most_common(1)[0][0] if counts else "empty"
            dropped.setdefault(t.rollout_id, []).append(reason)
    return kept


def _member(
    t: Trajectory, advantage: float | None, rows: Sequence[TrainRow], left_out: Sequence[str]
) -> DecisionMember:
    return DecisionMember(
        rollout_id=t.rollout_id,
        attempt_id=t.attempt_id,
        advantage=advantage,
        trained_rows=len(rows),
        trained_tokens=sum(row.trained for row in rows),
        max_staleness=max((int(row.staleness.max()) for row in rows), default=None),
        reason=", ".join(sorted(set(left_out))) or None,
    )


def _decision(
    group: ClosedGroup,
    advantages: GroupAdvantage,
    kept: Sequence[TrainRow],
    left_out: dict[str, list[str]],
    config: TrainerConfig,
    at: StepContext,
) -> Decision:
    trained: dict[str, list[TrainRow]] = {}
    for row in kept:
        trained.setdefault(row.rollout_id, []).append(row)
    versions = [v.version for t in group.members for row in t.rows for v in row.policy_versions]
    reason = advantages.dropped or (None if kept else "no_trainable_tokens")
    return Decision(
        trainer_id=config.trainer_id,
        step=at.step,
        run_id=config.run_id,
        group_id=group.group_id,
        members=[
            _member(t, a.advantage, trained.get(t.rollout_id, []), left_out.get(t.rollout_id, []))
            for t, a in zip(group.members, advantages.members, strict=True)
        ],
        min_version=min(versions, default=None),
        max_version=max(versions, default=None),
        outcome="used" if reason is None else "dropped",
        reason=reason or ("deadline" if group.partial else None),
        at_ns=at.at_ns,
    )


def mini_batches(rows: Sequence[TrainRow], count: int) -> list[list[TrainRow]]:
    """Rows cut into up to `count` parts at rollout borders, padded to equal length with rows that train nothing.

    Weights grow by the number of parts, so that a part's loss is as large as the whole batch's.
    """
    rollouts: dict[str, list[TrainRow]] = {}
    for row in rows:
        rollouts.setdefault(row.rollout_id, []).append(row)
    parts: list[list[TrainRow]] = [[] for _ in range(min(count, len(rollouts)))]
    for i, own in enumerate(rollouts.values()):
        parts[i * len(parts) // len(rollouts)] += own
    longest = max(map(len, parts), default=0)
    scaled = [[replace(r, weights=r.weights * len(parts)) for r in part] for part in parts]
    return [part + [PADDING] * (longest - len(part)) for part in scaled]


# Two tokens, because a row's log-probs start at its second.
PADDING = TrainRow(
    rollout_id="",
    token_ids=np.zeros(2, np.int64),
    mask=np.zeros(2, bool),
    logprobs=np.zeros(2),
    advantages=np.zeros(2),
    weights=np.zeros(2),
    staleness=np.zeros(2, np.int64),
)
