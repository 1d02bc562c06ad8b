"""What of the calls is trained on, and why the others are not."""

from __future__ import annotations

from typing import Any

import pytest
from events import Bench, batch, end, llm, rew

from spanloop.schemas.records import Span, Trajectory, VersionRun


def assembled(*calls: Span) -> Trajectory:
    bench = Bench()
    bench.give(batch(*calls, begin=True), rew(1.0), batch(end=end()))
    return bench.last()


def reasons(found: Trajectory) -> list[str | None]:
    return [call.excluded for call in found.calls]


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({"constrained": True}, "sampling_untrainable"),
        ({"multimodal": True}, "multimodal"),
        ({"constrained": True, "policy": None}, "foreign_model"),
    ],
)
def test_a_call_whose_log_probs_the_trainer_cannot_compute_is_left_out(fields: dict[str, Any], reason: str) -> None:
    found = assembled(llm("s1", [1], [2], seq=1, **fields), llm("s2", [5], [6], seq=2))
    assert (reasons(found), len(found.rows), reason in found.flags) == ([reason, None], 1, True)


@pytest.mark.parametrize(
    "runs",
    [
        [VersionRun(1, 0, 5)],
        [VersionRun(1, -1, 1)],
        [VersionRun(1, 1, 0)],
        [VersionRun(1, 1, 2), VersionRun(2, 0, 1)],
        [VersionRun(1, 0, 2), VersionRun(2, 1, 2)],
    ],
)
def test_version_runs_that_do_not_fit_the_response_cost_their_call_and_no_other(runs: list[VersionRun]) -> None:
    calls = llm("s1", [1], [2, 3], policy_versions=runs, seq=1), llm("s2", [1, 2, 3, 9], [6], policy_versions=[], seq=2)
    found = assembled(*calls)
    assert reasons(found) == ["bad_packing", None]
    assert [row.policy_versions for row in found.rows] == [[]]


def test_version_runs_with_gaps_are_kept_as_they_are() -> None:
    runs = [VersionRun(1, 0, 1), VersionRun(1, 1, 1), VersionRun(2, 2, 3)]
    found = assembled(llm("s1", [1], [2, 3, 4, 5], policy_versions=runs))
    assert [(v.version, v.start, v.end) for v in found.rows[0].policy_versions] == [(1, 1, 2), (1, 2, 2), (2, 3, 4)]
