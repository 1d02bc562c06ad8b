"""Records survive the way to bytes and back, in every framing; what does not fit is refused with a reason."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import math
import pickle
import struct
from typing import Any
from uuid import uuid4

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spanloop.schemas import errors, packed
from spanloop.schemas.examples import example
from spanloop.schemas.records import ModelCall, Reward, Span, SpanBatch, VersionRun
from spanloop.schemas.serde import (
    SCHEMA_ID_HEADER,
    Decoder,
    Encoder,
    LocalSchemas,
    decode_body,
    encode_body,
    local_ids,
    schema_json,
    split,
)
from spanloop.schemas.topics import TOPICS, Record, Topic, key_of

ENCODER = Encoder(local_ids())
INT64 = st.integers(-(2**63), 2**63 - 1)
TEXT = st.text(st.characters(exclude_categories=["Cs"]))


@pytest.mark.parametrize("topic", TOPICS.values(), ids=TOPICS)
def test_every_example_survives_the_round_trip_byte_for_byte(topic: Topic) -> None:
    record = example(topic.record)
    framed = ENCODER.encode(record)
    decoded = Decoder(LocalSchemas()).decode_topic(topic, framed)
    assert ENCODER.encode(decoded) == framed
    assert repr(decoded) == repr(record)


@pytest.mark.parametrize("topic", TOPICS.values(), ids=TOPICS)
def test_every_example_has_a_key(topic: Topic) -> None:
    assert key_of(example(topic.record))


calls = st.builds(
    ModelCall,
    request=TEXT,
    response=st.none() | TEXT,
    prompt_ids=st.none() | st.binary(),
    response_ids=st.none() | st.lists(st.integers(0, 2**31 - 1)).map(packed.pack_ids),
    logprobs=st.none() | st.lists(st.floats(width=32) | st.none()).map(packed.pack_logprobs),
    policy_versions=st.lists(st.builds(VersionRun, INT64, st.integers(0, 99), st.integers(0, 99)), max_size=3),
    flags=st.lists(TEXT, max_size=2),
)
spans = st.builds(
    Span,
    trace_id=TEXT,
    span_id=TEXT,
    name=TEXT,
    start_ns=INT64,
    end_ns=st.none() | INT64,
    attributes=TEXT,
    call=st.none() | calls,
)
batches = st.builds(
    SpanBatch, TEXT, TEXT, TEXT, first_sequence=INT64, begin=st.booleans(), spans=st.lists(spans, max_size=3)
)


@given(batches)
def test_any_batch_of_spans_survives_the_round_trip(batch: SpanBatch) -> None:
    assert decode_body(SpanBatch, encode_body(batch), schema_json(SpanBatch)) == batch


@given(st.floats(), st.dictionaries(TEXT, st.floats()))
def test_reward_values_keep_nan_and_infinity(value: float, dimensions: dict[str, float]) -> None:
    reward = Reward("rw", "ro", value=value, dimensions=dimensions)
    back = decode_body(Reward, encode_body(reward), schema_json(Reward))
    assert back.value is not None
    assert struct.pack("d", back.value) == struct.pack("d", value)
    assert repr(back.dimensions) == repr(dimensions)


def test_nan_infinity_and_missing_log_probs_are_kept_apart_from_numbers() -> None:
    # GW-7 at the storage level: NaN = missing
    values = packed.unpack_logprobs(packed.pack_logprobs([-0.1, math.nan, -math.inf, None]))
    assert values[0] == pytest.approx(-0.1)
    assert [math.isnan(v) for v in values] == [False, True, False, True]
    assert values[2] == -math.inf


def test_ids_are_little_endian_int32() -> None:
    assert packed.pack_ids([1, 258]) == b"\x01\0\0\0\x02\x01\0\0"
    assert packed.unpack_ids(b"\x01\0\0\0\x02\x01\0\0") == [1, 258]
    with pytest.raises(errors.InvalidRecord, match="multiple of 4"):
        packed.unpack_ids(b"\x01\0\0")


@pytest.mark.parametrize("value", [b"", b"\0\0\0\0", b"\x01\x02\x03", b'{"json": true}'])
def test_a_value_without_the_framing_is_refused_with_what_was_expected(value: bytes) -> None:
    with pytest.raises(errors.InvalidRecord, match="expected byte 0 and a 4-byte schema id") as caught:
        split(value)
    assert caught.value.reason == "bad_framing"


def test_the_schema_id_is_read_from_the_header_too() -> None:
    reward = example(Reward)
    schema_id = local_ids()["rewards"]
    header = (SCHEMA_ID_HEADER, struct.pack(">bI", 0, schema_id))
    assert Decoder(LocalSchemas()).decode(Reward, encode_body(reward), [("other", b"x"), header]) == reward


def test_the_schema_guid_is_read_from_the_header_too() -> None:
    guid = uuid4()

    class ByGuid:
        def schema(self, schema_id: int | str) -> str:
            assert schema_id == str(guid)
            return schema_json(Reward)

    header = (SCHEMA_ID_HEADER, b"\x01" + guid.bytes)
    assert Decoder(ByGuid()).decode(Reward, encode_body(example(Reward)), [header]) == example(Reward)


def test_our_own_schema_is_known_again_whatever_order_its_keys_come_back_in() -> None:
    class Reordering:
        def schema(self, schema_id: int | str) -> str:
            assert schema_id == local_ids()["rewards"]
            return json.dumps(json.loads(schema_json(Reward)), sort_keys=True)

    decoder = Decoder(Reordering())
    assert decoder.writer(local_ids()["rewards"]) == schema_json(Reward)
    assert decoder.decode(Reward, ENCODER.encode(example(Reward))) == example(Reward)


def test_a_header_of_another_length_is_refused() -> None:
    with pytest.raises(errors.InvalidRecord, match="3 bytes, expected 5 or 17"):
        split(b"body", [(SCHEMA_ID_HEADER, b"abc")])


def test_bytes_left_over_after_a_record_are_refused() -> None:
    with pytest.raises(errors.InvalidRecord, match="2 bytes are left over"):
        decode_body(Reward, encode_body(example(Reward)) + b"\2\2", schema_json(Reward))


@given(st.binary(max_size=200))
def test_garbage_is_refused_and_never_raises_anything_else(body: bytes) -> None:
    with contextlib.suppress(errors.InvalidRecord):
        decode_body(SpanBatch, body, schema_json(SpanBatch))


def test_a_value_that_does_not_fit_its_field_is_refused_when_written() -> None:
    with pytest.raises(errors.InvalidRecord, match="Reward cannot be encoded"):
        encode_body(Reward("rw", "ro", created_ns=2**63))


def test_an_unknown_schema_id_is_named() -> None:
    with pytest.raises(errors.UnknownSchemaId, match="999"):
        Decoder(LocalSchemas()).decode(Reward, b"\0" + (999).to_bytes(4, "big"))


def test_schemas_are_looked_up_once() -> None:
    asked: list[int | str] = []

    class Counting(LocalSchemas):
        def schema(self, schema_id: int | str) -> str:
            asked.append(schema_id)
            return super().schema(schema_id)

    decoder, value = Decoder(Counting()), ENCODER.encode(example(Reward))
    assert decoder.decode(Reward, value) == decoder.decode(Reward, value)
    assert len(asked) == 1


@dataclasses.dataclass
class Shared:
    """A registry shared with others: what it holds under any id, None where it knows none."""

    text: str | None = None
    asked: list[int | str] = dataclasses.field(default_factory=list[int | str])

    def schema(self, schema_id: int | str) -> str:
        self.asked.append(schema_id)
        if self.text is None:
            raise errors.UnknownSchemaId(schema_id)
        return self.text


def a_record(*fields: Any) -> str:
    return json.dumps({"type": "record", "name": "Order", "fields": fields})


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ('syntax = "proto3"; message Order {}', "JSONDecodeError"),
        ('{"type": "object", "properties": {}}', "UnknownType"),
        (a_record({"name": "price", "type": "com.shop.Money"}), "UnknownType com.shop.Money"),
        (a_record({"name": "price"}), "'type'"),
        ('{"type": "record", "name": "Order"}', "KeyError 'fields'"),
        ('{"type": "record", "name": "Order", "fields": {}}', "expected a record and a list of its fields"),
        ('{"type": "array", "items": "string"}', "got type array"),
        (f"[{a_record()}]", "TypeError"),
        ('"string"', "TypeError"),
        ("null", "TypeError"),
        ("", "JSONDecodeError"),
        pytest.param("[" * 100_000, "RecursionError", id="deep"),
    ],
)
def test_a_schema_that_is_no_avro_record_is_the_records_fault(text: str, why: str) -> None:
    with pytest.raises(errors.InvalidRecord, match=f"schema id 7 is no Avro record .*: .*{why}") as caught:
        Decoder(Shared(text)).decode(Reward, b"\0\0\0\0\7" + encode_body(example(Reward)))
    assert caught.value.reason == "undecodable"
    assert len(caught.value.message) <= 500


@pytest.mark.parametrize(("text", "kind"), [(None, errors.UnknownSchemaId), ("protobuf", errors.InvalidRecord)])
def test_a_refused_id_is_asked_for_again_only_after_a_while(text: str | None, kind: type[Exception]) -> None:
    now_s, shared = [1000.0], Shared(text)
    decoder, value = Decoder(shared, lambda: now_s[0]), b"\0\0\0\0\7" + encode_body(example(Reward))
    for _ in range(3):
        with pytest.raises(kind, match="schema id 7"):
            decoder.decode(Reward, value)
    now_s[0] += 29.9
    assert not decoder.asks(value)
    assert shared.asked == [7]
    now_s[0] += 0.1
    assert decoder.asks(value)
    shared.text = schema_json(Reward)
    assert decoder.decode(Reward, value) == example(Reward)
    assert shared.asked == [7, 7]
    assert not decoder.asks(value)


def test_only_so_many_refused_ids_are_remembered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("spanloop.schemas.serde.MAX_REFUSED", 10)
    shared = Shared()
    decoder = Decoder(shared)
    for schema_id in (*range(25), 24):
        with pytest.raises(errors.UnknownSchemaId, match=f"id {schema_id}$"):
            decoder.writer(schema_id)
    assert shared.asked == [*range(25)]
    assert sum(not decoder.asks(b"\0" + i.to_bytes(4, "big")) for i in range(25)) <= 10


def test_a_value_without_framing_asks_nobody() -> None:
    assert not Decoder(Shared()).asks(b"{}")


def subclasses(cls: type[Exception]) -> list[type[Exception]]:
    return [cls, *(deep for sub in cls.__subclasses__() for deep in subclasses(sub))]


@pytest.mark.parametrize("error", subclasses(errors.SpanloopError))
def test_every_error_survives_pickling(error: type[Exception]) -> None:
    arguments: dict[type[Exception], tuple[Any, ...]] = {errors.InvalidRecord: ("too_large", "why")}
    made = error(*arguments.get(error, ("why",)))
    back = pickle.loads(pickle.dumps(made))
    assert type(back) is error
    assert str(back) == str(made)


@pytest.mark.parametrize("topic", TOPICS.values(), ids=TOPICS)
def test_records_cannot_be_changed_after_they_were_made(topic: Topic) -> None:
    record: Record = example(topic.record)
    with pytest.raises(dataclasses.FrozenInstanceError):
        setattr(record, dataclasses.fields(record)[0].name, "other")
