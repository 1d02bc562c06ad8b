"""A curve as text for the terminal and as a PNG."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any, cast

# Eight heights per character cell, lowest first.
BLOCKS = " ▁▂▃▄▅▆▇█"


def text(values: Sequence[float], *, low: float, high: float, width: int = 64, height: int = 8) -> list[str]:
    """Lines of a bar chart of `values` (averaged into `width` columns) between `low` and `high`, top line first."""
    columns = [sum(part) / len(part) for part in _parts(values, width)]
    steps = (len(BLOCKS) - 1) * height
    heights = [round(max(0.0, min(1.0, (v - low) / (high - low))) * steps) for v in columns]
    lines: list[str] = []
    for row in range(height - 1, -1, -1):
        label = f"{low + (high - low) * (row + 1) / height:5.2f} ┤"
        fill = (max(0, min(len(BLOCKS) - 1, h - row * (len(BLOCKS) - 1))) for h in heights)
        lines.append(label + "".join(BLOCKS[n] for n in fill))
    return lines


def _parts(values: Sequence[float], width: int) -> list[Sequence[float]]:
    count = min(width, len(values))
    edges = [round(i * len(values) / count) for i in range(count + 1)] if count else [0]
    return [values[a:b] for a, b in pairwise(edges)]


def png(path: Path, versions: Sequence[int], rewards: Sequence[float], title: str) -> None:
    """Mean reward per policy version as a picture."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = cast("Any", Figure(figsize=(8, 4.5), layout="constrained"))  # matplotlib leaves its keywords untyped
    FigureCanvasAgg(figure)
    axes = figure.add_subplot()
    axes.plot(list(versions), list(rewards), marker="o", markersize=3, color="#2a6f97")
    axes.axhline(1.2, linestyle=":", linewidth=1, color="#888888")
    axes.set(xlabel="policy version that drew the rollouts", ylabel="mean reward", title=title, ylim=(0, 1.25))
    axes.grid(alpha=0.3)
    figure.savefig(path, dpi=120)
