"""Which attempts are live, whatever order their events come in."""

from __future__ import annotations

import pytest

from spanloop.producers.gateway_attempts import REMEMBERED, Attempts
from spanloop.schemas.records import Attempt, AttemptStatus


@pytest.mark.parametrize("status", ["preparing", "running", "closing"])
def test_an_attempt_is_live_from_dispatch_to_end(status: AttemptStatus) -> None:
    attempts = Attempts()
    assert attempts.liveness("ro", "at") == "unknown"
    attempts.observe(Attempt("ro", "at", status))
    assert attempts.liveness("ro", "at") == "live"
    attempts.observe(Attempt("ro", "at", "ended"))
    assert attempts.liveness("ro", "at") == "ended"


def test_an_ended_attempt_stays_ended() -> None:
    attempts = Attempts()
    for status in ("ended", "running", "preparing"):
        attempts.observe(Attempt("ro", "at", status))
    assert attempts.liveness("ro", "at") == "ended"
    assert len(attempts) == 0


def test_an_attempt_of_another_rollout_is_unknown() -> None:
    attempts = Attempts()
    attempts.observe(Attempt("ro", "at", "running"))
    assert attempts.liveness("ro-other", "at") == "unknown"
    attempts.observe(Attempt("ro", "at", "ended"))
    assert attempts.liveness("ro-other", "at") == "unknown"


def test_the_first_event_says_what_the_attempt_is_pinned_to() -> None:
    attempts = Attempts()
    attempts.observe(Attempt("ro", "at", "preparing", pins={"policy": 7}))
    attempts.observe(Attempt("ro", "at", "running"))
    live = attempts.get("ro", "at")
    assert live is not None
    assert live.pins == {"policy": 7}


def test_memory_of_ended_attempts_is_bounded() -> None:
    attempts = Attempts()
    for i in range(REMEMBERED + 5):
        attempts.observe(Attempt("ro", f"at-{i}", "ended"))
    assert attempts.liveness("ro", "at-0") == "unknown"
    assert attempts.liveness("ro", "at-5") == "ended"
