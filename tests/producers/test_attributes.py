import hashlib
import json
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum, IntEnum
from fractions import Fraction
from typing import Any, ClassVar

import numpy
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from spanloop.producers import attributes as attrs


class Stubborn:
    def __repr__(self) -> str:
        raise RuntimeError("no repr for you")


def encoded(**attributes: object) -> dict[str, object]:
    return json.loads(attrs.encode(attributes)[0])


def test_null_stays_null() -> None:  # PS-1
    text, dropped = attrs.encode({"gen_ai.prompt.0.content": None, "k": 1})
    assert (text, dropped) == ('{"gen_ai.prompt.0.content":null,"k":1}', 0)


def test_a_nested_value_becomes_canonical_json_with_a_type_marker() -> None:  # PS-2
    text, _ = attrs.encode({"tool.args": {"a": [1, {"b": None}]}})
    assert json.loads(text) == {"tool.args": '{"a":[1,{"b":null}]}', "tool.args.type": "json"}


def test_canonical_json_has_sorted_keys() -> None:
    assert encoded(v={"b": 1, "a": {"d": 2, "c": 3}})["v"] == '{"a":{"c":3,"d":2},"b":1}'


def test_five_mebibytes_are_cut_with_length_and_digest() -> None:  # PS-3
    whole = "x" * (5 << 20)
    text, dropped = attrs.encode({"prompt": whole, "k": 1})
    found = json.loads(text)
    assert dropped == 0
    assert found["prompt.truncated"] is True
    assert found["prompt.length"] == 5_242_880
    assert found["prompt.sha256"] == hashlib.sha256(whole.encode()).hexdigest()
    assert found["k"] == 1
    assert found["prompt"] == "x" * attrs.MAX_VALUE_BYTES
    assert len(text) < 1 << 20


def test_a_value_of_700_kib_is_not_cut() -> None:  # PS-3
    assert encoded(prompt="x" * (700 << 10)) == {"prompt": "x" * (700 << 10)}


def test_many_large_values_stay_within_the_span_limit() -> None:
    text, dropped = attrs.encode({f"v{i}": "é" * (700 << 9) for i in range(40)})
    assert dropped == 0
    assert len(text.encode()) < attrs.MAX_SPAN_BYTES + (1 << 20)
    assert sum(1 for k in json.loads(text) if k.endswith(".truncated")) > 0


