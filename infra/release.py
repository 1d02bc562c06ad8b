"""The schemas of each released version, which every later one must read and be read by.

python -m spanloop.infra.release 0.2.0     keeps today's schemas in schemas/released/0.2.0/<topic>.avsc

Cut one with each release, and commit it. A test registers all of them in order and reads each with each.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
from importlib.resources import files
from pathlib import Path

from ..schemas.errors import ConfigError, SchemaMismatch, SpanloopError
from ..schemas.serde import schema_json
from ..schemas.topics import TOPICS
from .compatibility import complaints
from .registry import COMPATIBILITY

VERSION = re.compile(r"\d+\.\d+\.\d+")


def folder() -> Path:
    """Where released schemas are kept."""
    return Path(str(files("spanloop.schemas"))) / "released"


def released(where: Path | None = None) -> dict[str, dict[str, str]]:
    """Version -> topic -> schema JSON, oldest version first."""
    found = [path for path in (where or folder()).iterdir() if VERSION.fullmatch(path.name)]
    return {
        version.name: {path.stem: path.read_text("utf-8") for path in sorted(version.glob("*.avsc"))}
        for version in sorted(found, key=lambda path: [int(part) for part in path.name.split(".")])
    }


def breaks(topic: str, schema: str, earlier: list[str]) -> str | None:
    """Why a topic's schema may not follow earlier ones, naming the field; None = it may."""
    found = complaints(COMPATIBILITY, schema, earlier)
    return f"topic {topic!r}: {'; '.join(found)}; fields may only be added, with defaults" if found else None


def cut(version: str, where: Path | None = None) -> Path:
    """Keeps today's schemas as those of a version. Raises ConfigError; SchemaMismatch where one breaks an earlier."""
    where = where or folder()
    if not VERSION.fullmatch(version):
        raise ConfigError(f"{version!r} is no version: expected three numbers, as 0.2.0")
    target = where / version
    if target.exists():
        raise ConfigError(f"version {version} was cut already ({target}): a released schema never changes")
    before = released(where) if where.is_dir() else {}
    own = {topic.name: schema_json(topic.record) for topic in TOPICS.values()}
    broken = [breaks(name, text, [v[name] for v in before.values() if name in v]) for name, text in own.items()]
    if wrong := [reason for reason in broken if reason is not None]:
        raise SchemaMismatch("; ".join(wrong))
    target.mkdir(parents=True)
    for name, text in own.items():
        (target / f"{name}.avsc").write_text(json.dumps(json.loads(text), indent=2) + "\n", "utf-8")
    return target


def main(arguments: list[str] | None = None) -> None:
    """Command line."""
    parser = argparse.ArgumentParser(
        prog="python -m spanloop.infra.release",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("version", help="as 0.2.0")
    try:
        sys.stdout.write(f"{cut(parser.parse_args(arguments).version)}\n")
    except SpanloopError as error:
        sys.exit(f"{type(error).__name__}: {error}")


if __name__ == "__main__":
    main()
