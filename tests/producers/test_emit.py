import json
import math
import sys
import threading
from typing import Any

import pytest

from spanloop.producers import context, emit_annotation, emit_exception, emit_message, emit_object, emit_reward, record
from spanloop.schemas import semconv
from spanloop.schemas.records import Span
from spanloop.schemas.serde import encode_body


def facts(span: Span) -> dict[str, object]:
    return json.loads(span.attributes)


def test_a_number_judges_the_attempt() -> None:
    with record("ro-1", "at-1") as seen:
        emit_reward(0.5)
    (reward,) = seen.rewards
    assert (reward.rollout_id, reward.attempt_id, reward.name, reward.scope) == ("ro-1", "at-1", "reward", "final")
    assert (reward.value, reward.dimensions, reward.primary, reward.span_id) == (0.5, {}, None, None)


@pytest.mark.parametrize(("given", "value"), [(True, 1.0), (0, 0.0), (2, 2.0)])
def test_whole_numbers_become_floats(given: float, value: float) -> None:
    with record() as seen:
        emit_reward(given)
    assert seen.rewards[0].value == value
    assert type(seen.rewards[0].value) is float


def test_several_dimensions_need_a_primary_one() -> None:  # CA-12
    with record() as seen:
        with pytest.warns(UserWarning, match="dimension 'fmt' is nan"):
            emit_reward({"acc": 1, "cost": -0.2, "fmt": float("nan")}, primary_key="acc")
        for wrong in (None, "speed"):
            with pytest.raises(ValueError, match="primary_key must be one of"):
                emit_reward({"acc": 1}, primary_key=wrong)
    (reward,) = seen.rewards
    assert (reward.value, reward.primary) == (None, "acc")
    assert reward.dimensions["acc"] == 1.0
    assert reward.dimensions["cost"] == -0.2
    assert math.isnan(reward.dimensions["fmt"])


def test_nan_is_sent_with_a_warning() -> None:
    with record() as seen, pytest.warns(UserWarning, match="quarantined"):
        emit_reward(float("nan"))
    assert seen.rewards[0].value is not None
    assert math.isnan(seen.rewards[0].value)


@pytest.mark.parametrize("value", [float("inf"), -sys.float_info.max, 1.1e30])
def test_what_would_be_quarantined_is_warned_of_at_once(value: float) -> None:
    with record() as seen, pytest.warns(UserWarning, match="the reward is .* quarantined"):
        emit_reward(value)
    assert seen.rewards[0].value == value


def test_what_is_no_number_is_refused() -> None:
    with record() as seen, pytest.raises(TypeError, match="must be a number, got str"):
        emit_reward("good")  # pyright: ignore[reportArgumentType] - agents are not type-checked
    assert seen.rewards == []


def test_a_reward_is_not_lost_for_its_texts() -> None:
    with record() as seen:
        emit_reward(1.0, name="\ud83d", comment="bad \ud83d")
        emit_reward({"\ud83d": 1.0}, primary_key="\ud83d")
        emit_reward(1.0, comment="x" * (2 << 20))
    named, several, long = seen.rewards
    assert (named.name, named.comment) == ("\ufffd", "bad \ufffd")
    assert (several.dimensions, several.primary) == ({"\ufffd": 1.0}, "\ufffd")
    assert str(long.comment).endswith("x… (2097152 bytes, cut)")
    for reward in seen.rewards:
        assert len(encode_body(reward)) < 1 << 20


@pytest.mark.parametrize("wrong", [{"comment": {"a": 1}}, {"span_id": 123}, {"name": None}])
def test_a_text_of_a_reward_that_is_none_is_refused_at_once(wrong: dict[str, Any]) -> None:
    with record() as seen, pytest.raises(TypeError, match=rf"a reward's {next(iter(wrong))} must be a str, got"):
        emit_reward(1.0, **wrong)
    assert seen.rewards == []


def test_a_step_reward_judges_the_last_call_of_its_context() -> None:
    with record() as seen:
        emit_reward(0.1, step=True)
        context.note_call("1" * 16)
        emit_reward(0.2, step=True)
        emit_reward(0.3, span_id="2" * 16)
        emit_reward(0.4)
    assert [(r.scope, r.span_id) for r in seen.rewards] == [
        ("step", None),
        ("step", "1" * 16),
        ("step", "2" * 16),
        ("final", None),
    ]


