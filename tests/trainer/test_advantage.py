"""Advantages against values worked out by hand, and against verl's GRPO where that has no known trap."""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportMissingTypeStubs=false
# verl carries no types

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace

import pytest
from events import Bench, batch, end, llm, rew

from spanloop.schemas.credit import OWN_COUNTS
from spanloop.schemas.records import Credit, CreditMode, Trajectory
from spanloop.streams.assembly import without_calls, without_rows
from spanloop.trainer.advantage import GroupAdvantage, call_credits, group_mean, returns_to_go, rollout_reward, shuffled
from spanloop.trainer.groups import ClosedGroup

Make = Callable[..., Trajectory]


def close(members: Sequence[Trajectory], *, std: bool = False) -> GroupAdvantage:
    """Advantages of a group of these members."""
    return group_mean(ClosedGroup("g", tuple(members), len(members)), std)


def by_reward(make: Make, rewards: Sequence[float | None], *, std: bool = False) -> GroupAdvantage:
    """Advantages of single-call rollouts with these final rewards."""
    return close([make(r, sample=i) for i, r in enumerate(rewards)], std=std)


def values(found: GroupAdvantage) -> list[float | None]:
    """A_ρ of each member."""
    return [m.advantage for m in found.members]


@pytest.mark.parametrize(
    ("std", "wanted"), [(False, [2 / 3, None, -1 / 3, -1 / 3]), (True, [1.1547, None, -0.57735, -0.57735])]
)
def test_a_nan_reward_leaves_the_baseline_and_nothing_downstream_is_nan(
    make_trajectory: Make, std: bool, wanted: list[float | None]
) -> None:
    found = by_reward(make_trajectory, [1.0, math.nan, 0.0, 0.0], std=std)  # case CA-2
    assert values(found) == [None if w is None else pytest.approx(w, abs=1e-4) for w in wanted]
    assert found.members[1].calls == (None,)
    assert found.dropped is None


def test_a_failure_reward_that_is_no_number_is_none(make_trajectory: Make) -> None:
    failed = make_trajectory(None, sample=1)
    failed = replace(failed, failure_class="agent", context=replace(failed.context, failure_reward=math.nan))
    found = close([make_trajectory(1.0), failed, make_trajectory(0.0, sample=2)])
    assert values(found) == [0.5, None, -0.5]


def test_a_missing_reward_is_not_zero(make_trajectory: Make) -> None:
    found = by_reward(make_trajectory, [None, -1.0, -1.0, None])  # case CA-4
    assert values(found) == [None, 0.0, 0.0, None]
    assert found.dropped == "zero_spread"


@pytest.mark.parametrize("rewards", [[1.0] * 4, [1.2] * 8, [0.2] * 8])
@pytest.mark.parametrize("std", [False, True])
def test_equal_rewards_give_exactly_zero(make_trajectory: Make, rewards: list[float], std: bool) -> None:
    found = by_reward(make_trajectory, rewards, std=std)  # case CA-5
    assert values(found) == [0.0] * len(rewards)
    assert found.dropped == "zero_spread"


@pytest.mark.parametrize("rewards", [[1.0], [1.0, None, None]])
def test_a_single_member_is_dropped(make_trajectory: Make, rewards: list[float | None]) -> None:
    found = by_reward(make_trajectory, rewards, std=True)  # case CA-6
    assert found.dropped == "single_member"
    assert values(found)[0] == 0.0


def test_a_group_without_rewards_is_dropped(make_trajectory: Make) -> None:
    assert by_reward(make_trajectory, [None, None]).dropped == "no_reward"


def test_close_rewards_keep_their_spread(make_trajectory: Make) -> None:
    rewards = [1.00000, 1.00001]  # case CA-7
    assert values(by_reward(make_trajectory, rewards, std=True)) == [
        pytest.approx(-0.62, abs=0.005),
        pytest.approx(0.62, abs=0.005),
    ]
    plain = by_reward(make_trajectory, rewards)
    assert values(plain) == [pytest.approx(-5e-6, rel=1e-6), pytest.approx(5e-6, rel=1e-6)]
    assert plain.dropped is None


