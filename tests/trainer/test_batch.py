"""Which tokens are trained, with which weight, and what is counted of the rest."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from spanloop.schemas.packed import pack_logprobs
from spanloop.schemas.records import Call, Credit, Row, Sampling, Segment, Trajectory, VersionRun
from spanloop.trainer.advantage import MemberAdvantage
from spanloop.trainer.batch import Plan, StepContext, TrainRow, build_row, mini_batches, plan, weigh
from spanloop.trainer.config import TrainerConfig
from spanloop.trainer.groups import ClosedGroup
from spanloop.trainer.selection import untrainable

Make = Callable[..., Trajectory]
LINE = {version: 10 - version for version in range(1, 11)}  # 10 is the newest of ten in a row


def planned(config: TrainerConfig, groups: Sequence[Sequence[Trajectory]], chain: dict[int, int] | None = None) -> Plan:
    """The step on these groups."""
    closed = [ClosedGroup(f"g{i}", tuple(g), len(g)) for i, g in enumerate(groups)]
    return plan(closed, config, StepContext(1, 10, LINE if chain is None else chain))


def test_stale_and_unversioned_rows_go_out_and_their_rewards_stay(config: TrainerConfig, make_trajectory: Make) -> None:
    versions = (10, 9, 8, 7, None)  # case TN-3
    members = [make_trajectory(float(i), sample=i, version=v) for i, v in enumerate(versions)]
    found = planned(replace(config, max_staleness=2), [members])
    assert [r.rollout_id for r in found.rows] == ["ro-g-0", "ro-g-1", "ro-g-2"]
    assert dict(found.dropped) == {"stale": 1, "no_version": 1}
    assert [float(r.advantages[3]) for r in found.rows] == [-2.0, -1.0, 0.0]  # mean of all five rewards: 2
    (decision,) = found.decisions
    assert [m.advantage for m in decision.members] == [-2.0, -1.0, 0.0, 1.0, 2.0]
    assert [m.trained_tokens for m in decision.members] == [2, 2, 2, 0, 0]
    assert (decision.min_version, decision.max_version, decision.outcome) == (7, 10, "used")


def test_eight_rollouts_without_rows_leave_nothing_to_train_on(config: TrainerConfig, make_trajectory: Make) -> None:
    members = [replace(make_trajectory(float(i), sample=i), rows=[], calls=[]) for i in range(8)]  # case TN-2
    found = planned(config, [members])
    assert found.rows == ()
    assert found.cause == "1 groups no_trainable_tokens, 8 rows or rollouts no_llm_calls"
    assert {m.reason for m in found.decisions[0].members} == {"no_llm_calls"}
    assert len(found.batch.members) == 8
    assert [(d.outcome, d.reason) for d in found.decisions] == [("dropped", "no_trainable_tokens")]


def test_one_response_under_three_versions_loses_only_its_oldest_tokens() -> None:
    runs = [VersionRun(2, 1, 3), VersionRun(4, 3, 5), VersionRun(6, 5, 13)]  # case SP-18
    row = Row(
        token_ids=np.arange(13, dtype="<i4").tobytes(),
        mask=bytes([0] + [1] * 12),
        logprobs=pack_logprobs([-1.0] * 13),
        policy_versions=runs,
        segments=[Segment(1, 13, 0)],
    )
    t = Trajectory("ro", "at", 1, "d", rows=[row], calls=[Call("s")])
    chain = {version: 7 - version for version in range(1, 8)}
    built, masked = build_row(t, row, MemberAdvantage(1.0, 1.0, (1.0,)), chain, bound=4)
    assert built.mask.tolist() == [False] * 3 + [True] * 10
    assert dict(masked) == {"stale": 2}
    assert built.staleness.tolist() == [0] * 3 + [3] * 2 + [1] * 8


def test_staleness_counts_publishes_on_the_line_not_version_numbers(
    config: TrainerConfig, make_trajectory: Make
) -> None:
    chain = {9: 0, 4: 1, 3: 2}  # versions 5 to 8 were abandoned
    members = [make_trajectory(float(i), sample=i, version=v) for i, v in enumerate((9, 3, 6))]
    found = planned(replace(config, max_staleness=2), [members], chain)
    assert [int(r.staleness[3]) for r in found.rows] == [0, 2]
    assert dict(found.dropped) == {"abandoned_version": 1}


def test_nan_and_infinite_log_probs_mask_their_own_token(config: TrainerConfig, make_trajectory: Make) -> None:
    def with_logprobs(t: Trajectory, *values: float | None) -> Trajectory:
        packed = pack_logprobs([None, None, None, *values])
        return replace(t, rows=[replace(t.rows[0], logprobs=packed)])

    one, two = (make_trajectory(float(i), sample=i, version=10) for i in range(2))
    found = planned(config, [[with_logprobs(one, -math.inf, -0.5), with_logprobs(two, None, math.inf)]])
    assert [r.mask.tolist() for r in found.rows] == [[False, False, False, False, True]]
    assert dict(found.masked) == {"nonfinite_logprobs": 3}
    assert dict(found.dropped) == {"nonfinite_logprobs": 1}
    assert all(np.isfinite(r.logprobs).all() for r in found.rows)


@pytest.mark.parametrize(
    ("sampling", "wanted"),
    [
        (Sampling(), False),
        (Sampling(temperature=0.7, top_p=1.0, top_k=-1, min_p=0.0, logprob_mode="processed"), False),
        (Sampling(temperature=1.0, logprob_mode="raw"), False),
        (Sampling(temperature=0.7, logprob_mode="raw"), True),
        (Sampling(temperature=0.7), True),  # nobody says: it may be raw
        (Sampling(temperature=1.0, top_p=1.0, top_k=0), False),
        (Sampling(temperature=math.nan, logprob_mode="processed"), True),
        (Sampling(temperature=math.inf, logprob_mode="processed"), True),
        (Sampling(temperature=-1.0, logprob_mode="processed"), True),
        (Sampling(top_p=math.nan), True),
        (Sampling(temperature=0.0), True),
        (Sampling(top_p=0.9), True),
        (Sampling(top_k=20), True),
        (Sampling(min_p=0.05), True),
        (Sampling(penalties=True), True),
    ],
)
def test_sampling_that_the_trainer_cannot_reproduce_is_not_trained(sampling: Sampling, wanted: bool) -> None:
    assert untrainable(sampling) is wanted


def test_rows_go_out_for_sampling_length_and_a_foreign_model(config: TrainerConfig, make_trajectory: Make) -> None:
    members = [make_trajectory(float(i), sample=i, version=10, calls=1 + 2 * (i == 1)) for i in range(4)]
    members[2] = replace(members[2], rows=[replace(members[2].rows[0], sampling=Sampling(top_p=0.5))])
    members[3] = replace(members[3], rows=[replace(members[3].rows[0], policy="other")])
    found = planned(replace(config, max_row_tokens=10), [members])
    assert [r.rollout_id for r in found.rows] == ["ro-g-0"]
    assert dict(found.dropped) == {"too_long": 1, "sampling_untrainable": 1, "foreign_model": 1}


def test_a_row_over_the_limit_is_dropped_whole_with_a_count(config: TrainerConfig) -> None:
    def long(sample: int, length: int) -> Trajectory:
        row = Row(
            token_ids=bytes(4 * length),
            mask=bytes([0] + [1] * (length - 1)),
            logprobs=pack_logprobs([-1.0] * length),
            policy_versions=[VersionRun(10, 0, length)],
            segments=[Segment(1, length, 0)],
        )
        return Trajectory(f"ro-{sample}", f"at-{sample}", 1, "d", rows=[row], calls=[Call("s")], final_reward=sample)

    found = planned(replace(config, max_row_tokens=4608), [[long(0, 6859), long(1, 4608)]])  # case TN-9
    assert dict(found.dropped) == {"too_long": 1}
    assert [len(r.mask) for r in found.rows] == [4608]
    assert all(len(v) == 4608 for r in found.rows for v in (r.token_ids, r.logprobs, r.advantages, r.staleness))


def test_excluded_calls_are_not_trained_even_where_a_row_holds_them(
    config: TrainerConfig, make_trajectory: Make
) -> None:
    members = [make_trajectory(float(i), sample=i, version=10, calls=2) for i in range(2)]
    members[0] = replace(members[0], calls=[members[0].calls[0], replace(members[0].calls[1], excluded="undelivered")])
    found = planned(config, [members])
    assert [r.trained for r in found.rows] == [2, 4]
    assert dict(found.masked) == {"undelivered": 2}


def test_calls_that_earn_nothing_by_mode_last_do_not_dilute_their_rollout(
    config: TrainerConfig, make_trajectory: Make
) -> None:
    members = [make_trajectory(float(i), sample=i, version=10, calls=3, credit=Credit("last")) for i in range(2)]
    found = planned(config, [members])
    assert [r.trained for r in found.rows] == [2, 2]
    assert found.rows[0].weights.sum() == pytest.approx(0.5)


def loss_weight(rows: Sequence[TrainRow]) -> dict[str, float]:
    """Total weight of each rollout."""
    return {r.rollout_id: math.fsum(r.weights) for r in rows}


def test_unequal_turns_weigh_the_same_by_rollout_and_by_their_tokens_by_token(
    config: TrainerConfig, make_trajectory: Make
) -> None:
    members = [make_trajectory(float(i), sample=i, version=10, calls=k) for i, k in enumerate((1, 9))]  # case CA-14
    by_rollout = loss_weight(planned(config, [members]).rows)
    assert by_rollout == {"ro-g-0": pytest.approx(0.5), "ro-g-1": pytest.approx(0.5)}
    by_token = loss_weight(planned(replace(config, weighting="token"), [members]).rows)
    assert by_token == {"ro-g-0": pytest.approx(0.1), "ro-g-1": pytest.approx(0.9)}


def test_zero_spread_groups_train_nothing_and_still_count_in_r(config: TrainerConfig, make_trajectory: Make) -> None:
    spread = [make_trajectory(float(i), group="a", sample=i, version=10) for i in range(2)]
    flat = [make_trajectory(1.2, group="b", sample=i, version=10) for i in range(8)]
    found = planned(config, [spread, flat])
    assert {r.rollout_id for r in found.rows} == {"ro-a-0", "ro-a-1"}
    assert loss_weight(found.rows) == {"ro-a-0": pytest.approx(0.1), "ro-a-1": pytest.approx(0.1)}
    assert [(d.outcome, d.reason) for d in found.decisions] == [("used", None), ("dropped", "zero_spread")]
    assert dict(found.dropped) == {"zero_spread": 8}


def test_a_rollout_of_two_rows_shares_its_weight_between_them(config: TrainerConfig, make_trajectory: Make) -> None:
    one, two = (make_trajectory(float(i), sample=i, version=10) for i in range(2))
    found = planned(config, [[replace(one, rows=one.rows * 2), two]])
    assert [math.fsum(r.weights) for r in found.rows] == [pytest.approx(0.25), pytest.approx(0.25), pytest.approx(0.5)]


def test_the_batch_names_every_member_in_order(config: TrainerConfig, make_trajectory: Make) -> None:
    members = [make_trajectory(1.0, sample=i) for i in range(2)]
    batch = planned(replace(config, seed=7), [members]).batch
    assert [(m.attempt_id, m.revision, m.input_digest) for m in batch.members] == [
        ("at-g-0-1", 3, "digest-g-0-1-3"),
        ("at-g-1-1", 3, "digest-g-1-1-3"),
    ]
    assert (batch.step, batch.policy_version, batch.seed, batch.groups) == (1, 10, 8, ["g0"])
    assert batch.config_digest == replace(config, seed=7).digest()


@given(st.lists(st.integers(1, 4), min_size=1, max_size=9), st.integers(1, 5))
def test_mini_batches_are_cut_at_rollouts_lose_nothing_and_have_equal_length(
    make_row: Callable[..., TrainRow], rows_of: list[int], count: int
) -> None:
    rows = [make_row([5, 6, 7, 8], rollout=f"ro-{i}") for i, n in enumerate(rows_of) for _ in range(n)]
    rows = weigh(rows, len(rows_of), "rollout")
    parts = mini_batches(rows, count)
    assert len(parts) == min(count, len(rows_of))
    assert len({len(p) for p in parts}) == 1
    real = [[r for r in p if r.rollout_id] for p in parts]
    assert [r.rollout_id for p in real for r in p] == [r.rollout_id for r in rows]
    owners = [{r.rollout_id for r in p} for p in real]
    assert all(owners)
    assert sum(map(len, owners)) == len(rows_of)
    assert not any(r.mask.any() for p in parts for r in p if not r.rollout_id)
    assert math.fsum(w for p in parts for r in p for w in r.weights) == pytest.approx(len(parts))
