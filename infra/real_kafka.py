"""A real Kafka node and registry on this machine, without docker: Apache Kafka and Apicurio from Maven, on Java 17.

For CI, for tests of what the embedded broker lacks, and for `spanloop up --kafka`.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import socket
import subprocess
from collections.abc import Generator
from importlib.resources import as_file, files
from pathlib import Path
from types import TracebackType

from ..schemas.errors import ConfigError, Unavailable

JAVA = 17
LOOPBACK = "127.0.0.1"
CCOMPAT = "/apis/ccompat/v7"
# Maven fetches 150 MB; the scripts give up on their own after a minute.
FETCH_TIMEOUT_S = 900.0
START_TIMEOUT_S = 90.0
STOP_TIMEOUT_S = 30.0
BIND_TRIES = 50


def default_dist() -> Path:
    """Where the jars are looked for: `.kafka` of a source checkout, else a cache folder of this user."""
    checkout = Path(__file__).resolve().parent.parent
    if (checkout / "pyproject.toml").is_file():
        return checkout / ".kafka"
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "spanloop" / "kafka"


def missing(dist: Path | None = None) -> str | None:
    """Why no real Kafka can be started here, or None."""
    dist = dist or default_dist()
    java = shutil.which("java")
    if java is None:
        return f"no java on the path: a Java {JAVA} runtime is needed"
    told = subprocess.run([java, "-version"], capture_output=True, text=True, check=False).stderr
    found = re.search(r'version "(\d+)', told)
    if found is None or int(found[1]) < JAVA:
        return f"java is {told.splitlines()[0] if told else 'silent'}: version {JAVA} or later is needed"
    if not (dist / "complete").is_file():
        return f"no Kafka jars in {dist}: run infra/kafka/fetch.sh {dist}"
    return None


def fetch(dist: Path | None = None) -> Path:
    """Gets the jars from Maven unless they are there; their folder. Raises ConfigError where that fails."""
    dist = dist or default_dist()
    with _scripts() as scripts:
        done = subprocess.run(
            ["bash", str(scripts / "fetch.sh"), str(dist)],
            capture_output=True,
            text=True,
            check=False,
            timeout=FETCH_TIMEOUT_S,
        )
    if done.returncode:
        raise ConfigError(f"Kafka's jars cannot be fetched into {dist}: {(done.stderr or done.stdout).strip()[-1000:]}")
    return dist


class RealKafka:
    """One Kafka node and one registry, as processes of their own. Close it, or use it as a context manager."""

    def __init__(self, home: Path, *, port: int = 0, registry_port: int = 0, dist: Path | None = None) -> None:
        """Data and logs go into `home`; port 0 takes a free one. Raises ConfigError, or Unavailable with the log."""
        self._dist = dist or default_dist()
        if reason := missing(self._dist):
            raise ConfigError(reason)
        self.home = home
        self._kafka, self._registry = home / "kafka", home / "registry"
        self._owner = home / "owner.pid"
        self._own()
        port = port or free_port(together=2)
        registry_port = registry_port or free_port()
        self.bootstrap = f"{LOOPBACK}:{port}"
        self.registry_url = f"http://{LOOPBACK}:{registry_port}{CCOMPAT}"
        try:
            self._start(port, registry_port)
        except BaseException:
            self.close()
            raise

    def _own(self) -> None:
        """What a killed owner left running is ended; what a live one runs is not touched."""
        if self._owner.is_file() and _lives(int(self._owner.read_text())):
            raise ConfigError(
                f"{self._owner.parent} is in use by process {self._owner.read_text()}: choose another home"
            )
        self.close()
        self._owner.parent.mkdir(parents=True, exist_ok=True)
        self._owner.write_text(str(os.getpid()))

    def _start(self, port: int, registry_port: int) -> None:
        with _scripts() as scripts:
            starting = [
                _script(scripts / "start_kafka.sh", str(port), str(self._kafka), str(self._dist)),
                _script(scripts / "start_registry.sh", str(registry_port), str(self._registry), str(self._dist)),
            ]
            failures: list[str] = []
            for process in starting:
                _, told = process.communicate(timeout=START_TIMEOUT_S)
                if process.returncode:
                    failures.append(told.strip())
        if failures:
            raise Unavailable("; ".join(failures))

    def close(self, *, wipe: bool = False) -> None:
        """Stops both; `wipe` removes their data."""
        extra = ["--wipe"] if wipe else []
        with _scripts() as scripts:
            stopping = [_script(scripts / "stop_kafka.sh", str(d), *extra) for d in (self._registry, self._kafka)]
            for process in stopping:
                process.communicate(timeout=STOP_TIMEOUT_S)
        self._owner.unlink(missing_ok=True)

    def __enter__(self) -> RealKafka:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def free_port(together: int = 1) -> int:
    """A port of 127.0.0.1 that nothing listens on, as are the `together` - 1 after it. Raises ConfigError."""
    for _ in range(BIND_TRIES):
        with contextlib.ExitStack() as open_:
            first = open_.enter_context(socket.socket())
            first.bind((LOOPBACK, 0))
            port = int(first.getsockname()[1])
            try:
                for offset in range(1, together):
                    open_.enter_context(socket.socket()).bind((LOOPBACK, port + offset))
            except (OSError, OverflowError):
                continue
            return port
    raise ConfigError(f"no {together} free neighbouring ports on {LOOPBACK} after {BIND_TRIES} tries")


def _lives(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:  # another user's
        return True
    return pid != os.getpid()


@contextlib.contextmanager
def _scripts() -> Generator[Path]:
    with as_file(files("spanloop.infra") / "kafka") as folder:
        yield folder


def _script(path: Path, *arguments: str) -> subprocess.Popen[str]:
    """Output to a pipe would be held open by the service that the script leaves behind, so only stderr is read."""
    return subprocess.Popen(
        ["bash", str(path), *arguments],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    )
