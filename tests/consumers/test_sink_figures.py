"""What the sink reports by telemetry."""

from __future__ import annotations

from collections import Counter
from typing import cast

from fake_meter import FakeMeter
from sink_rig import Lab

from spanloop.consumers.sink import Sink
from spanloop.consumers.sink_figures import SinkFigures
from spanloop.infra.kafka import Member, Message
from spanloop.infra.producer import Producer
from spanloop.infra.quarantine import Quarantine
from spanloop.infra.read_lag import read_lag
from spanloop.infra.settings import Settings
from spanloop.schemas.records import Reward
from spanloop.schemas.serde import LocalSchemas
from spanloop.schemas.topics import SPANS


def test_records_letters_inserts_and_bytes_are_counted_by_topic(lab: Lab) -> None:
    meter = FakeMeter()
    quarantine = Quarantine(cast("Producer", lab.letters), "sink", 100)
    sink = Sink(lab.client, LocalSchemas(), quarantine, figures=SinkFigures(meter))
    messages = [lab.message(lab.batch(lab.span(f"s{i}"))) for i in range(3)]
    sink.write([*messages, Message("spans", 1, 0, b"ro-1", b"?"), lab.message(Reward("rw-1", "ro-1", value=1.0))])
    totals: Counter[tuple[str, str]] = Counter()
    for name, amount, labels in meter.added:
        totals[name, labels["topic"]] += int(amount) if name != "spanloop.sink.insert" else 1
    sizes = {topic: totals.pop(("spanloop.sink.bytes", topic)) for topic in ("spans", "rewards")}
    assert all(size > 300 for size in sizes.values())
    assert totals == {
        ("spanloop.records", "spans"): 3,
        ("spanloop.records", "rewards"): 1,
        ("spanloop.dead_letters", "spans"): 1,
        ("spanloop.sink.inserts", "spans"): 1,
        ("spanloop.sink.inserts", "rewards"): 1,
        ("spanloop.sink.insert", "spans"): 1,
        ("spanloop.sink.insert", "rewards"): 1,
    }


def test_the_lag_is_what_a_member_has_not_read_yet(embedded_settings: Settings) -> None:
    producer = Producer(embedded_settings, "test")
    for _ in range(5):
        producer.send_wait(Lab.batch(Lab.span()))
    member = Member(embedded_settings, "lagging", [SPANS])
    found: list[Message] = []
    while len(found) < 2:
        found += member.poll(1, 0.5)
    assert read_lag(member) == {"spans": 3}
    while len(found) < 5:
        found += member.poll(10, 0.5)
    assert read_lag(member) == {"spans": 0}
    member.close()
    producer.close()