def test_spans_and_rewards_share_one_sequence() -> None:
    with record() as seen:
        emit_message("a")
        emit_reward(1.0)
        emit_message("b")
    assert [s.sequence for s in seen.spans] + [r.sequence for r in seen.rewards] == [0, 2, 1]


def test_a_message_an_object_an_annotation_and_an_exception_are_spans() -> None:
    with record("ro-1", "at-" + "a" * 32) as seen:
        emit_message("hi", {"n": 1})
        emit_object({"b": [1, None]})
        emit_annotation({"verdict": "good", "deep": {"a": 1}})
        try:
            raise ValueError("boo")
        except ValueError as error:
            emit_exception(error)
    assert [s.name.removeprefix("spanloop.") for s in seen.spans] == ["message", "object", "annotation", "exception"]
    assert {s.trace_id for s in seen.spans} == {"a" * 32}
    assert facts(seen.spans[0]) == {semconv.KIND: "message", semconv.BODY: "hi", "n": 1}
    assert facts(seen.spans[1])[semconv.BODY] == '{"b":[1,null]}'
    assert facts(seen.spans[2])["deep"] == '{"a":1}'
    assert facts(seen.spans[3])[semconv.EXCEPTION_TYPE] == "ValueError"
    assert "boo" in str(facts(seen.spans[3])[semconv.EXCEPTION_STACKTRACE])
    assert [s.status for s in seen.spans] == ["ok", "ok", "ok", "error"]


class Odd(SyntaxError):
    @property
    def lineno(self) -> int:  # pyright: ignore[reportIncompatibleVariableOverride] - on purpose
        raise RuntimeError("not now")


def test_an_exception_is_kept_however_long_or_odd_it_is() -> None:
    with record() as seen:
        emit_exception(ValueError("x" * (20 << 20)))
        emit_exception(Odd("boo"))
    long, odd = seen.spans
    assert long.status_message.endswith("x… (20971520 bytes, cut)")
    assert len(long.status_message) <= 64 << 10
    assert odd.status_message == facts(odd)[semconv.EXCEPTION_MESSAGE]


def test_facts_that_cannot_be_read_cost_nothing_else() -> None:
    class Unreadable(dict[str, object]):
        def keys(self) -> Any:
            raise ValueError("no keys for you")

        items = keys

    with record() as seen:
        emit_message("hi", Unreadable(a=1))
        emit_annotation(Unreadable(a=1))
    assert facts(seen.spans[0])[semconv.BODY] == "hi"
    assert [facts(s)["Unreadable"] for s in seen.spans] == ["{'a': 1}"] * 2


@pytest.mark.parametrize("emit", [emit_message, emit_exception])
def test_the_wrong_type_is_refused(emit: object) -> None:
    with record() as seen, pytest.raises(TypeError, match="got int"):
        emit(7)  # pyright: ignore[reportCallIssue] - on purpose
    assert seen.spans == []


def test_outside_a_rollout_the_error_names_the_call() -> None:
    with pytest.raises(RuntimeError, match="emit_reward was called outside any rollout"):
        emit_reward(1.0)
    with pytest.raises(RuntimeError, match="emit_message was called outside any rollout"):
        emit_message("hi")


def test_without_propagation_a_record_is_only_built() -> None:
    assert emit_reward(0.5, propagate=False).value == 0.5
    assert emit_annotation({"a": 1}, propagate=False).name == "spanloop.annotation"
    with record() as seen:
        emit_message("hi", propagate=False)
        emit_reward(0.5, propagate=False)
    assert (seen.spans, seen.rewards) == ([], [])


def test_concurrent_rollouts_never_mix() -> None:
    counts: dict[int, bool] = {}

    def work(n: int) -> None:
        with record(f"ro-{n}", f"at-{n}") as seen:
            for i in range(50):
                emit_message(f"{n}/{i}")
        counts[n] = [facts(s)[semconv.BODY] for s in seen.spans] == [f"{n}/{i}" for i in range(50)]

    threads = [threading.Thread(target=work, args=(n,)) for n in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert counts == dict.fromkeys(range(8), True)
