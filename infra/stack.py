"""Everything spanloop needs, on this machine: broker and registry in this process, ClickHouse as a child of it.

python -m spanloop.infra.stack --home runs/up            writes one line of JSON with SPANLOOP_… when all is ready, and
                                                         runs/up/env.sh, which sets them in a shell
python -m spanloop.infra.stack --home runs/up --kafka    a real Kafka and registry instead of the twins
"""

from __future__ import annotations

import argparse
import itertools
import json
import logging
import shlex
import shutil
import signal
import sys
import threading
import time
from collections.abc import Generator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING

from ..schemas.errors import ConfigError, SpanloopError
from ..schemas.topics import TOPICS
from . import admin, logs
from .embedded_broker import EmbeddedBroker
from .embedded_registry import EmbeddedRegistry
from .kafka_config import partitions as partitions_of_topic
from .owner import owned
from .process import stop_on_signal
from .real_kafka import RealKafka, cluster_id
from .settings import PREFIX, Settings

if TYPE_CHECKING:
    from .embedded_clickhouse import ClickHouseProcess

log = logging.getLogger(__name__)

POLL_S = 0.1
CLICKHOUSE = "clickhouse"
ADDRESSES = (
    "profile",
    "bootstrap",
    "registry_url",
    "clickhouse_url",
    "clickhouse_database",
    "prefix",
    "partitions",
    "home",
)
# Settings are of services elsewhere: those of the stack know no users, and one broker holds every replica.
OWN_SERVICES = {
    "kafka": dict[str, str](),
    "replication": 1,
    "min_isr": 0,
    "registry_user": "",
    "registry_password": "",
    "registry_ca": "",
    "clickhouse_url": "",
}
# In ClickHouse's folder: the Kafka cluster and the prefix whose records its tables hold.
LOG_ID = "log-id"
LOG = "stderr.log"  # all that is there of a start that was stopped before it made tables
LOCK = "stack.lock"
FOR_SHELLS = "env.sh"
EMBEDDED_NOTE = (
    "The embedded broker at {bootstrap} keeps 5 MiB a partition and forgets everything when this process ends. It is "
    "for librdkafka, aiokafka and kafkajs clients; Java and franz-go clients (Kafka's own tools, Redpanda Console, "
    "Kafka Connect) cannot talk to it: for those start `spanloop up --kafka`, or Redpanda by infra/compose.yaml."
)


class EmbeddedStack:
    """Starts all services with topics, subjects and tables made; `settings` tells where, for any process."""

    def __init__(
        self,
        home: Path,
        *,
        prefix: str = "spanloop",
        partitions: int = 4,
        clickhouse: bool = True,
        kafka: bool = False,
        registry_port: int = 0,
        clickhouse_port: int = 0,
    ) -> None:
        """`home` gets their data; `kafka`: a real broker and registry. Raises ConfigError, Unavailable.

        Of the settings elsewhere (variables, spanloop.toml) those that are of services elsewhere are not taken.
        """
        self._open = ExitStack()
        self._clickhouse: ClickHouseProcess | None = None
        self._real: RealKafka | None = None
        home = home.resolve()
        profile = "remote" if kafka else "embedded"
        wanted = Settings(profile=profile, prefix=prefix, partitions=partitions, home=home).with_(**OWN_SERVICES)
        try:
            self._open.enter_context(owned(home, LOCK))
            log_id = _log_id(home, prefix) if kafka else None
            if clickhouse:
                self._clickhouse = _started(home / CLICKHOUSE, clickhouse_port, log_id)
            settings = self._kafka(wanted, home) if kafka else self._twins(wanted, registry_port)
            admin.init(settings)
            self.settings = settings if self._clickhouse is None else _tables(settings, self._clickhouse)
            if kafka and clickhouse:
                (home / CLICKHOUSE / LOG_ID).write_text(str(_log_id(home, prefix)))
        except KeyboardInterrupt:  # nothing is in there yet
            self.close(within_s=0.0)
            raise
        except BaseException:
            self.close()
            raise

    def _twins(self, settings: Settings, registry_port: int) -> Settings:
        broker = self._open.enter_context(EmbeddedBroker())
        registry = self._open.enter_context(EmbeddedRegistry(registry_port))
        for topic in TOPICS.values():
            broker.create(topic.full(settings.prefix), partitions_of_topic(settings, topic))
        return settings.with_(bootstrap=broker.bootstrap, registry_url=registry.url)

    def _kafka(self, settings: Settings, home: Path) -> Settings:
        self._real = running = RealKafka(home)
        return settings.with_(bootstrap=running.bootstrap, registry_url=running.registry_url)

    def close(self, within_s: float | None = None) -> None:
        """Stops everything side by side, in seconds, by force what has not ended `within_s`; data in `home` stays."""
        deadline = None if within_s is None else time.monotonic() + within_s
        if self._clickhouse is not None:
            self._clickhouse.ask()
        if self._real is not None:
            self._real.close(within_s=within_s)
        if self._clickhouse is not None:
            self._clickhouse.close(None if deadline is None else max(0.0, deadline - time.monotonic()))
        self._clickhouse = self._real = None
        self._open.close()

    def kill(self) -> None:
        """Ends ClickHouse at once; the rest ends with this process."""
        if self._clickhouse is not None:
            self._clickhouse.kill()

    def __enter__(self) -> EmbeddedStack:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def _started(path: Path, port: int, log_id: str | None) -> ClickHouseProcess:
    """It comes up while the broker does."""
    try:
        from .embedded_clickhouse import ClickHouseProcess
    except ImportError as error:
        raise ConfigError(f"ClickHouse needs {error.name}: pip install 'spanloop[sink]'") from error
    choose_tables(path, log_id)
    return ClickHouseProcess(path, port, wait=False)


