"""Looks at attempts: one each, and nothing kept of those that are over."""

from __future__ import annotations

from events import NOW, S

from spanloop.streams.attempt import AttemptKey, OpenAttempt
from spanloop.streams.deadlines import SPARE, Deadlines
from spanloop.streams.messages import Policy


def begun(name: str, first_ns: int) -> OpenAttempt:
    attempt = OpenAttempt("ro-1", name, 0, first_ns=first_ns, last_ns=first_ns, begun=True, spans_first=0)
    attempt.touch()
    return attempt


def test_looks_at_attempts_that_are_over_are_thrown_out_and_no_other() -> None:
    attempts = {attempt.key: attempt for attempt in (begun(f"live-{i}", NOW) for i in range(10))}
    deadlines = Deadlines(Policy(absolute_s=86_400), attempts)
    for attempt in attempts.values():
        deadlines.set(attempt)
    most = 0
    for i in range(10_000):
        short = begun("short", NOW + i)
        attempts[short.key] = short
        deadlines.set(short)
        del attempts[short.key]
        most = max(most, len(deadlines))
    assert most <= SPARE + 4 * 11
    looks: list[AttemptKey] = []
    while (look := deadlines.pop(NOW + 100_000 * S)) is not None:
        looks.append(look[1])
    assert {key for key in looks if key[2] != "short"} == set(attempts)
