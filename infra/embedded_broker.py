"""The broker's embedded twin: librdkafka's mock cluster, in this process, reachable by others over TCP.

For librdkafka, aiokafka and kafkajs clients of one user's local run; Java and franz-go clients are not understood.
It keeps 5 MiB or 100,000 records a partition and forgets everything with its process; `LACKS` says what it has not.
"""

from __future__ import annotations

import contextlib
import ctypes
import socket
import threading
from collections.abc import Generator, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any

import confluent_kafka

from ..schemas.errors import ConfigError

KEPT_BYTES = 5 << 20
KNOCK_S = 0.01
PRODUCER = 0  # enum rd_kafka_type_t
CONF_OK = 0  # enum rd_kafka_conf_res_t
ERROR_BYTES = 512

# What runs on a real broker only, and why: the conformance suite skips by this table.
LACKS: dict[str, str] = {
    "compaction": "its log is a list that only drops its oldest batch",
    "create_topics": "it answers no CreateTopics; the process that holds it makes topics",
    "isolation": "open and aborted transactions are readable at once",
    "transaction_offsets": "it takes offsets in a transaction and forgets them",
    "fencing": "an older transactional producer is not refused",
    "size_limit": "it takes a record of any size; our Producer is the only check",
    "retention": "5 MiB a partition whatever the topic says",
}

_POINTER = ctypes.c_void_p
_CALLS: dict[str, tuple[Any, list[Any]]] = {
    "rd_kafka_conf_new": (_POINTER, []),
    "rd_kafka_conf_set": (
        ctypes.c_int,
        [_POINTER, ctypes.c_char_p, ctypes.c_char_p, ctypes.c_char_p, ctypes.c_size_t],
    ),
    "rd_kafka_new": (_POINTER, [ctypes.c_int, _POINTER, ctypes.c_char_p, ctypes.c_size_t]),
    "rd_kafka_destroy": (None, [_POINTER]),
    "rd_kafka_mock_cluster_new": (_POINTER, [_POINTER, ctypes.c_int]),
    "rd_kafka_mock_cluster_bootstraps": (ctypes.c_char_p, [_POINTER]),
    "rd_kafka_mock_cluster_destroy": (None, [_POINTER]),
    "rd_kafka_mock_topic_create": (ctypes.c_int, [_POINTER, ctypes.c_char_p, ctypes.c_int, ctypes.c_int]),
    "rd_kafka_mock_group_initial_rebalance_delay_ms": (None, [_POINTER, ctypes.c_int32]),
    "rd_kafka_mock_broker_set_down": (ctypes.c_int, [_POINTER, ctypes.c_int32]),
    "rd_kafka_mock_broker_set_up": (ctypes.c_int, [_POINTER, ctypes.c_int32]),
    "rd_kafka_mock_broker_set_rtt": (ctypes.c_int, [_POINTER, ctypes.c_int32, ctypes.c_int]),
    "rd_kafka_mock_push_request_errors_array": (
        None,
        [_POINTER, ctypes.c_int16, ctypes.c_size_t, ctypes.POINTER(ctypes.c_int)],
    ),
}


def _library() -> ctypes.CDLL:
    """librdkafka as the confluent-kafka wheel bundles it. Raises ConfigError where it is elsewhere."""
    package = Path(confluent_kafka.__file__).parent
    for folder in (package.parent / "confluent_kafka.libs", package / ".dylibs", package.parent / "confluent_kafka"):
        for found in sorted(folder.glob("librdkafka*")):
            library = ctypes.CDLL(str(found))
            for name, (result, arguments) in _CALLS.items():
                call = getattr(library, name)
                call.restype, call.argtypes = result, arguments
            return library
    raise ConfigError(
        f"no librdkafka beside {package}: the embedded broker needs confluent-kafka's own wheel "
        "(pip install --force-reinstall --only-binary :all: confluent-kafka)"
    )


