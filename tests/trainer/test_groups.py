"""When groups close, who counts in them, and that they stay closed."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spanloop.infra.clock import NS_PER_S
from spanloop.schemas.records import RewardRef, Trajectory
from spanloop.trainer.groups import Groups

Make = Callable[..., Trajectory]
T0 = 1_760_000_000_000_000_000
DEADLINE_S = 60.0


def ids(groups: Groups) -> list[list[str]]:
    """Attempts of the ready groups, in closing order."""
    return [[t.attempt_id for t in g.members] for g in groups.state.ready]


def test_a_group_closes_when_its_last_member_is_done(make_trajectory: Make) -> None:
    groups = Groups(DEADLINE_S)
    for sample in (2, 0, 3):
        groups.offer(make_trajectory(1.0, sample=sample), T0)
        assert groups.state.ready == []
    groups.offer(make_trajectory(1.0, sample=1), T0)
    assert ids(groups) == [["at-g-0-1", "at-g-1-1", "at-g-2-1", "at-g-3-1"]]
    assert not groups.state.ready[0].partial


def test_an_attempt_that_is_not_final_completes_nothing(make_trajectory: Make) -> None:
    groups = Groups(DEADLINE_S)
    groups.offer(make_trajectory(0.0, size=1, final=False), T0)
    assert ids(groups) == []
    groups.offer(make_trajectory(1.0, size=1, attempt=2), T0)
    assert ids(groups) == [["at-g-0-2"]]


def test_thirty_two_rollouts_of_which_two_were_tried_twice_make_thirty_two_members(make_trajectory: Make) -> None:
    groups = Groups(DEADLINE_S)  # case TN-1: the failures of the first tries arrive last
    for sample in range(32):
        attempt = 2 if sample < 2 else 1
        groups.offer(make_trajectory(1.0, sample=sample, size=32, attempt=attempt), T0)
    for sample in range(2):
        late = make_trajectory(None, sample=sample, size=32, attempt=1, final=False)
        assert groups.offer(late, T0) == "late"
    (group,) = groups.state.ready
    assert len(group.members) == len({t.rollout_id for t in group.members}) == 32
    assert [t.context.attempt_number for t in group.members] == [2, 2, *[1] * 30]


def test_of_equal_revisions_the_one_with_an_end_counts_in_any_order(make_trajectory: Make) -> None:
    whole = make_trajectory(1.0, sample=0, size=2, revision=3)
    cut = replace(whole, final=False, flags=["no_end"], input_digest="before the end marker")
    for order in ((cut, whole), (whole, cut)):
        groups = Groups(DEADLINE_S)
        for t in order:
            groups.offer(t, T0)
        assert list(groups.state.open["g"].attempts.values()) == [whole]


def test_the_highest_revision_counts_in_any_order(make_trajectory: Make) -> None:
    for order in ((3, 5), (5, 3)):
        groups = Groups(DEADLINE_S)
        for revision in order:
            groups.offer(make_trajectory(1.0, sample=0, size=2, revision=revision), T0)
        groups.offer(make_trajectory(1.0, sample=1, size=2), T0)
        assert [t.revision for t in groups.state.ready[0].members] == [5, 3]


def test_a_group_waits_for_an_awaited_reward_until_its_deadline(make_trajectory: Make) -> None:
    groups = Groups(DEADLINE_S)
    t = make_trajectory(None, size=1, awaits=["judge"])
    groups.offer(t, T0)
    groups.tick(T0 + 9 * NS_PER_S)
    assert ids(groups) == []
    groups.tick(T0 + 10 * NS_PER_S)
    assert ids(groups) == [["at-g-0-1"]]
    assert not groups.state.ready[0].partial


def test_an_awaited_reward_that_comes_closes_the_group(make_trajectory: Make) -> None:
    groups = Groups(DEADLINE_S)
    t = make_trajectory(None, size=1, awaits=["judge"])
    groups.offer(t, T0)
    groups.offer(replace(t, revision=4, rewards=[RewardRef("rw", "judge", "final", 1.0)]), T0)
    assert ids(groups) == [["at-g-0-1"]]


def test_a_reward_that_came_in_time_counts_however_late_it_is_read(make_trajectory: Make) -> None:
    groups, late_ns = Groups(DEADLINE_S), T0 + 999 * NS_PER_S
    t = make_trajectory(None, size=1, awaits=["judge"])
    groups.offer(t, late_ns, T0)
    assert (ids(groups), groups.due(late_ns)) == ([], ["g"])
    groups.offer(replace(t, revision=4, rewards=[RewardRef("rw", "judge", "final", 1.0)]), late_ns, T0 + NS_PER_S)
    (group,) = groups.state.ready
    assert ([t.revision for t in group.members], group.partial) == ([4], False)


@pytest.mark.parametrize("apart_s", [-3600, 3600])
def test_a_reward_deadline_is_counted_from_the_log_and_not_by_a_workers_clock(
    make_trajectory: Make, apart_s: int
) -> None:
    groups = Groups(DEADLINE_S)
    t = replace(make_trajectory(None, size=1, awaits=["judge"]), end_ns=T0 + apart_s * NS_PER_S)
    groups.offer(t, T0, T0 - 2 * NS_PER_S)
    groups.tick(T0 + 7 * NS_PER_S)
    assert ids(groups) == []
    groups.tick(T0 + 8 * NS_PER_S)
    assert ids(groups) == [["at-g-0-1"]]


def test_a_stamp_from_the_future_counts_as_now_and_a_group_whose_members_are_all_there_is_whole(
    make_trajectory: Make,
) -> None:
    groups = Groups(DEADLINE_S)
    groups.offer(make_trajectory(None, size=1, awaits=["judge"]), T0, T0 + 3600 * NS_PER_S)
    groups.tick(T0 + 9 * NS_PER_S)
    assert ids(groups) == []
    groups.tick(T0 + 10 * NS_PER_S)
    assert (ids(groups), groups.state.ready[0].partial) == ([["at-g-0-1"]], False)


def test_a_later_revision_does_not_move_a_reward_deadline(make_trajectory: Make) -> None:
    groups = Groups(DEADLINE_S)
    for revision in (3, 4, 2):
        groups.offer(make_trajectory(None, size=1, awaits=["judge"], revision=revision), T0, T0 + revision * NS_PER_S)
    groups.tick(T0 + 13 * NS_PER_S)
    assert [[t.revision for t in g.members] for g in groups.state.ready] == [[4]]


@pytest.mark.parametrize("wait_s", [math.inf, -math.inf, math.nan, 1e300])
def test_a_reward_deadline_that_never_comes_leaves_it_to_the_groups(make_trajectory: Make, wait_s: float) -> None:
    groups = Groups(DEADLINE_S)
    t = make_trajectory(None, size=1, awaits=["judge"])
    groups.offer(replace(t, context=replace(t.context, reward_deadline_s=wait_s)), T0)
    groups.tick(T0 + 59 * NS_PER_S)
    assert ids(groups) == []
    groups.tick(T0 + 60 * NS_PER_S)
    assert (ids(groups), groups.state.ready[0].partial) == ([["at-g-0-1"]], True)


@pytest.mark.parametrize("size", [0, -3])
def test_a_group_of_a_size_that_is_none_closes_with_its_first_member_and_not_before(
    make_trajectory: Make, size: int
) -> None:
    groups = Groups(DEADLINE_S)
    groups.offer(make_trajectory(0.0, size=size, final=False), T0)
    assert ids(groups) == []
    groups.offer(make_trajectory(1.0, size=size, attempt=2), T0)
    assert ids(groups) == [["at-g-0-2"]]


def test_a_deadline_closes_a_group_with_who_is_there_and_flags_it(make_trajectory: Make) -> None:
    groups = Groups(DEADLINE_S)
    groups.offer(make_trajectory(1.0, sample=0), T0)
    groups.offer(make_trajectory(1.0, sample=1), T0 + 59 * NS_PER_S)
    groups.tick(T0 + 59 * NS_PER_S)
    assert ids(groups) == []
    groups.tick(T0 + 60 * NS_PER_S)
    assert ids(groups) == [["at-g-0-1", "at-g-1-1"]]
    assert groups.state.ready[0].partial


def test_a_closed_group_never_opens_again_and_late_revisions_are_counted(make_trajectory: Make) -> None:
    groups = Groups(DEADLINE_S)
    groups.offer(make_trajectory(1.0, size=1), T0)
    groups.take(1)
    for revision in (4, 5):
        assert groups.offer(make_trajectory(0.0, size=1, revision=revision), T0) == "late"
    groups.tick(T0 + 999 * NS_PER_S)
    assert (ids(groups), groups.state.late) == ([], 2)


def test_the_oldest_policy_version_goes_first_then_closing_order(make_trajectory: Make) -> None:
    groups = Groups(DEADLINE_S)
    for name, version in (("a", 7), ("b", 5), ("c", 5), ("d", 6)):
        groups.offer(make_trajectory(1.0, group=name, size=1, version=version), T0)
    assert groups.take(5) == []
    assert [g.group_id for g in groups.take(3)] == ["b", "c", "d"]
    assert [g.group_id for g in groups.take(1)] == ["a"]


def test_a_rollout_without_a_group_is_alone_in_its_own(make_trajectory: Make) -> None:
    groups = Groups(DEADLINE_S)
    t = make_trajectory(1.0, size=1)
    groups.offer(replace(t, context=replace(t.context, group_id=None)), T0)
    assert [g.group_id for g in groups.state.ready] == [t.rollout_id]


@given(st.permutations([(s, a, r) for s in range(3) for a in (1, 2) for r in (3, 4)]), st.data())
def test_members_do_not_depend_on_order_or_duplicates(
    make_trajectory: Make, order: list[tuple[int, int, int]], data: st.DataObject
) -> None:
    """Everything is offered before the group can close: one more member comes last."""
    groups = Groups(DEADLINE_S)
    again = data.draw(st.lists(st.sampled_from(order)))
    for sample, attempt, revision in [*order, *again]:
        groups.offer(make_trajectory(1.0, sample=sample, attempt=attempt, revision=revision, final=attempt == 2), T0)
    groups.offer(make_trajectory(1.0, sample=3), T0)
    (group,) = groups.state.ready
    assert [(t.attempt_id, t.revision) for t in group.members] == [
        ("at-g-0-2", 4), ("at-g-1-2", 4), ("at-g-2-2", 4), ("at-g-3-1", 3),
    ]  # fmt: skip