def test_a_rollout_counts_once_however_many_calls_it_has(make_trajectory: Make) -> None:
    turns, rewards = (1, 1, 3, 3), (0.0, 0.0, 1.0, 1.0)
    members = [make_trajectory(r, sample=i, calls=k) for i, (k, r) in enumerate(zip(turns, rewards, strict=True))]
    found = close(members)
    assert values(found) == [-0.5, -0.5, 0.5, 0.5]  # not -0.75 and 0.25, as over rows
    assert found.members[2].calls == (0.5, 0.5, 0.5)


@pytest.mark.parametrize(
    ("mode", "wanted"),
    [
        ("identical", (0.5, 0.5, 0.5)),
        ("last", (None, None, 0.5)),
        ("discounted", (0.125, 0.25, 0.5)),
    ],
)
def test_the_credit_mode_spreads_an_advantage_over_calls(
    make_trajectory: Make, mode: CreditMode, wanted: tuple[float | None, ...]
) -> None:
    credit = Credit(mode, 0.5)
    members = [make_trajectory(r, sample=i, calls=3, credit=credit) for i, r in enumerate((1.0, 0.0))]
    assert close(members).members[0].calls == wanted


def test_last_means_the_last_call_that_is_kept(make_trajectory: Make) -> None:
    members = [make_trajectory(r, sample=i, calls=2, credit=Credit("last")) for i, r in enumerate((1.0, 0.0))]
    cut = replace(members[0], calls=[members[0].calls[0], replace(members[0].calls[1], excluded="undelivered")])
    assert close([cut, members[1]]).members[0].calls == (0.5, None)


@pytest.mark.parametrize("mode", ["sum", "step"])
@pytest.mark.parametrize("why", ["client_retry", "undelivered", "unused_choice", "no_token_ids"])
def test_a_call_in_no_row_adds_no_final_reward_and_moves_no_index(
    make_trajectory: Make, mode: CreditMode, why: str
) -> None:
    one, two = (make_trajectory(1.0, sample=i, calls=2 - i, credit=Credit(mode)) for i in range(2))
    for at in (0, 1):
        calls = [replace(c, excluded=why) if k == at else c for k, c in enumerate(one.calls)]
        found = close([replace(one, calls=calls), two])
        assert ([m.reward for m in found.members], found.dropped) == ([1.0, 1.0], "zero_spread")
        assert found.members[0].calls == ((None, 0.0), (0.0, None))[at]


def test_a_step_reward_on_a_call_in_no_row_counts_for_the_calls_before_it(make_trajectory: Make) -> None:
    one, two = (make_trajectory(None, sample=i, calls=2, own=[None, 0.5 - i], credit=Credit("step")) for i in range(2))
    one = replace(one, calls=[one.calls[0], replace(one.calls[1], excluded="no_token_ids")])
    found = close([one, two])
    assert [m.reward for m in found.members] == [0.5, -0.5]
    assert [m.calls for m in found.members] == [(0.5, None), (-0.5, 0.0)]


def test_a_rollout_whose_calls_reached_nobody_is_compared_by_its_final_reward(make_trajectory: Make) -> None:
    one, two = (make_trajectory(float(i), sample=i, credit=Credit("sum")) for i in range(2))
    found = close([replace(one, calls=[replace(one.calls[0], excluded="undelivered")]), two])
    assert values(found) == [-0.5, 0.5]


@pytest.mark.parametrize("mode", ["identical", "last", "discounted", "step", "sum"])
def test_trainer_and_assembler_agree_on_credit_where_a_call_is_in_no_row(mode: CreditMode) -> None:
    calls = [llm("s1", [1], [2], seq=1), llm("s2", [1], [3], seq=2, client_retry=True), llm("s3", None, None, seq=3)]
    bench = Bench()
    bench.give(batch(*calls, begin=True), rew(1.0), batch(end=end(mode=mode, gamma=0.5)))
    found = bench.last()
    assert [c.credit for c in found.calls] == call_credits(found) == [1.0, None, None]