class EmbeddedBroker:
    """A Kafka-protocol broker of this process. Close it, or use it as a context manager."""

    def __init__(self, topics: Mapping[str, int] | None = None, *, brokers: int = 1) -> None:
        """`topics`: full name -> partitions. Raises ConfigError where the mock cluster cannot be had."""
        self._library = _library()
        self._brokers = brokers
        error = ctypes.create_string_buffer(ERROR_BYTES)
        conf = self._library.rd_kafka_conf_new()
        # The cluster's own client logs every broken connection of its users at a lower level.
        if self._library.rd_kafka_conf_set(conf, b"log_level", b"2", error, ERROR_BYTES) != CONF_OK:
            raise ConfigError(f"librdkafka refused a setting: {error.value.decode()}")
        self._client = self._library.rd_kafka_new(PRODUCER, conf, error, ERROR_BYTES)
        if not self._client:
            raise ConfigError(f"librdkafka cannot start: {error.value.decode()}")
        self._cluster = self._library.rd_kafka_mock_cluster_new(self._client, brokers)
        if not self._cluster:
            self._library.rd_kafka_destroy(self._client)
            raise ConfigError("librdkafka cannot start its mock cluster: can a port be bound on 127.0.0.1?")
        # Else a first member waits three seconds for others.
        self._library.rd_kafka_mock_group_initial_rebalance_delay_ms(self._cluster, 0)
        self.bootstrap: str = self._library.rd_kafka_mock_cluster_bootstraps(self._cluster).decode()
        for name, partitions in (topics or {}).items():
            self.create(name, partitions)

    def create(self, topic: str, partitions: int) -> None:
        """Makes a topic; its full name. Raises ConfigError where it exists."""
        with self._awake():
            error = self._library.rd_kafka_mock_topic_create(self._open(), topic.encode(), partitions, 1)
        if error:
            raise ConfigError(f"the embedded broker cannot create topic {topic!r} (librdkafka error {error})")

    def set_down(self) -> None:
        """Closes every connection and refuses new ones."""
        with self._awake():
            for broker in range(1, self._brokers + 1):
                self._library.rd_kafka_mock_broker_set_down(self._open(), broker)

    def set_up(self) -> None:
        """Takes connections again; nothing was forgotten."""
        for broker in range(1, self._brokers + 1):
            self._library.rd_kafka_mock_broker_set_up(self._open(), broker)

    def set_rtt(self, ms: int) -> None:
        """Answers no request before so many milliseconds have passed, as a broker far away."""
        with self._awake():
            for broker in range(1, self._brokers + 1):
                self._library.rd_kafka_mock_broker_set_rtt(self._open(), broker, ms)

    def refuse_next(self, api: int, error: int) -> None:
        """Answers the next request of a kind with an error; both are numbers of Kafka's protocol."""
        errors = (ctypes.c_int * 1)(error)
        self._library.rd_kafka_mock_push_request_errors_array(self._open(), api, 1, errors)

    def close(self) -> None:
        """Stops it; its records are gone."""
        if self._cluster:
            self._library.rd_kafka_mock_cluster_destroy(self._cluster)
            self._library.rd_kafka_destroy(self._client)
            self._cluster = None

    @contextlib.contextmanager
    def _awake(self) -> Generator[None]:
        """Keeps the cluster's thread awake: it misses one wake-up in ten and then sleeps on for a second."""
        done = threading.Event()

        def knock() -> None:
            host, _, port = self.bootstrap.split(",")[0].rpartition(":")
            while not done.wait(KNOCK_S):
                with contextlib.suppress(OSError):  # it is down, and sleeps its second
                    socket.create_connection((host, int(port)), timeout=KNOCK_S).close()

        knocking = threading.Thread(target=knock, name="embedded-broker-knock", daemon=True)
        knocking.start()
        try:
            yield
        finally:
            done.set()
            knocking.join()

    def _open(self) -> int:
        if not self._cluster:
            raise ConfigError("the embedded broker is closed")
        return self._cluster

    def __enter__(self) -> EmbeddedBroker:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
