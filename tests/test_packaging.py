"""The distribution holds every room and its data files, and works when installed from a wheel or an sdist."""

from __future__ import annotations

import subprocess
import sys
import tarfile
import venv
import zipfile
from pathlib import Path

import pytest

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

ROOT = Path(__file__).parent.parent
ROOMS = ("schemas", "infra", "producers", "streams", "consumers", "trainer")
READ_DATA = """
from importlib.resources import files
from spanloop.schemas.examples import example
from spanloop.schemas.serde import schema_json
from spanloop.schemas.topics import TOPICS
for topic in TOPICS.values():
    schema_json(topic.record), example(topic.record)
assert [f for f in (files("spanloop.infra") / "sql").iterdir() if f.name.endswith(".sql")]
assert (files("spanloop.infra") / "compose.yaml").is_file()
from spanloop import rollout
import spanloop
print(spanloop.__file__)
"""


def project() -> dict[str, dict[str, dict[str, object]]]:
    return tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))


def test_the_list_of_packages_equals_the_disk() -> None:
    tool = project()["tool"]["setuptools"]
    expected = ["spanloop", *(f"spanloop.{room}" for room in ROOMS)]
    assert tool["packages"] == expected
    assert tool["package-dir"] == {name: name.removeprefix("spanloop.") for name in expected}
    assert all((ROOT / room / "__init__.py").is_file() for room in ("spanloop", *ROOMS))


def test_the_lock_names_no_index_host() -> None:
    lock = (ROOT / "requirements.lock").read_text("utf-8")
    assert "://" not in lock
    assert "--index" not in lock
    assert "spanloop" not in lock


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with sdist and wheel, the wheel built from the sdist as an index would."""
    out = tmp_path_factory.mktemp("dist")
    command = [sys.executable, "-m", "build", "--no-isolation", "--outdir", str(out), str(ROOT)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    return out


def test_wheel_and_sdist_hold_schemas_examples_and_migrations(built: Path) -> None:
    with zipfile.ZipFile(next(built.glob("*.whl"))) as wheel:
        names = wheel.namelist()
    with tarfile.open(next(built.glob("*.tar.gz"))) as sdist:
        source = sdist.getnames()
    for suffix in ("SpanBatch.avsc", "examples/Task.json", ".sql", "compose.yaml", "py.typed"):
        assert any(name.endswith(suffix) for name in names), suffix
        assert any(name.endswith(suffix) for name in source), suffix
    assert not [name for name in names if name.startswith("tests")]


def test_the_wheel_works_in_a_fresh_environment(built: Path, tmp_path: Path) -> None:
    """Third-party packages are lent by this environment; spanloop itself comes from the wheel only."""
    venv.create(tmp_path / "env", with_pip=True)
    python = tmp_path / "env" / "bin" / "python"
    wheel = next(built.glob("*.whl"))
    subprocess.run([python, "-m", "pip", "install", "-q", "--no-deps", "--no-index", wheel], check=True)
    lent = Path(sys.prefix) / "lib" / f"python{sys.version_info[0]}.{sys.version_info[1]}" / "site-packages"
    code = f"import sys; sys.path.append({str(lent)!r})\n{READ_DATA}"
    done = subprocess.run([python, "-c", code], capture_output=True, text=True, check=False, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith(str(tmp_path))
