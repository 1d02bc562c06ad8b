"""A real Kafka node and registry on this machine, without docker: Apache Kafka and Apicurio from Maven, on Java 17.

For CI, for tests of what the embedded broker lacks, and for `spanloop up --kafka`.
"""

from __future__ import annotations

import os
import random
import re
import shutil
import signal
import socket
import subprocess
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import TypeVar

from ..schemas.errors import ConfigError, Unavailable
from .kafka_node import LOOPBACK, STOP_TIMEOUT_S, KafkaNode, finish, script, stop_all, stop_with_owner
from .owner import owned

K = TypeVar("K", bound="RealKafka")

JAVA = 17
CCOMPAT = "/apis/ccompat/v7"
JAVA_TIMEOUT_S = 10.0  # a sound one tells its version in a tenth of a second
ABORT_S = 2.0  # what a start that is interrupted leaves its processes
FETCH_TIMEOUT_S = 900.0  # Maven fetches 150 MB
PORTS = 3  # of a node: plaintext, controller, SASL_SSL
SASL_USER = "spanloop"
CLUSTER_ID = "spanloop-of-this-home0"  # 22 characters of base64, as Kafka wants it
CLUSTER_HEAP = "384m"
BIND_TRIES = 50
# Below those that outgoing connections are given (Linux: from 32768): one would take the port of a stopped node.
PORTS_FROM_TO = 20_000, 32_000
LOCK = "kafka.lock"


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
    asked = [java, "-version"]
    try:
        told = subprocess.run(asked, capture_output=True, text=True, check=False, timeout=JAVA_TIMEOUT_S).stderr
    except subprocess.TimeoutExpired:
        return f"{java} did not tell its version within {JAVA_TIMEOUT_S:g} s: version {JAVA} or later is needed"
    found = re.search(r'version "(\d+)', told)
    if found is None or int(found[1]) < JAVA:
        return f"java is {told.splitlines()[0] if told else 'silent'}: version {JAVA} or later is needed"
    if not (dist / "complete").is_file():
        return f"no Kafka jars in {dist}: run infra/kafka/fetch.sh {dist}"
    return None


def fetch(dist: Path | None = None) -> Path:
    """Gets the jars from Maven unless they are there; their folder. Raises ConfigError where that fails."""
    dist = dist or default_dist()
    try:
        finish([script("fetch.sh", dist)], FETCH_TIMEOUT_S)
    except Unavailable as error:
        raise ConfigError(f"Kafka's jars cannot be fetched into {dist}: {str(error)[-1000:]}") from error
    return dist


