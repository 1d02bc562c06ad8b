"""Credit assignment against hand-computed values."""

from __future__ import annotations

import sys

import pytest

from spanloop.schemas.credit import assign, spread, valid
from spanloop.schemas.records import Credit, CreditMode

MODES: list[CreditMode] = ["identical", "last", "discounted", "step", "sum"]


@pytest.mark.parametrize("mode", MODES)
def test_a_step_reward_alone_counts_in_every_mode(mode: CreditMode) -> None:
    # CA-1 (a)
    assert assign(Credit(mode), [0.3], None) == [0.3]


@pytest.mark.parametrize(("mode", "credit"), [("identical", 1.0), ("step", 0.3), ("sum", 1.3)])
def test_a_step_and_a_final_reward_meet_as_the_mode_says(mode: CreditMode, credit: float) -> None:
    # CA-1 (b)
    assert assign(Credit(mode), [0.3], 1.0) == [pytest.approx(credit)]


@pytest.mark.parametrize("mode", MODES)
def test_a_final_reward_alone_counts_in_every_mode(mode: CreditMode) -> None:
    # CA-1 (c)
    assert assign(Credit(mode), [None], 1.0) == [1.0]


def test_discounting_by_a_half_over_three_calls() -> None:
    # CA-1
    assert assign(Credit("discounted", 0.5), [None, None, None], 1.0) == [0.25, 0.5, 1.0]


def test_missing_is_none_and_never_zero() -> None:
    assert assign(Credit("identical"), [None, None], None) == [None, None]
    assert assign(Credit("last"), [None, None], 1.0) == [None, 1.0]
    assert assign(Credit("step"), [0.3, None], 1.0) == [0.3, None]
    assert assign(Credit("sum"), [0.3, None], 1.0) == [1.3, 1.0]


def test_an_attempt_without_calls_has_no_credit() -> None:
    assert assign(Credit("last"), [], 1.0) == []


def test_a_mode_of_a_newer_version_counts_as_identical() -> None:
    assert assign(Credit("unknown"), [0.3, None], 1.0) == [1.0, 1.0]
    assert spread(Credit("unknown"), [0.3, None], 1.0, [None, None]) == [1.0, 1.0]
    assert assign(Credit("unknown"), [0.3, None], None) == [0.3, None]


def test_what_is_no_number_or_past_the_bound_is_no_reward() -> None:
    given = [None, 0.0, -1e30, 1e31, -sys.float_info.max, float("inf"), float("nan")]
    assert [valid(x) for x in given] == [None, 0.0, -1e30, None, None, None, None]


@pytest.mark.parametrize(
    ("mode", "wanted"),
    [
        ("identical", [None, 1.0, None, 1.0, None]),
        ("last", [None, None, None, 1.0, None]),
        ("discounted", [None, 0.5, None, 1.0, None]),
        ("step", [0.2, None, 0.4, 0.3, None]),
        ("sum", [0.2, 1.0, 0.4, 1.3, None]),
    ],
)
def test_the_final_reward_goes_to_calls_in_rows_and_own_ones_stay(mode: CreditMode, wanted: list[float | None]) -> None:
    own = [0.2, None, 0.4, 0.3, None]
    excluded = ["client_retry", None, "no_token_ids", None, "undelivered"]
    assert spread(Credit(mode, 0.5), own, 1.0, excluded) == wanted
    assert spread(Credit(mode, 0.5), own, None, excluded) == own


@pytest.mark.parametrize("mode", ["last", "step"])
def test_without_any_call_in_a_row_those_that_the_agent_used_take_the_final_reward(mode: CreditMode) -> None:
    excluded = ["no_token_ids", "no_token_ids", "undelivered"]
    assert spread(Credit(mode), [None] * 3, 1.0, excluded) == [None, 1.0, None]
    assert spread(Credit(mode), [None], 1.0, ["undelivered"]) == [None]


@pytest.mark.parametrize("mode", MODES)
def test_calls_that_no_room_was_left_for_share_the_final_reward_as_if_they_were_in_rows(mode: CreditMode) -> None:
    own, whole = [0.2, None, 0.4], ["no_token_ids", None, None]
    cut = ["no_token_ids", "bounded", "bounded"]
    assert spread(Credit(mode, 0.5), own, 1.0, cut) == spread(Credit(mode, 0.5), own, 1.0, whole)


def test_a_discount_that_grows_past_every_number_gives_none() -> None:
    found = assign(Credit("discounted", 10.0), [None] * 400, 1.0)
    assert found[0] is None
    assert found[-2:] == [10.0, 1.0]
    assert assign(Credit("discounted", float("nan")), [None, None], 1.0) == [None, 1.0]
    assert assign(Credit("discounted", float("inf")), [None, None], 0.0) == [None, 0.0]
