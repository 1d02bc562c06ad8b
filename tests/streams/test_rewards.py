"""A reward goes to the call it judges, once, and to nobody else's."""

from __future__ import annotations

import pytest
from events import Bench, at, batch, end, llm, rew, span, span_id
from hypothesis import given
from hypothesis import strategies as st

from spanloop.schemas.errors import InvalidRecord
from spanloop.schemas.records import AttemptContext, Reward, SpanBatch, Trajectory
from spanloop.schemas.semconv import AGENT
from spanloop.streams.assembly import AssemblyRules
from spanloop.streams.messages import Policy
from spanloop.streams.nodes import span_node
from spanloop.streams.rewards import Line, check


def assembled(*given: SpanBatch | Reward, policy: Policy | None = None) -> Trajectory:
    bench = Bench(policy or Policy())
    bench.give(*given)
    return bench.last()


def credits(found: Trajectory) -> list[float | None]:
    return [call.credit for call in found.calls]


def one_call(*rewards: Reward, mode: str = "identical") -> Trajectory:
    check = span("check", attrs={AGENT: "check"})
    return assembled(batch(check, llm("s1", [1], [2], parent="check"), begin=True), *rewards, batch(end=end(mode=mode)))


def test_a_step_reward_alone_counts_in_every_mode() -> None:  # CA-1 a
    for mode in ("identical", "last", "discounted", "step", "sum"):
        assert credits(one_call(rew(0.3, "s1"), mode=mode)) == [0.3]


@pytest.mark.parametrize(("mode", "expected"), [("identical", 1.0), ("step", 0.3), ("sum", 1.3)])
def test_step_and_final_reward_meet_by_mode(mode: str, expected: float) -> None:  # CA-1 b
    found = one_call(rew(0.3, "s1"), rew(1.0, rid="rw-2"), mode=mode)
    assert credits(found) == [pytest.approx(expected, abs=1e-12)]
    assert (found.calls[0].step_reward, found.final_reward) == (0.3, 1.0)


def test_a_final_reward_alone_counts_in_every_mode() -> None:  # CA-1 c
    for mode in ("identical", "last", "discounted", "step", "sum"):
        assert credits(one_call(rew(1.0), mode=mode)) == [1.0]


def test_a_discount_halves_per_later_call() -> None:
    calls = [llm("s1", [1], [2], seq=1), llm("s2", [1, 2, 3], [4], seq=2), llm("s3", [1, 2, 3, 4, 5], [6], seq=3)]
    found = assembled(batch(*calls, begin=True), rew(1.0), batch(end=end(mode="discounted", gamma=0.5)))
    assert credits(found) == [0.25, 0.5, 1.0]


def test_a_reward_sent_twice_counts_once() -> None:  # CA-9
    found = one_call(rew(0.3, "s1"), rew(0.3, "s1"), mode="step")
    assert (credits(found), len(found.rewards)) == ([0.3], 1)


def test_two_step_rewards_of_one_call_are_added_up_or_the_last_counts() -> None:  # CA-9
    given = (rew(0.3, "s1"), rew(0.5, "s1", rid="rw-2", created=950))
    calls = batch(llm("s1", [1], [2]), begin=True)
    for rules, expected in ((AssemblyRules(), 0.8), (AssemblyRules(steps="last"), 0.5)):
        for order in (given, given[::-1]):
            found = assembled(calls, *order, batch(end=end(mode="step")), policy=Policy(rules=rules))
            assert credits(found) == [pytest.approx(expected, abs=1e-12)]


def test_the_primary_dimension_is_the_value_and_a_nan_beside_it_is_flagged() -> None:  # CA-12
    found = one_call(rew(None, dimensions={"acc": 1.0, "cost": -0.2, "fmt": float("nan")}, primary="acc"))
    assert found.final_reward == 1.0
    assert found.rewards[0].flags == ["nonfinite_dimension"]
    assert "nonfinite_dimension" in found.flags


