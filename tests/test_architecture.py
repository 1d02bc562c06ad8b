"""The shape of the tree: who may import whom, what stays light, how large a file may be."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
ROOMS = ("schemas", "infra", "producers", "streams", "consumers", "trainer")
MAY_IMPORT: dict[str, set[str]] = {
    "schemas": set(),
    "infra": {"schemas"},
    **{room: {"schemas", "infra"} for room in ("producers", "streams", "consumers", "trainer")},
    "spanloop": set(ROOMS),
}
HEAVY = ("torch", "verl", "transformers", "faust", "clickhouse_connect", "chdb", "ray")
TORCH_ONLY_IN = ("trainer", "infra/embedded_engine")
MAX_LINES = 300
SOURCES = [path for room in MAY_IMPORT for path in sorted((ROOT / room).glob("*.py"))]


def imports(path: Path) -> Iterator[tuple[int, str]]:
    """(level, module) of every import in a file; level counts the leading dots."""
    for node in ast.walk(ast.parse(path.read_text("utf-8"))):
        if isinstance(node, ast.ImportFrom):
            yield node.level, node.module or ""
        elif isinstance(node, ast.Import):
            yield from ((0, alias.name) for alias in node.names)


def rooms_imported(path: Path) -> set[str]:
    own = path.parent.name
    found: set[str] = set()
    for level, module in imports(path):
        parts = module.split(".")
        if level == 2:
            found.add(parts[0])
        elif level == 0 and parts[0] == "spanloop" and len(parts) > 1:
            found.add(parts[1])
    return {room for room in found if room in ROOMS and room != own}


@pytest.mark.parametrize("path", SOURCES, ids=lambda p: str(p.relative_to(ROOT)))
def test_a_room_imports_only_the_rooms_below_it(path: Path) -> None:
    assert rooms_imported(path) <= MAY_IMPORT[path.parent.name]


@pytest.mark.parametrize("path", SOURCES, ids=lambda p: str(p.relative_to(ROOT)))
def test_torch_stays_in_the_trainer_and_the_embedded_engine(path: Path) -> None:
    if str(path.relative_to(ROOT)).startswith(TORCH_ONLY_IN):
        return
    assert not {m.split(".")[0] for _, m in imports(path)} & {"torch", "verl", "transformers", "safetensors"}


@pytest.mark.parametrize("path", SOURCES, ids=lambda p: str(p.relative_to(ROOT)))
def test_rooms_reach_each_other_by_relative_imports(path: Path) -> None:
    if path.parent.name != "spanloop":
        assert not [m for level, m in imports(path) if level == 0 and m.split(".")[0] == "spanloop"]


def test_rooms_are_flat() -> None:
    for room in ROOMS:
        assert not [p for p in (ROOT / room).rglob("*.py") if p.parent != ROOT / room]


@pytest.mark.parametrize("path", [*SOURCES, *sorted((ROOT / "tests").rglob("*.py"))], ids=lambda p: p.name)
def test_a_file_fits_on_a_few_screens(path: Path) -> None:
    assert len(path.read_text("utf-8").splitlines()) <= MAX_LINES


@pytest.mark.parametrize("module", ["spanloop", "spanloop.schemas.records", "spanloop.producers"])
def test_importing_a_light_part_loads_nothing_heavy(module: str) -> None:
    code = f"import {module}, sys; print([m for m in {HEAVY!r} if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_rollout_comes_from_the_front_door_without_anything_heavy() -> None:
    code = f"from spanloop import rollout; import sys; print([m for m in {HEAVY!r} if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
