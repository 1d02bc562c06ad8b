"""`make bench`: runs every bench_*.py as a process of its own and shows its figures.

A bench prints one line of JSON last: {"figures": {name: number, ...}}, with the unit in the name. Here its peak memory
(children included) is added.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from pathlib import Path

from rich.console import Console
from rich.table import Table

HERE = Path(__file__).parent
Figures = dict[str, float]


def names() -> list[str]:
    return sorted(path.stem.removeprefix("bench_") for path in HERE.glob("bench_*.py"))


def run(name: str) -> Figures:
    """A bench's figures, its peak memory among them. Raises RuntimeError with its output where it failed."""
    code = (
        f"import resource, runpy, sys, json; sys.path.insert(0, {str(HERE)!r}); "  # as for any script
        f"runpy.run_path({str(HERE / f'bench_{name}.py')!r}, run_name='__main__'); "
        "peak = max(resource.getrusage(w).ru_maxrss for w in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)); "
        "print('\\n' + json.dumps({'peak': peak}))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=False, cwd=HERE.parent.parent
    )
    if done.returncode:
        raise RuntimeError(f"bench {name} failed:\n{done.stdout[-3000:]}{done.stderr[-3000:]}")
    lines = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
    figures: Figures = dict(lines[-2]["figures"])
    unit = 1024 if sys.platform != "darwin" else 1
    return {**figures, "peak_memory_mib": round(lines[-1]["peak"] * unit / 2**20, 1)}


def main() -> None:
    parser = argparse.ArgumentParser(description="Measures the hot paths.")
    parser.add_argument("--only", choices=names())
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    console = Console()
    found: dict[str, Figures] = {}
    for name in [options.only] if options.only else names():
        with console.status(f"bench {name}"):
            found[name] = run(name)
        table = Table("figure", "value", title=name)
        for figure, value in found[name].items():
            table.add_row(figure, f"{value:,.2f}")
        console.print(table)
    if options.json:
        machine = {"cores": os.cpu_count(), "python": sys.version.split()[0]}
        options.json.write_text(json.dumps({"machine": machine, **found}, indent=1) + "\n", "utf-8")


if __name__ == "__main__":
    main()