def test_of_several_final_rewards_the_one_named_reward_decides_else_the_newest() -> None:
    named = rew(0.1, rid="rw-a", created=100)
    newer = rew(0.9, rid="rw-b", name="judge", created=500)
    older = rew(0.4, rid="rw-c", name="style", created=400)
    assert one_call(named, newer, older).final_reward == 0.1
    assert one_call(older, newer).final_reward == one_call(newer, older).final_reward == 0.9
    assert len(one_call(named, newer, older).rewards) == 3


def test_a_step_reward_without_a_target_goes_to_the_call_before_it() -> None:
    calls = [llm("s1", [1], [2], seq=1, start=100), llm("s2", [1, 2, 3], [4], seq=3, start=300)]
    by_sequence = rew(0.5, scope="step", producer_id="p1", sequence=2, created=900)
    by_time = rew(0.5, scope="step", producer_id="judge", created=200)
    for reward in (by_sequence, by_time):
        found = assembled(batch(*calls, begin=True), reward, batch(end=end(mode="step")))
        assert [c.step_reward for c in found.calls] == [0.5, None]
        assert found.rewards[0].flags == ["reward_placed_by_order"]
        assert found.rewards[0].span_id == span_id("s1")


def test_a_step_reward_without_a_target_is_never_given_to_one_of_several_agents() -> None:
    agents = [span("a", attrs={AGENT: "a"}), span("b", attrs={AGENT: "b"})]
    calls = [llm("s1", [1], [2], parent="a", seq=1), llm("s2", [5], [6], parent="b", seq=2)]
    reward = rew(0.5, scope="step", created=900)
    found = assembled(batch(*agents, *calls, begin=True), reward, batch(end=end(mode="step")))
    assert [c.step_reward for c in found.calls] == [None, None]
    assert [(r.value, r.span_id) for r in found.rewards] == [(0.5, None)]


def test_a_reward_on_an_agent_stays_within_that_agent() -> None:
    agents = [span("write", attrs={AGENT: "write"}), span("check", attrs={AGENT: "check"}), span("tool", "check", 600)]
    calls = [
        llm("w1", [1], [2], parent="write", seq=1, start=100),
        llm("c1", [5], [6], parent="check", seq=2, start=200),
        llm("w2", [1, 2, 3], [4], parent="write", seq=3, start=500),
    ]
    for target, placed in (("check", []), ("tool", ["reward_placed_by_order"])):
        found = assembled(batch(*agents, *calls, begin=True), rew(0.5, target), batch(end=end(mode="step")))
        assert {c.span_id: c.step_reward for c in found.calls if c.step_reward is not None} == {span_id("c1"): 0.5}
        assert found.rewards[0].flags == placed


def test_a_reward_on_an_agents_span_never_reaches_an_agent_below_it() -> None:
    agents = [span("write", attrs={AGENT: "write"}), span("check", "write", attrs={AGENT: "check"})]
    calls = [llm("s1", [1], [2], parent="write", seq=1), llm("s2", [5], [6], parent="check", seq=2)]
    for inside, expected in ((calls, ["s1"]), (calls[1:], [])):
        found = assembled(batch(*agents, *inside, begin=True), rew(0.5, "write"), batch(end=end(mode="step")))
        assert [c.span_id for c in found.calls if c.step_reward] == [span_id(name) for name in expected]


def test_a_reward_on_a_span_of_no_agent_goes_to_the_last_call_inside() -> None:
    spans = [span("run"), span("check", "run", attrs={AGENT: "check"}), llm("s1", [5], [6], parent="check")]
    found = assembled(batch(*spans, begin=True), rew(0.5, "run"), batch(end=end(mode="step")))
    assert ([c.step_reward for c in found.calls], found.rewards[0].flags) == ([0.5], [])


@pytest.mark.parametrize("target", [None, "tool"])
@pytest.mark.parametrize(("gateway", "expected"), [("gateway", 0.3), ("p1", None)])
def test_the_only_call_is_taken_though_another_producers_clock_is_ahead(
    target: str | None, gateway: str, expected: float | None
) -> None:
    call = batch(llm("s1", [1], [2], parent="run", start=1600, seq=9), producer=gateway)
    reward = rew(0.3, target, created=900, scope="step", producer_id="p1", sequence=5)
    found = assembled(
        batch(span("run"), span("tool", "run", 800), begin=True), call, reward, batch(end=end(mode="step"))
    )
    assert [c.step_reward for c in found.calls] == [expected]
    assert found.rewards[0].flags == ([] if expected is None else ["reward_placed_by_order"])