class RealKafka:
    """Kafka nodes, one or several, and a registry, as processes of their own. Close it, or use it as a context manager.

    Several are one cluster: three replicas of three nodes, of which two must have a record (`REPLICAS`, `MIN_ISR`).
    Nodes are numbered from 1. Ports, from the first: for each node plaintext, controller, SASL_SSL.
    """

    def __init__(
        self,
        home: Path,
        *,
        nodes: int = 1,
        sasl: bool = False,
        users: Sequence[str] = (),
        registry: bool = True,
        port: int = 0,
        registry_port: int = 0,
        dist: Path | None = None,
    ) -> None:
        """Data and logs go into `home`; port 0 takes a free one; `sasl` adds a SASL_SSL listener.

        `users`: further ones of it, which may do only what access rules allow; whoever needs no password may do all.
        Raises ConfigError, or Unavailable with the log.
        """
        self._dist = dist or default_dist()
        if reason := missing(self._dist):
            raise ConfigError(reason)
        self.home = home.resolve()
        self._registry = self.home / "registry"
        self._tls = self.home / "tls" if sasl or users else None
        self._users = users
        port = port or free_port(together=PORTS * nodes)
        self.replication = nodes
        self._nodes = {n: self._node(n, port, nodes) for n in range(1, nodes + 1)}
        self._folders = [self._registry, *(node.folder for node in self._nodes.values())]
        self._owned = ExitStack()
        self._owned.enter_context(owned(self.home, LOCK))
        self._stop_all()  # what a killed owner left running
        self._watch = stop_with_owner(self._folders)
        self.bootstrap = ",".join(f"{LOOPBACK}:{node.port}" for node in self._nodes.values())
        self._registry_port = (registry_port or free_port()) if registry else 0
        self.registry_url = f"http://{LOOPBACK}:{self._registry_port}{CCOMPAT}" if registry else ""
        try:
            self._start()
        except KeyboardInterrupt:
            self.close(within_s=ABORT_S)
            raise
        except BaseException:
            self.close()
            raise

    def _node(self, number: int, first: int, nodes: int) -> KafkaNode:
        name = "kafka" if nodes == 1 else f"kafka-{number}"
        environment: dict[str, str] = {} if self._tls is None else {"KAFKA_TLS": str(self._tls)}
        if self._users:
            environment["KAFKA_USERS"] = " ".join(self._users)
        if nodes > 1:
            ports = [first + PORTS * n for n in range(nodes)]
            environment |= {
                "KAFKA_NODE": str(number),
                "KAFKA_VOTERS": ",".join(f"{n}@{LOOPBACK}:{p + 1}" for n, p in enumerate(ports, 1)),
                "KAFKA_REPLICAS": str(nodes),
                "KAFKA_CLUSTER_ID": CLUSTER_ID,
                "KAFKA_HEAP": CLUSTER_HEAP,
            }
        return KafkaNode(first + PORTS * (number - 1), self.home / name, self._dist, environment)

    def _start(self) -> None:
        if self._tls is not None:
            finish([script("make_tls.sh", self._tls)])
        starting = [node.starting() for node in self._nodes.values()]
        if self._registry_port:
            starting.append(self._starting_registry())
        finish(starting)

    def _starting_registry(self) -> subprocess.Popen[str]:
        return script("start_registry.sh", self._registry_port, self._registry, self._dist)

    # --- security

    @property
    def sasl_bootstrap(self) -> str:
        """The SASL_SSL listeners. They are there where `sasl` was asked for."""
        return ",".join(f"{LOOPBACK}:{node.port + 2}" for node in self._nodes.values())

    def security(self, mechanism: str = "SCRAM-SHA-256", user: str = SASL_USER) -> dict[str, str]:
        """`Settings.kafka` for `sasl_bootstrap`, which also takes PLAIN (`users` only that) and SCRAM-SHA-512."""
        if self._tls is None:
            raise ConfigError("this Kafka has no SASL_SSL listener: start it with sasl=True")
        return {
            "security.protocol": "SASL_SSL",
            "sasl.mechanism": mechanism,
            "sasl.username": user,
            "sasl.password": (self._tls / "password").read_text(),
            "ssl.ca.location": str(self._tls / "ca.crt"),
        }

    @property
    def client_certificate(self) -> dict[str, str]:
        """`Settings.kafka` for a client's certificate, which the SASL_SSL listener checks where it is shown."""
        tls = self._tls or self.home / "tls"
        return {"ssl.certificate.location": str(tls / "client.crt"), "ssl.key.location": str(tls / "client.key")}

    # --- faults

    def stop(self, node: int = 1) -> None:
        """Ends a node in order."""
        self._nodes[node].stop()

    def kill(self, node: int = 1) -> None:
        """Ends a node by SIGKILL; returns when it is gone."""
        self._nodes[node].kill()

    def start(self, node: int = 1) -> None:
        """Starts a node where it was; returns when it serves. Nothing happens if it runs. Raises Unavailable."""
        finish([self._nodes[node].starting()])

    def restart(self, node: int = 1) -> None:
        """Ends a node in order and starts it where it was."""
        self.stop(node)
        self.start(node)

    def pause(self, node: int = 1) -> None:
        """Holds a node by SIGSTOP: its connections stay and nothing answers."""
        self._nodes[node].signal(signal.SIGSTOP)

    def resume(self, node: int = 1) -> None:
        """Lets a held node go on."""
        self._nodes[node].signal(signal.SIGCONT)

    # --- end

    def close(self, *, wipe: bool = False, within_s: float | None = None) -> None:
        """Stops everything, by force what has not ended `within_s`; `wipe` removes the data."""
        self._stop_all(*(["--wipe"] if wipe else []), within_s=within_s)
        self._watch.communicate(timeout=STOP_TIMEOUT_S)  # ends its input; it finds nothing left to stop
        self._owned.close()

    def _stop_all(self, *flags: str, within_s: float | None = None) -> None:
        stop_all(self._folders, *flags, within_s=within_s)

    def __enter__(self: K) -> K:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


class RealCluster(RealKafka):
    """Three nodes of which any one may fail."""

    def __init__(self, home: Path, *, sasl: bool = False, registry: bool = True, dist: Path | None = None) -> None:
        """As RealKafka's."""
        super().__init__(home, nodes=3, sasl=sasl, registry=registry, dist=dist)


def free_port(together: int = 1) -> int:
    """A port of 127.0.0.1 that nothing listens on, as are the `together` - 1 after it. Raises ConfigError."""
    dice = random.SystemRandom()
    for _ in range(BIND_TRIES):
        first = dice.randrange(*PORTS_FROM_TO)
        with ExitStack() as open_:
            try:
                for port in range(first, first + together):
                    open_.enter_context(socket.socket()).bind((LOOPBACK, port))
            except OSError:
                continue
            return first
    raise ConfigError(f"no {together} free neighbouring ports on {LOOPBACK} after {BIND_TRIES} tries")


def cluster_id(home: Path) -> str | None:
    """Of the one node's log that is kept in `home`; None where there is none yet."""
    try:
        told = (home / "kafka" / "data" / "meta.properties").read_text()
    except FileNotFoundError:
        return None
    found = re.search(r"^cluster\.id=(.+)$", told, re.MULTILINE)
    return found and found[1].strip()