@pytest.mark.parametrize("mode", ["identical", "last", "discounted", "step", "sum"])
def test_a_rollout_whose_rows_did_not_fit_is_compared_as_it_would_be_with_them(mode: CreditMode) -> None:
    calls = [llm("s1", [1], [2], seq=1), llm("s2", [1, 2, 3], [4], seq=2), llm("s3", None, None, seq=3)]
    bench = Bench()
    bench.give(batch(*calls, begin=True), rew(1.0), rew(0.5, "s1", rid="rw-2"), batch(end=end(mode=mode, gamma=0.5)))
    whole = bench.last()
    assert rollout_reward(without_rows(whole)) == rollout_reward(whole)
    assert call_credits(without_rows(whole)) == call_credits(whole)
    assert rollout_reward(without_calls(whole)) == (None if mode in OWN_COUNTS else 1.0)  # a sum over what is gone


@pytest.mark.parametrize("mode", ["unknown", "identical"])
def test_a_credit_mode_of_a_newer_writer_counts_as_identical(make_trajectory: Make, mode: CreditMode) -> None:
    credit = Credit(mode)
    stepped = [make_trajectory(None, sample=i, own=[float(i)], credit=credit) for i in range(2)]
    assert values(close(stepped)) == [-0.5, 0.5]
    final = [make_trajectory(float(i), sample=i, calls=2, credit=credit) for i in range(2)]
    assert [m.calls for m in close(final).members] == [(-0.5, -0.5), (0.5, 0.5)]
    assert close([make_trajectory(None, sample=i, credit=credit) for i in range(2)]).dropped == "no_reward"


@pytest.mark.parametrize("huge", [-sys.float_info.max, sys.float_info.max, 1e160, -2e30, math.inf])
@pytest.mark.parametrize("std", [False, True])
@pytest.mark.parametrize("mode", ["identical", "discounted", "step", "sum"])
def test_a_reward_past_the_bound_leaves_the_baseline_as_a_nan_does(
    make_trajectory: Make, huge: float, std: bool, mode: CreditMode
) -> None:
    credit = Credit(mode, 1e9)
    for rewards in ([huge, huge, 1.0, 0.0], [huge, -huge, 1.0, 0.0]):
        final = close([make_trajectory(r, sample=i, credit=credit) for i, r in enumerate(rewards)], std=std)
        own = close([make_trajectory(None, sample=i, own=[r], credit=credit) for i, r in enumerate(rewards)], std=std)
        assert values(final)[:2] == values(own)[:2] == [None, None]
        assert all(v is not None and abs(v) < 1 for v in values(final)[2:] + values(own)[2:])


@pytest.mark.parametrize("std", [False, True])
@pytest.mark.parametrize("mode", ["identical", "last", "discounted", "step", "sum"])
def test_rewards_at_the_bound_give_finite_advantages(make_trajectory: Make, std: bool, mode: CreditMode) -> None:
    members = [
        make_trajectory(r, sample=i, calls=50, own=[r] * 50, credit=Credit(mode, 1e9))
        for i, r in enumerate((1e30, -1e30, 1e30))
    ]
    found = close(members, std=std)
    assert found.dropped is None
    assert all(a is None or abs(a) < 1e33 for m in found.members for a in (m.advantage, *m.calls))


def test_step_rewards_are_compared_at_the_same_call_index(make_trajectory: Make) -> None:
    credit = Credit("step")
    one = make_trajectory(None, sample=0, calls=2, own=[1.0, 1.0], credit=credit)
    two = make_trajectory(None, sample=1, calls=3, own=[0.0, 0.0, 4.0], credit=credit)
    found = close([one, two])
    # returns to go: [2, 1] and [4, 4, 4]; the third call has nobody to be compared with
    assert found.members[0].reward == 2.0
    assert found.members[0].calls == (-1.0, -1.5)
    assert found.members[1].calls == (1.0, 1.5, 0.0)