def test_of_several_calls_whose_clocks_are_ahead_none_is_guessed() -> None:
    calls = [llm("s1", [1], [2], start=1600, seq=1), llm("s2", [1, 2, 3], [4], start=1700, seq=2)]
    reward = rew(0.3, created=900, scope="step", producer_id="p1")
    found = assembled(batch(*calls, producer="gateway", begin=True), reward, batch(end=end(mode="step")))
    assert ([c.step_reward for c in found.calls], found.rewards[0].flags) == ([None, None], [])


Call = tuple[int, int, str]  # start, sequence, producer


@given(
    st.lists(st.tuples(st.integers(0, 5), st.integers(0, 5), st.sampled_from("pqr")), min_size=1, max_size=6),
    st.integers(0, 5),
    st.integers(0, 5),
    st.booleans(),
)
def test_the_call_before_a_moment_is_the_one_a_look_at_each_finds(
    calls: list[Call], time: int, sequence: int, numbered: bool
) -> None:
    nodes = [
        span_node(llm(f"s{i}", [1], [2], start=start, seq=seq), producer, 0, i)
        for i, (start, seq, producer) in enumerate(calls)
    ]
    earlier = [
        i
        for i, (start, seq, producer) in enumerate(calls)
        if (seq < sequence if numbered and producer == "p" else start <= time)
    ]
    expected = earlier[-1] if earlier else 0 if len(calls) == 1 and calls[0][2] != "p" else None
    line = Line(range(len(nodes)), nodes)
    assert line.before(at(time), "p", sequence if numbered else None) == expected


def test_a_foreign_models_call_takes_no_credit_from_the_policys() -> None:
    calls = [llm("s1", [1], [2], seq=1), llm("judge", None, None, seq=2, policy=None)]
    found = assembled(batch(*calls, begin=True), rew(1.0), batch(end=end(mode="last")))
    assert {c.span_id: c.credit for c in found.calls} == {span_id("s1"): 1.0, span_id("judge"): None}


def test_an_attempt_without_any_ids_still_has_credit_to_learn_prompts_from() -> None:
    calls = [llm("s1", None, None, seq=1, policy=None), llm("s2", None, None, seq=2, policy=None)]
    found = assembled(batch(*calls, begin=True), rew(1.0), batch(end=end()))
    assert (credits(found), found.rows) == ([1.0, 1.0], [])
    assert "no_token_ids" in found.flags


@pytest.mark.parametrize(("failure", "final"), [(-1.0, -1.0), (-1e31, None), (float("nan"), None)])
def test_a_failure_reward_past_the_bound_is_none_as_in_the_trainer(failure: float, final: float | None) -> None:
    context = AttemptContext(run_id="run", failure_reward=failure)
    found = assembled(batch(llm("s1", [1], [2]), begin=True, end=end("failed", failure_class="agent", context=context)))
    assert (found.final_reward, credits(found)) == (final, [final])


def test_step_rewards_whose_sum_is_past_the_bound_are_none_as_in_the_trainer() -> None:
    two = [rew(1e30, "s1", rid=f"rw-{i}", created=i) for i in range(2)]
    found = one_call(*two, mode="step")
    assert (found.calls[0].step_reward, found.calls[0].credit, "unrewarded" in found.flags) == (None, None, True)
    assert [ref.value for ref in found.rewards] == [1e30, 1e30]
    assert one_call(*two, rew(-1e30, "s1", rid="rw-3"), mode="step").calls[0].step_reward == 1e30


def test_a_reward_past_the_bound_is_refused_with_the_bound() -> None:
    check(rew(-1e30))
    with pytest.raises(
        InvalidRecord, match=r"reward_out_of_range: .* is 1\.7e\+308; expected -1e\+30 to 1e\+30 or null"
    ):
        check(rew(None, dimensions={"acc": 1.7e308}, primary="acc"))
