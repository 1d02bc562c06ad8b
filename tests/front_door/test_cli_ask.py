"""How what is asked is written to pipes, files and closed descriptors."""

from __future__ import annotations

import io
import os
import subprocess
import sys

import pytest
from rich.console import Console

from spanloop import cli, cli_ask
from spanloop.consumers.query import Result
from spanloop.schemas.topics import TOPICS


def test_what_is_piped_keeps_its_lines_whole_and_says_what_an_encoding_lacks() -> None:
    child = subprocess.run(
        [sys.executable, "-m", "spanloop", "--prefix", "p" * 90 + "é", "topics"],
        capture_output=True, text=True, check=True,
        env={name: value for name, value in os.environ.items() if name != "COLUMNS"} | {"PYTHONIOENCODING": "ascii"},
    )  # fmt: skip
    assert "p" * 90 + "\\xe9-tasks" in child.stdout
    assert len(child.stdout.splitlines()) < 2 * len(TOPICS)


@pytest.mark.parametrize("closed", [">&-", "2>&-"])
def test_a_closed_output_stops_no_command(closed: str) -> None:
    assert subprocess.run(["sh", "-c", f"{sys.executable} -m spanloop version {closed}"]).returncode == 0


def test_a_long_cell_does_not_widen_every_row_of_a_piped_table(monkeypatch: pytest.MonkeyPatch) -> None:
    piped = io.StringIO()
    monkeypatch.setattr(cli_ask, "out", Console(file=piped, width=cli.width_of(piped)))
    cli_ask.show_table(Result(("id", "text"), (("r" * 100, "x" * 90_000), *[("r", "y")] * 1000)))
    assert "r" * 100 in piped.getvalue()
    assert len(piped.getvalue()) < 1_000_000
