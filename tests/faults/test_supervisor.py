"""The supervisor of the fault tests: every death that nobody asked for is told of, whoever starts it anew."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

import pytest
from faults import parts
from faults.parts import Parts
from waiting import until

NEVER_S = 3600.0
WITHIN_S = 30.0


def one_that_dies(logs: Path) -> Parts:
    """A process that ends with status 3 whenever it is started."""
    supervisor = Parts({}, logs)
    supervisor.add("part", "-c", "raise SystemExit(3)")
    return supervisor


def told(supervisor: Parts) -> list[tuple[str, int]]:
    return [(ended.name, ended.status) for ended in supervisor.ended]


def test_what_dies_is_started_anew_and_each_death_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parts, "RESTART_S", 0.01)
    with closing(one_that_dies(tmp_path)) as supervisor:
        supervisor.start("part")
        until(lambda: len(supervisor.ended) >= 3, "three deaths to be told", WITHIN_S)
        assert set(told(supervisor)) == {("part", 3)}
        assert len(supervisor.crashes()) >= 3


def test_a_death_is_told_after_a_start_that_came_before_the_restart(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(parts, "RESTART_S", NEVER_S)
    with closing(one_that_dies(tmp_path)) as supervisor:
        supervisor.start("part")
        until(lambda: told(supervisor) == [("part", 3)], "the first death to be told", WITHIN_S)
        supervisor.start("part")
        until(lambda: told(supervisor) == [("part", 3)] * 2, "the second death to be told", WITHIN_S)


@pytest.mark.parametrize("sent_away", [False, True])
def test_a_death_that_another_sees_first_is_told_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, sent_away: bool
) -> None:
    monkeypatch.setattr(parts, "LOOK_S", NEVER_S)
    with closing(one_that_dies(tmp_path)) as supervisor:
        child = supervisor.children["part"]
        for deaths in range(3):
            if sent_away:
                supervisor.kill9("part")
            supervisor.start("part")
            assert child.starts == deaths + 1
            assert told(supervisor) == [("part", 3)] * deaths
            until(lambda: not child.runs, "it to die", WITHIN_S)


def test_a_death_that_was_asked_for_is_not_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parts, "LOOK_S", 0.01)
    with closing(Parts({}, tmp_path)) as supervisor:
        supervisor.add("part", "-c", "import time; time.sleep(3600)")
        for end in (supervisor.kill9, supervisor.stop, supervisor.kill9):
            supervisor.start("part")
            end("part")
            supervisor.start("part")
        assert supervisor.running() == ["part"]
        assert told(supervisor) == []
