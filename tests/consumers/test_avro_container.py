import io
import json

import fastavro
from hypothesis import given
from hypothesis import strategies as st

from spanloop.consumers.avro_container import Container
from spanloop.schemas.records import Reward
from spanloop.schemas.serde import encode_body, schema_json


@given(st.lists(st.tuples(st.integers(0, 2**31 - 1), st.integers(0, 2**63 - 1), st.floats(-1, 1)), max_size=5))
def test_bodies_come_out_as_records_with_their_lineage(rows: list[tuple[int, int, float]]) -> None:
    container = Container(schema_json(Reward))
    records = [(p, o, encode_body(Reward(f"rw-{o}", "ro-1", value=v))) for p, o, v in rows]
    data = container.header + container.block(records[:2]) + container.block(records[2:])
    read = [
        (r["k_partition"], r["k_offset"], r["reward_id"], r["value"])
        for r in fastavro.reader(io.BytesIO(data))
        if isinstance(r, dict)
    ]
    assert read == [(p, o, f"rw-{o}", v) for p, o, v in rows]


def test_equal_batches_are_equal_bytes() -> None:
    one, other = Container(schema_json(Reward)), Container(schema_json(Reward))
    assert one.header + one.block([(0, 1, b"x")]) == other.header + other.block([(0, 1, b"x")])


def test_a_body_that_is_too_long_ends_at_its_own_end() -> None:
    container = Container(schema_json(Reward))
    bodies = [encode_body(Reward(f"rw-{i}", "ro-1")) for i in range(3)]
    bodies[1] += b"\x02\x02"
    data = container.header + container.block((0, i, body) for i, body in enumerate(bodies))
    read = [r["reward_id"] for r in fastavro.reader(io.BytesIO(data)) if isinstance(r, dict)]
    assert read == ["rw-0", "rw-1", "rw-2"]


def test_the_header_holds_the_writers_schema_with_lineage_first() -> None:
    schema = fastavro.reader(io.BytesIO(Container(schema_json(Reward)).header)).writer_schema
    assert isinstance(schema, dict)
    names = [f["name"] for f in schema["fields"]]
    assert names[:2] == ["k_partition", "k_offset"]
    assert names[2:] == [f["name"] for f in json.loads(schema_json(Reward))["fields"]]