def _tables(settings: Settings, process: ClickHouseProcess) -> Settings:
    from . import clickhouse

    settings = settings.with_(clickhouse_url=process.ready())
    clickhouse.migrate(clickhouse.connect(settings), settings.clickhouse_database, settings.prefix)
    return settings


def _log_id(home: Path, prefix: str) -> str | None:
    """Names the log that tables hold; each prefix is one of its own. None before Kafka's first start."""
    cluster = cluster_id(home)
    return cluster and f"{cluster}/{prefix}"


def choose_tables(path: Path, log_id: str | None) -> None:
    """Leaves at `path` the tables of the log of this id, or none; those of another log are set aside.

    Rows are told apart by their offsets, and every log begins at 0: in one table, rows of two logs replace each other.
    """
    if path.is_dir() and not path.is_symlink() and all(file.name == LOG for file in path.iterdir()):
        shutil.rmtree(path)
    if path.exists() and not _holds(path, log_id):
        kept = _name_aside(path)
        path.rename(kept)
        log.warning("the tables of an earlier start, which had another log, are kept in %s", kept)
    for earlier in path.parent.glob(f"{path.name}-*"):
        if not path.exists() and _holds(earlier, log_id):
            earlier.rename(path)


def _name_aside(path: Path) -> Path:
    name = f"{path.name}-{time.strftime('%Y%m%d-%H%M%S', time.localtime(path.stat().st_mtime))}"
    names = itertools.chain([name], (f"{name}-{number}" for number in itertools.count(2)))
    return next(kept for kept in map(path.with_name, names) if not kept.exists())


def _holds(path: Path, log_id: str | None) -> bool:
    mark = path / LOG_ID
    return log_id is not None and mark.is_file() and mark.read_text() == log_id


def serve(home: Path, *, kafka: bool = False, prefix: str = "spanloop", partitions: int = 4) -> None:
    """Runs a stack until SIGTERM or SIGINT; once all is ready writes its addresses, as a JSON line and for shells."""
    stop = stop_on_signal(second_kills=False)
    try:
        with _signals_interrupt(stop):
            stack = EmbeddedStack(home, prefix=prefix, partitions=partitions, kafka=kafka)
    except KeyboardInterrupt:
        log.warning("told to stop before all was up: what was started is ended")
        return
    with stack:
        environment = stack.settings.environment()
        if not kafka:
            sys.stderr.write(EMBEDDED_NOTE.format(bootstrap=stack.settings.bootstrap) + "\n")
        addresses = {key: environment[key] for key in (f"{PREFIX}{name.upper()}" for name in ADDRESSES)}
        with _for_shells(stack.settings.home / FOR_SHELLS, addresses) as file:
            sys.stderr.write(f"In other terminals: . {shlex.quote(str(file))}\n")
            sys.stdout.write(json.dumps(addresses) + "\n")
            sys.stdout.flush()
            while not stop.wait(POLL_S):  # a bare wait() would hold signals back on some platforms
                pass


@contextmanager
def _signals_interrupt(stop: threading.Event) -> Generator[None]:
    """Has the first signal raise KeyboardInterrupt too: in a start, many calls wait that know of no event."""

    def interrupt(number: int, frame: object) -> None:
        del number, frame
        first = not stop.is_set()
        stop.set()
        if first:
            raise KeyboardInterrupt

    before = {number: signal.signal(number, interrupt) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        if stop.is_set():
            raise KeyboardInterrupt
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@contextmanager
def _for_shells(file: Path, variables: Mapping[str, str]) -> Generator[Path]:
    file.write_text("".join(f"export {name}={shlex.quote(value)}\n" for name, value in variables.items()), "utf-8")
    try:
        yield file
    finally:
        file.unlink(missing_ok=True)


def main(arguments: list[str] | None = None) -> None:
    """Command line."""
    parser = argparse.ArgumentParser(
        prog="python -m spanloop.infra.stack", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--home", type=Path, required=True, help="folder for its data")
    parser.add_argument("--kafka", action="store_true", help="a real Kafka and registry (Java 17)")
    parser.add_argument("--prefix", default="spanloop", help="of topics, groups and subjects")
    parser.add_argument("--partitions", type=int, default=4, help="of the topics that are spread")
    chosen = parser.parse_args(arguments)
    logs.configure()
    try:
        serve(chosen.home, kafka=chosen.kafka, prefix=chosen.prefix, partitions=chosen.partitions)
    except SpanloopError as error:
        sys.exit(f"{type(error).__name__}: {error}")


if __name__ == "__main__":
    main()
