"""Only the agents that are to be trained, as if the others had made no call."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import pytest

from spanloop.schemas.errors import ConfigError
from spanloop.schemas.packed import pack_ids, pack_logprobs
from spanloop.schemas.records import Call, Credit, CreditMode, Row, Segment, Trajectory, VersionRun
from spanloop.trainer.advantage import call_credits, rollout_reward
from spanloop.trainer.batch import Plan, StepContext, plan
from spanloop.trainer.config import TrainerConfig
from spanloop.trainer.groups import ClosedGroup
from spanloop.trainer.selection import no_rows_reason, of_agents

Make = Callable[..., Trajectory]
NO_CHECK = r"^(?!.*check).*$"
MODES: list[CreditMode] = ["identical", "last", "discounted", "step", "sum"]


def row(call: int, path: str) -> Row:
    """Prompt [1], response [2], drawn by version 10."""
    return Row(
        pack_ids([1, 2]),
        b"\0\1",
        pack_logprobs([None, -1.0]),
        policy="policy",
        policy_versions=[VersionRun(10, 1, 2)],
        segments=[Segment(1, 2, call)],
        agent_path=path,
    )


def attempt(
    agents: Sequence[tuple[str, float | None]], final: float | None = 1.0, *, sample: int = 0, mode: CreditMode = "sum"
) -> Trajectory:
    """One call and one row for each (agent, step reward)."""
    made = Trajectory(f"ro-{sample}", f"at-{sample}", 1, "d", final=True, status="succeeded", final_reward=final)
    calls = [Call(f"{k}", agent_path=path, step_reward=own) for k, (path, own) in enumerate(agents)]
    rows = [row(k, path) for k, (path, _) in enumerate(agents)]
    return replace(made, calls=calls, rows=rows, context=replace(made.context, credit=Credit(mode)))


def planned(config: TrainerConfig, *members: Trajectory) -> Plan:
    group = ClosedGroup("g", members, len(members))
    return plan([group], replace(config, agents=NO_CHECK), StepContext(1, 10, {10: 0}))


@pytest.mark.parametrize("mode", MODES)
def test_a_filtered_agents_calls_are_no_rows_and_its_step_reward_leaks_to_nobody(mode: CreditMode) -> None:  # SP-10
    found, lost = of_agents(attempt([("write", None), ("check", 0.5)], mode=mode), NO_CHECK)
    assert [(c.span_id, c.agent_path) for c in found.calls] == [("0", "write")]
    assert ([r.agent_path for r in found.rows], lost) == (["write"], 1)
    assert (call_credits(found), rollout_reward(found)) == ([1.0], 1.0)


def test_what_is_kept_moves_up_to_the_places_of_what_is_not() -> None:
    found, lost = of_agents(attempt([("a/check", 0.5), ("write", None), ("check", None), ("plan", 0.1)]), NO_CHECK)
    assert [c.span_id for c in found.calls] == ["1", "3"]
    assert [(r.agent_path, r.segments) for r in found.rows] == [
        ("write", [Segment(1, 2, 0)]),
        ("plan", [Segment(1, 2, 1)]),
    ]
    assert lost == 2


def test_without_a_filter_nothing_changes() -> None:
    given = attempt([("write", None), ("check", 0.5)])
    assert of_agents(given, "") == (given, 0)


def test_an_attempt_of_filtered_calls_only_has_no_row_and_stays_in_the_baseline(config: TrainerConfig) -> None:
    members = [attempt([("check", 0.3)], 1.0), attempt([("write", None)], 0.0, sample=1)]  # case CA-1 (d)
    found = planned(config, *members)
    assert [r.rollout_id for r in found.rows] == ["ro-1"]
    assert dict(found.dropped) == {"filtered": 1}
    (decision,) = found.decisions
    assert [(m.advantage, m.trained_rows, m.reason) for m in decision.members] == [
        (0.5, 0, "filtered"),
        (-0.5, 1, None),
    ]


def test_a_last_call_that_is_filtered_leaves_its_reward_to_the_last_one_kept(config: TrainerConfig) -> None:
    members = [attempt([("write", None), ("check", None)], r, sample=i, mode="last") for i, r in enumerate((1.0, 0.0))]
    assert [float(r.advantages[1]) for r in planned(config, *members).rows] == [0.5, -0.5]


@pytest.mark.parametrize(
    ("excluded", "reason"),
    [
        ([], "no_llm_calls"),
        (["no_token_ids"], "no_token_ids"),
        (["empty", "undelivered", "empty"], "empty"),
        (["same_call", "same_call", "multimodal", "unused_choice"], "multimodal"),
    ],
)
def test_a_rollout_without_rows_says_why(excluded: list[str], reason: str) -> None:
    calls = [Call(f"{k}", excluded=why) for k, why in enumerate(excluded)]
    assert no_rows_reason(Trajectory("ro", "at", 1, "d", calls=calls)) == reason


def test_a_filter_that_is_no_regular_expression_is_refused(config: TrainerConfig) -> None:
    with pytest.raises(ConfigError, match=r"agents is no regular expression: .*'\('"):
        replace(config, agents="(")


@pytest.mark.parametrize("rewards", [[None, -1.0, -1.0, None], [1.0] * 4, [1.2] * 8, [0.2] * 8, [1.0]])
def test_a_group_that_teaches_nothing_has_no_rows(
    config: TrainerConfig, make_trajectory: Make, rewards: list[float | None]
) -> None:
    members = [make_trajectory(r, sample=i, version=10) for i, r in enumerate(rewards)]  # cases CA-4, CA-5, CA-6
    found = planned(config, *members)
    assert found.rows == ()
    assert found.decisions[0].reason == ("single_member" if len(rewards) == 1 else "zero_spread")
    assert not any(m.advantage for m in found.decisions[0].members)