def test_a_cut_keeps_whole_characters() -> None:
    found = encoded(v="€" * attrs.MAX_VALUE_BYTES)
    assert found["v"] == "€" * (attrs.MAX_VALUE_BYTES // 3)


def test_bytes_that_are_not_utf8_are_replaced_and_marked_lossy() -> None:  # PS-4
    assert encoded(raw=b"\xff\xfeabc") == {"raw": "��abc", "raw.lossy": True}


def test_bytes_that_are_utf8_are_text() -> None:
    assert encoded(raw="é".encode()) == {"raw": "é"}


def test_200_attributes_are_all_kept() -> None:  # PS-10
    text, dropped = attrs.encode({f"k{i}": i for i in range(200)})
    assert dropped + len(json.loads(text)) == 200


def test_attributes_over_the_limit_are_counted() -> None:
    text, dropped = attrs.encode({f"k{i}": i for i in range(attrs.MAX_ATTRIBUTES + 7)})
    assert (len(json.loads(text)), dropped) == (attrs.MAX_ATTRIBUTES, 7)


def test_200_links_are_all_kept() -> None:  # PS-10
    text, dropped = attrs.encode_list({"trace_id": "0" * 32, "attributes": {"i": i}} for i in range(200))
    assert dropped == 0
    assert [link["attributes"]["i"] for link in json.loads(text)] == list(range(200))


def test_links_over_the_limit_are_counted() -> None:
    text, dropped = attrs.encode_list(({"i": i} for i in range(200)), limit=128)
    assert (len(json.loads(text)), dropped) == (128, 72)


@pytest.mark.parametrize(
    ("value", "kept"),
    [(float("nan"), "NaN"), (float("inf"), "Infinity"), (float("-inf"), "-Infinity"), (0.5, 0.5)],
)
def test_what_json_has_no_number_for_is_a_string(value: float, kept: object) -> None:
    assert encoded(v=value) == {"v": kept}
    assert encoded(v={"deep": value})["v"] == attrs.dump({"deep": kept})


def test_lone_surrogates_are_replaced_and_marked() -> None:
    assert encoded(v="a\ud800b") == {"v": "a�b", "v.lossy": True}
    assert encoded(v={"\ud800": ["\udfff"]})["v"] == '{"�":["�"]}'


def test_an_array_of_one_type_stays_an_array() -> None:
    assert encoded(v=["stop", "length"]) == {"v": ["stop", "length"]}
    assert encoded(v=[1, "a"]) == {"v": '[1,"a"]', "v.type": "json"}


def test_objects_become_their_fields_or_their_repr() -> None:
    @dataclass
    class Tool:
        name: str

    assert encoded(v=Tool("find")) == {"v": '{"name":"find"}', "v.type": "json"}
    assert "Ellipsis" in str(encoded(v=...)["v"])


def test_a_repr_that_raises_does_not() -> None:
    assert "Stubborn object at" in str(encoded(v=Stubborn())["v"])


def test_a_circle_ends() -> None:
    circle: list[object] = []
    circle += [circle, circle]
    assert "nested too deep" in str(encoded(v=circle)["v"])


def test_keys_of_any_type_are_accepted() -> None:
    assert json.loads(attrs.encode({1: "a", None: "b"})[0]) == {"1": "a", "None": "b"}


class Role(str, Enum):
    USER = "user"


class Level(IntEnum):
    HIGH = 3


class Loud(str):
    def encode(self, *_: object) -> bytes:  # pyright: ignore[reportIncompatibleMethodOverride] - on purpose
        raise ValueError("no bytes for you")

    def __str__(self) -> str:
        raise ValueError("nor text")


class Unreadable(dict[str, object]):
    def items(self) -> Any:
        raise ValueError("no items for you")


class Unwalkable(list[object]):
    def __iter__(self) -> Any:
        raise ValueError("no items for you")


class Unbound:
    """What a lazy proxy is while nothing stands behind it."""

    @property
    def __class__(self) -> Any:  # pyright: ignore[reportIncompatibleMethodOverride] - as proxies do
        raise RuntimeError("unbound")


class Model:
    model_fields: ClassVar[dict[str, object]] = {"good": 1, "bad": 2}
    good = 1

    @property
    def bad(self) -> int:
        raise RuntimeError("not now")


@pytest.mark.parametrize(
    "make",
    [
        lambda: 10**5000,
        lambda: Loud("hi"),
        lambda: Unreadable(a=1),
        lambda: Unwalkable([1]),
        Unbound,
        Model,
        Stubborn,
    ],
    ids=["number", "text", "mapping", "list", "proxy", "model", "repr"],
)
def test_a_value_that_cannot_be_read_costs_nothing_but_itself(make: Callable[[], object]) -> None:
    value = make()
    assert encoded(v=value, ok=1)["ok"] == 1
    assert '"ok":1' in str(encoded(v={"deep": [value], "ok": 1})["v"])


def test_a_mapping_that_cannot_be_read_is_told_by_its_repr() -> None:
    assert json.loads(attrs.encode(Unreadable(a=1))[0])["Unreadable"] == "{'a': 1}"


def test_a_field_that_cannot_be_read_leaves_the_others() -> None:
    assert encoded(v=Model()) == {"v": '{"bad":"<RuntimeError>","good":1}', "v.type": "json", "v.lossy": True}


def test_a_number_that_has_no_digits_is_in_hexadecimal() -> None:
    assert encoded(v=10**5000) == {"v": hex(10**5000)}
    assert encoded(v=[-(10**5000)])["v"] == [hex(-(10**5000))]
    assert encoded(v=10**300) == {"v": 10**300}


def test_texts_of_a_kind_of_their_own_are_the_text_they_hold() -> None:
    assert encoded(v=Role.USER) == {"v": "user"}
    assert encoded(v=[Role.USER]) == {"v": ["user"]}
    assert encoded(v={Role.USER: Role.USER})["v"] == '{"user":"user"}'
    assert json.loads(attrs.encode({Role.USER: 1})[0]) == {"user": 1}
    assert encoded(v=Loud("hi")) == {"v": "hi"}


@pytest.mark.parametrize(
    ("value", "kept"),
    [
        (Level.HIGH, 3),
        (numpy.int64(3), 3),
        (numpy.float64(0.5), 0.5),
        (numpy.float32(0.5), 0.5),
        (numpy.bool_(True), True),
        (numpy.array(7), 7),
        (numpy.float64("nan"), "NaN"),
        (Fraction(1, 2), 0.5),
    ],
    ids=repr,
)
def test_numbers_of_a_kind_of_their_own_stay_numbers(value: object, kept: object) -> None:
    assert encoded(v=value) == {"v": kept}
    assert type(encoded(v=value)["v"]) is type(kept)
    assert encoded(v=[value, value]) == {"v": [kept, kept]}
    assert encoded(v={"n": value})["v"] == attrs.dump({"n": kept})


def test_keys_of_equal_text_are_all_kept() -> None:
    assert json.loads(attrs.encode({1: "a", "1": "b"})[0]) == {"1": "a", "1#2": "b"}
    assert encoded(v={1: "a", "1": "b", "1#3": "c", b"1": "d"})["v"] == '{"1":"a","1#2":"b","1#3":"c","1#4":"d"}'
    assert encoded(v={(1, 2): "a", (3, 4): "b"})["v"] == '{"(1, 2)":"a","(3, 4)":"b"}'


def test_a_mark_takes_no_attributes_place() -> None:
    assert json.loads(attrs.encode({"k.lossy": "mine", "k": b"\xff"})[0]) == {
        "k.lossy": "mine", "k": "\ufffd", "k.lossy#3": True
    }  # fmt: skip
    assert json.loads(attrs.encode({"k": [[1]], "k.type": "mine"})[0]) == {
        "k": "[[1]]", "k.type": "json", "k.type#3": "mine"
    }  # fmt: skip
    cut = json.loads(attrs.encode({"p.length": "mine", "p": "x" * (1 << 20)})[0])
    assert (cut["p.length"], cut["p.length#4"], cut["p.truncated"]) == ("mine", 1 << 20, True)


@pytest.mark.parametrize("value", [b"\xff", "\ud83d"])
def test_what_is_replaced_inside_is_marked_lossy_too(value: object) -> None:
    assert encoded(v=[value]) == {"v": ["\ufffd"], "v.lossy": True}
    assert encoded(v={"d": value}) == {"v": '{"d":"\ufffd"}', "v.type": "json", "v.lossy": True}


def test_a_key_without_end_is_cut() -> None:
    (key,) = json.loads(attrs.encode({"k" * (20 << 20): 1})[0])
    assert len(key.encode()) <= attrs.MAX_KEY_BYTES


def test_a_text_that_is_cut_says_how_long_it_was() -> None:
    assert attrs.text_of("é" * 100, 200) == "é" * 100
    assert attrs.text_of("é" * 101, 200) == "é" * 90 + "… (202 bytes, cut)"
    assert [attrs.text_of(value, 9) for value in (None, 5, "\ud83d", Role.USER)] == ["None", "5", "\ufffd", "user"]


anything = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(st.characters()) | st.binary(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(st.characters()) | st.integers(), inner),
    max_leaves=20,
)


@settings(max_examples=40, deadline=None)
@given(st.dictionaries(st.text(st.characters(exclude_categories=())), anything))
def test_whatever_comes_in_strict_json_in_utf8_comes_out(attributes: dict[str, object]) -> None:
    def refuse(constant: str) -> None:
        raise AssertionError(f"{constant} is no JSON")

    text, dropped = attrs.encode(attributes)
    found = json.loads(text.encode().decode(), parse_constant=refuse)
    assert dropped == 0
    assert {attrs.clean(name) for name in attributes} <= set(found)
