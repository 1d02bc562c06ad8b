"""A call that does not come back is given up, and what it raises reaches its caller."""

from __future__ import annotations

import threading

import pytest

from spanloop.schemas.errors import Fenced, Unavailable
from spanloop.streams.bounded import Bounded


def test_calls_run_one_after_the_other_and_their_errors_are_the_callers() -> None:
    ran: list[int] = []
    bounded = Bounded(threading.Event())
    bounded("one", lambda: ran.append(1), 60)

    def fenced() -> None:
        raise Fenced("two")

    with pytest.raises(Fenced, match="two"):
        bounded("two", fenced, 60)
    bounded("three", lambda: ran.append(3), 60)
    assert ran == [1, 3]
    bounded.close()


def test_a_call_that_does_not_come_back_is_named_and_given_up() -> None:
    gate = threading.Event()
    bounded = Bounded(threading.Event())
    with pytest.raises(Unavailable, match=r"a transaction did not come back .*: 0\.2 s are the limit"):
        bounded("a transaction", lambda: gate.wait(60), 0.2)
    assert bounded.stuck
    gate.set()
    bounded.close()


def test_a_stop_does_not_wait_for_a_call_that_does_not_come_back() -> None:
    gate, stop = threading.Event(), threading.Event()
    stop.set()
    bounded = Bounded(stop)
    with pytest.raises(Unavailable, match=r"a transaction did not come back .*: told to stop"):
        bounded("a transaction", lambda: gate.wait(60), 600)
    assert bounded.stuck
    gate.set()
    bounded.close()
