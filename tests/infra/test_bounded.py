"""A call that does not come back is given up, and what it raises reaches its caller."""

from __future__ import annotations

import subprocess
import sys
import threading
from functools import partial

import pytest

from spanloop.infra.bounded import Bounded, side_by_side
from spanloop.schemas.errors import Fenced, Unavailable


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
    with pytest.raises(Unavailable, match=r"a transaction goes on \d+\.\d s after it was told to stop"):
        bounded("a transaction", lambda: gate.wait(60), 600)
    assert bounded.stuck
    gate.set()
    bounded.close()


def test_side_by_side_so_many_run_at_once() -> None:
    met, over = threading.Barrier(2), list[int]()

    def meet(number: int) -> None:
        met.wait(60)  # two at once, or it breaks
        over.append(number)

    side_by_side([partial(meet, n) for n in range(4)], 2)
    assert sorted(over) == [0, 1, 2, 3]


def test_side_by_side_a_failure_keeps_nothing_from_being_run_and_is_raised_behind_it() -> None:
    over: list[int] = []

    def fenced() -> None:
        raise Fenced("one")

    with pytest.raises(Fenced, match="one"):
        side_by_side([partial(over.append, 1), fenced, partial(over.append, 2)], 1)
    assert over == [1, 2]


def test_side_by_side_nothing_is_begun_behind_a_failure_that_took_too_long() -> None:
    over: list[int] = []

    def fenced() -> None:
        raise Fenced("one")

    with pytest.raises(Fenced, match="one"):
        side_by_side([partial(over.append, 1), fenced, partial(over.append, 2)], 1, within_s=0.0)
    assert over == [1]


def test_a_process_does_not_wait_at_its_end_for_what_runs_side_by_side() -> None:
    program = (
        "import threading\n"
        "from spanloop.infra.bounded import Bounded, side_by_side\n"
        "stop = threading.Event()\n"
        "stop.set()\n"
        "Bounded(stop, 0.1)('inserts', lambda: side_by_side([lambda: threading.Event().wait(600)], 2), 600)\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=False)
    assert "inserts goes on " in done.stderr
