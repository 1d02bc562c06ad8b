import pytest

from spanloop.infra.clock import NS_PER_S
from spanloop.producers.claims import MAX_KNOWN, Claims
from spanloop.schemas.records import Assignment, Task

T0 = 1_760_000_000 * NS_PER_S


def assignment(n: int = 1, **changes: object) -> Assignment:
    base: dict[str, object] = {"worker_id": "wo-1", "epoch": 3, "task": Task("ro-1", "run-1"), "claim_s": 30.0}
    return Assignment(**{**base, "attempt_id": f"at-{n}", "at_ns": T0, **changes})  # pyright: ignore[reportArgumentType]


def decide(claims: Claims, given: Assignment, *, later_s: float = 0.0, steady_s: float = 100.0) -> str:
    return claims.decide(given, now_ns=T0 + int(later_s * NS_PER_S), steady_s=steady_s)


def test_its_own_assignment_is_run() -> None:
    assert decide(Claims("wo-1", caught_up_s=99), assignment()) == "run"


def test_another_workers_assignment_is_ignored() -> None:
    claims = Claims("wo-1")
    assert decide(claims, assignment(worker_id="wo-2", epoch=9)) == "ignore"
    assert claims.epoch == -1


def test_an_older_epoch_is_refused() -> None:
    claims = Claims("wo-1", caught_up_s=99)
    assert decide(claims, assignment(1, epoch=3)) == "run"
    assert decide(claims, assignment(2, epoch=4)) == "run"
    assert decide(claims, assignment(3, epoch=3)) == "refuse_epoch"
    assert decide(claims, assignment(1, epoch=3, action="cancel")) == "refuse_epoch"


def test_a_repetition_is_ignored() -> None:
    claims = Claims("wo-1", caught_up_s=99)
    assert [decide(claims, assignment()) for _ in range(2)] == ["run", "ignore"]


def test_a_cancel_is_passed_on() -> None:
    assert decide(Claims("wo-1"), assignment(action="cancel", task=None)) == "cancel"


@pytest.mark.parametrize("changes", [{"task": None}, {"action": "unknown"}])
def test_what_is_not_understood_is_ignored(changes: dict[str, object]) -> None:
    assert decide(Claims("wo-1", caught_up_s=99), assignment(1, **changes)) == "ignore"


@pytest.mark.parametrize(
    ("later_s", "caught_up_s", "decision"),
    [
        (5.0, 99.0, "run"),
        (31.0, 60.0, "refuse_late"),  # the process was stopped for 40 s and the assignment is 31 s old
        (29.0, 60.0, "run"),  # stopped for 40 s, but the assignment came towards the end of it
        (300.0, 99.9, "run"),  # written within the last 0.1 s: a clock is wrong, the claim is fresh
        (-300.0, 60.0, "run"),  # the controller's clock is ahead
    ],
)
def test_a_late_claim_is_refused_and_a_wrong_clock_is_not(later_s: float, caught_up_s: float, decision: str) -> None:
    assert decide(Claims("wo-1", caught_up_s=caught_up_s), assignment(), later_s=later_s) == decision


def test_the_memory_of_attempts_is_bounded() -> None:
    claims = Claims("wo-1", caught_up_s=99)
    for n in range(MAX_KNOWN + 5):
        assert decide(claims, assignment(n)) == "run"
    assert len(claims.known) == MAX_KNOWN
