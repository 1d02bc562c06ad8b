"""A topic as JSON-ready objects, live from the broker or from a finished run's export."""

from __future__ import annotations

from collections.abc import Generator, Iterator
from contextlib import closing
from pathlib import Path
from typing import IO, Any, TypeAlias, cast

import fastavro
from confluent_kafka import OFFSET_BEGINNING, OFFSET_END

from ..infra.kafka import Reader, wait_for_broker
from ..infra.registry import connect
from ..infra.settings import Settings
from ..schemas.errors import ConfigError, InvalidRecord
from ..schemas.serde import Decoder, to_plain
from ..schemas.topics import TOPICS, Topic
from .plain import plain

# what JSON can hold; whoever reads it knows the record
Line: TypeAlias = "dict[str, Any]"


def topic_named(name: str) -> Topic:
    """A topic of the closed list. Raises ConfigError listing them."""
    if name not in TOPICS:
        raise ConfigError(f"no topic is called {name!r}; there are: {', '.join(TOPICS)}")
    return TOPICS[name]


def live(settings: Settings, name: str, *, beginning: bool = False) -> Generator[Line]:
    """Every record of a topic from now on, or from its first one; never ends by itself."""
    topic = topic_named(name)
    wait_for_broker(settings)
    with closing(connect(settings)) as registry, closing(Reader(settings, "tail")) as reader:
        decoder = Decoder(registry)
        reader.assign_topics([topic], OFFSET_BEGINNING if beginning else OFFSET_END)
        while True:
            for m in reader.poll(timeout_s=0.2):
                line = {"partition": m.partition, "offset": m.offset, "key": (m.key or b"").decode("utf-8", "replace")}
                try:
                    value = None if m.value is None else to_plain(decoder.decode_topic(topic, m.value, m.headers))
                except InvalidRecord as error:
                    yield {**line, "error": str(error)}
                    continue
                yield {**line, "record": plain(value)}


def exported(home: Path, name: str) -> Iterator[Line]:
    """Every record of a finished run's exported topic. Raises ConfigError where `home` holds no export."""
    path = home / "topics" / f"{topic_named(name).name}.avro"
    if not path.is_file():
        if path.parent.is_dir():  # a topic's file is made with its first record
            return
        raise ConfigError(f"{path} does not exist; is {home} a finished run's folder?")
    with path.open("rb") as file:
        for value in _records(file):
            partition, offset = value.pop("k_partition"), value.pop("k_offset")
            yield {"partition": partition, "offset": offset, "record": plain(value)}


def _records(file: IO[bytes]) -> Iterator[Line]:
    return cast("Iterator[Line]", fastavro.reader(file))