def test_a_call_after_which_no_reward_comes_is_not_trained() -> None:
    assert returns_to_go([0.3, None]) == [0.3, None]
    assert returns_to_go([None, 0.5, None, 1.0]) == [1.5, 1.5, 1.0, 1.0]


def test_the_same_sum_by_different_steps_still_teaches(make_trajectory: Make) -> None:
    credit = Credit("step")
    one = make_trajectory(None, sample=0, calls=2, own=[1.0, 0.0], credit=credit)
    two = make_trajectory(None, sample=1, calls=2, own=[0.0, 1.0], credit=credit)
    found = close([one, two])
    assert found.dropped is None
    assert found.members[0].calls == (0.0, -0.5)


def test_a_failure_of_the_agent_gets_its_tasks_failure_reward_and_one_of_the_infrastructure_none(
    make_trajectory: Make,
) -> None:
    def failed(sample: int, kind: str) -> Trajectory:
        t = make_trajectory(None, sample=sample)
        context = replace(t.context, failure_reward=-1.0)
        return replace(t, status="failed", failure_class=kind, context=context)  # pyright: ignore[reportArgumentType] both are classes

    found = close([make_trajectory(1.0, sample=0), failed(1, "agent"), failed(2, "infra")])
    assert values(found) == [1.0, -1.0, None]


def test_advantages_equal_verls_grpo_over_rollouts_of_one_call(make_trajectory: Make) -> None:
    import warnings

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from spanloop.trainer.step import prepare_device

        prepare_device()
        import numpy as np
        import torch
        from verl.trainer.ppo import core_algos

    rewards = [0.3, 0.9, 0.1, 0.9, 0.5]
    scores = torch.zeros(5, 2)
    scores[:, -1] = torch.tensor(rewards)
    for std in (False, True):
        verls, _ = core_algos.compute_grpo_outcome_advantage(
            scores.clone(), torch.ones(5, 2), np.array(["g"] * 5, dtype=object), norm_adv_by_std_in_grpo=std
        )
        found = values(by_reward(make_trajectory, rewards, std=std))
        assert found == [pytest.approx(float(v), abs=1e-5) for v in verls[:, 0]]


def shuffle(make: Make, rewards: Sequence[float | None], group: str) -> GroupAdvantage:
    """The control's advantages of single-call rollouts."""
    members = tuple(make(r, sample=i, group=group) for i, r in enumerate(rewards))
    return shuffled(ClosedGroup(group, members, len(members)), False)


def test_the_control_permutes_a_groups_rewards_and_centres_them(make_trajectory: Make) -> None:
    rewards = [0.0, 1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0]
    found = shuffle(make_trajectory, rewards, "g")
    moved = [m.reward for m in found.members]
    assert moved != rewards
    assert sorted(r for r in moved if r is not None) == rewards
    assert values(found) == [None if r is None else r - 3.5 for r in moved]
    assert values(found) != values(by_reward(make_trajectory, rewards))


def test_the_control_permutes_alike_in_a_replay_and_otherwise_in_another_group(make_trajectory: Make) -> None:
    rewards = [0.0, 1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0]
    once = {group: values(shuffle(make_trajectory, rewards, group)) for group in ("g", "h", "i")}
    again = {group: values(shuffle(make_trajectory, rewards, group)) for group in ("i", "h", "g")}
    assert once == again
    assert len({tuple(v) for v in once.values()}) == 3


def test_the_control_moves_a_missing_reward_too(make_trajectory: Make) -> None:
    found = shuffle(make_trajectory, [None, 1.0, 2.0, 3.0], "g")
    rewards = [m.reward for m in found.members]
    assert sorted(rewards, key=lambda r: -1.0 if r is None else r) == [None, 1.0, 2.0, 3.0]
    assert [v is None for v in values(found)] == [r is None for r in rewards]
