"""docs/operations.md names every check, metric, reason and command that there is, and no other."""

from __future__ import annotations

import re
from pathlib import Path
from typing import cast

from typer.core import TyperGroup as Group
from typer.main import get_command

from spanloop import cli, cli_ask, cli_letters, cli_ops, cli_parts
from spanloop.infra.facts import CHECKS
from spanloop.infra.telemetry import kind_of
from spanloop.schemas.errors import REASONS
from spanloop.schemas.semconv import METRICS

del cli_ask, cli_letters, cli_ops, cli_parts  # they register their commands
PAGE = (Path(__file__).parent.parent / "docs" / "operations.md").read_text("utf-8")


def table(head: str) -> list[list[str]]:
    """Rows of the table whose first column is headed so, cells without their back-ticks."""
    lines = iter(PAGE.splitlines())
    found = next(line for line in lines if line.startswith(f"| {head} |"))
    next(lines)
    rows: list[list[str]] = []
    for line in lines:
        if not line.startswith("|"):
            break
        rows.append([cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1]])
        assert len(rows[-1]) == found.count("|") - 1, line
    return rows


def names(cell: str) -> list[str]:
    return re.findall(r"`([^`]+)`", cell)


def test_every_metric_is_listed_with_its_unit_and_kind() -> None:
    listed = [(names(name)[0], names(unit)[0], kind) for name, unit, kind, _ in table("metric")]
    assert listed == [(name, unit, kind_of(name)) for name, unit in METRICS.items()]


def test_every_check_of_the_doctor_is_listed_with_what_it_holds() -> None:
    assert {names(name)[0]: holds for name, holds in table("check")} == CHECKS


def test_every_reason_for_a_dead_letter_is_listed() -> None:
    assert sorted(reason for row in table("reason") for reason in names(row[0])) == sorted(REASONS)


def test_every_command_that_the_page_shows_is_there() -> None:
    known = cast("Group", get_command(cli.app)).commands
    shown = set(re.findall(r"spanloop ([a-z]+)", PAGE)) - {"streams"}
    assert shown <= known.keys()
    assert {"doctor", "lag", "tail", "dlq", "pause", "assemble", "drain"} <= shown
