"""The spool on a broker that takes no more than 1 MiB at once, as brokers do unless told otherwise."""

from __future__ import annotations

from base64 import b64encode
from random import randbytes
from typing import Any

import confluent_kafka.admin
import pytest
from waiting import until

from spanloop.infra.kafka import Reader, admin
from spanloop.infra.producer import Producer
from spanloop.infra.registry import Registry
from spanloop.infra.settings import Settings
from spanloop.producers import context, emit_annotation, emit_message
from spanloop.producers.context import Scope
from spanloop.producers.spool import Spool
from spanloop.schemas.records import SpanBatch
from spanloop.schemas.serde import Decoder
from spanloop.schemas.topics import SPANS

MIB = 1 << 20


def limit(settings: Settings, size: int) -> None:
    """Sets what the topic of spans takes at once."""
    kafka: Any = confluent_kafka.admin  # what its types say of configurations is incomplete
    entry = kafka.ConfigEntry("max.message.bytes", str(size), incremental_operation=kafka.AlterConfigOpType.SET)
    topic = kafka.ConfigResource("topic", SPANS.full(settings.prefix), incremental_configs=[entry])
    client: Any = admin(settings)
    for done in client.incremental_alter_configs([topic]).values():
        done.result(30)


@pytest.mark.kafka
def test_a_huge_attribute_and_two_large_spans_of_one_flush_arrive_at_a_broker_of_one_mebibyte(
    kafka_settings: Settings,
) -> None:  # PS-3
    limit(kafka_settings, MIB)
    producer = Producer(kafka_settings, "spool")
    spool = Spool(producer, producer_id="p", linger_s=0.5)
    with context.attempt(Scope("ro-1", "at-1", "p", spool.open("ro-1", "at-1"))):
        emit_annotation({"prompt": "x" * (5 * MIB)})
        for _ in range(2):
            emit_message(b64encode(randbytes(525 << 10)).decode())  # 700 KiB of what does not compress
    assert spool.close(60)
    producer.close()
    registry, reader = Registry(kafka_settings.registry_url), Reader(kafka_settings, "log")
    decoder, batches = Decoder(registry), list[SpanBatch]()

    def read() -> bool:
        for m in reader.poll(100, 0.05):
            record = decoder.decode_topic(SPANS, m.value or b"", m.headers)
            assert isinstance(record, SpanBatch)
            batches.append(record)
        return sum(len(b.spans) for b in batches) == 3

    try:
        reader.assign_topics([SPANS])
        until(read)
    finally:
        reader.close()
        registry.close()
    assert (spool.dropped, [len(b.spans) for b in batches]) == (0, [1, 1, 1])
    first = batches[0].spans[0].attributes
    assert '"prompt.truncated":true' in first
    assert '"prompt.length":5242880' in first
