import hashlib
import json
from dataclasses import dataclass

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
