"""Curves as text, against lines drawn by hand."""

from __future__ import annotations

from pathlib import Path

import pytest

from spanloop.chart import png, text


@pytest.mark.parametrize(
    ("values", "height", "lines"),
    [
        ([0.0, 0.5, 1.0], 1, [" 1.00 ┤ ▄█"]),
        ([0.25, 1.0], 2, [" 1.00 ┤ █", " 0.50 ┤▄█"]),
        ([0.125, 0.875], 1, [" 1.00 ┤▁▇"]),
        ([-3.0, 2.0], 1, [" 1.00 ┤ █"]),  # what is outside is drawn at the edge
        ([], 2, [" 1.00 ┤", " 0.50 ┤"]),
    ],
)
def test_values_are_drawn_in_eighths(values: list[float], height: int, lines: list[str]) -> None:
    assert text(values, low=0, high=1, height=height) == lines


def test_more_values_than_columns_are_averaged() -> None:
    assert text([0.0, 1.0, 1.0, 1.0], low=0, high=1, width=2, height=1) == [" 1.00 ┤▄█"]
    # 3.5 is rounded to the even 4: (0, 0, 0, 1) and (1, 1, 1)
    assert text([0.0, 0.0, 0.0, 1.0, 1.0, 1.0, 1.0], low=0, high=1, width=2, height=1) == [" 1.00 ┤▂█"]


def test_the_scale_need_not_begin_at_zero() -> None:
    assert text([1.0, 1.1, 1.2], low=1.0, high=1.2, height=1) == [" 1.20 ┤ ▄█"]


def test_a_picture_is_a_png(tmp_path: Path) -> None:
    png(tmp_path / "curve.png", [0, 1, 2], [0.2, 0.5, 1.0], "demo")
    assert (tmp_path / "curve.png").read_bytes().startswith(b"\x89PNG\r\n\x1a\n")
