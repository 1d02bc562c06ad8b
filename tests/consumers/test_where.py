"""`tail --where`: what holds of a line, and errors that name their position."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spanloop.consumers.where import where
from spanloop.schemas.errors import ConfigError

LINE = {
    "partition": 2,
    "offset": 17,
    "key": "ro-12",
    "record": {
        "value": 0.25,
        "name": "it's",
        "comment": None,
        "primary": True,
        "spans": [
            {"status": "ok", "call": None, "attributes": '{"gen_ai.operation.name": "chat", "n": [1, 2]}'},
            {"status": "error", "call": {"usage": {"output": 120}}, "attributes": "{}"},
        ],
        "ids": [],
    },
}


@pytest.mark.parametrize(
    "expression",
    [
        "value < 0.5",
        "value >= 0.25 and value <= 0.25",
        "value == 2.5e-1",
        r"name = 'it\'s'",
        'name == "it\'s"',
        "comment == null",
        "nosuch == null",
        "primary",
        "primary == true",
        "not comment",
        "not ids",
        "spans.status == 'error'",
        "spans.status != 'unset'",
        "not spans.status != 'ok'",
        "spans.call.usage.output > 100",
        "spans[1].call.usage.output == 120",
        "spans[-1].status == 'error'",
        "spans[7].status == null",
        'spans.attributes["gen_ai.operation.name"] == "chat"',
        "spans.attributes.n == 2",
        "@partition == 2 and @offset > 16",
        "@key ~ '^ro-1'",
        "name ~ 't.s'",
        "value > 1 or (primary and not comment)",
        "value > 1 and primary or primary",
    ],
)
def test_it_holds(expression: str) -> None:
    assert where(expression)(LINE)


@pytest.mark.parametrize(
    "expression",
    [
        "value > 0.25",
        "value == '0.25'",
        "value < 'z'",
        "name < 5",
        "primary == 1",
        "comment",
        "spans.status == 'unset'",
        "spans.status != 'ok'",
        "nosuch.deeper == 1",
        "name.deeper == 1",
        "@error",
        "value ~ '0'",
        "primary and (comment or ids)",
    ],
)
def test_it_does_not_hold(expression: str) -> None:
    assert not where(expression)(LINE)


@pytest.mark.parametrize(
    ("expression", "position", "why"),
    [
        ("value <", 8, "expected a number, a text in quotes, true, false or null, found the end"),
        ("value < other", 9, "expected a number"),
        ("== 1", 1, "expected the name of a field, found '=='"),
        ("", 1, "expected the name of a field, found the end"),
        ("a and", 6, "expected the name of a field"),
        ("a == 1 b", 8, "expected `and`, `or` or the end, found 'b'"),
        ("(a == 1", 8, "expected ')'"),
        ("a == 'x", 6, "a text without its closing quote"),
        ("a == 1; import os", 7, "a character that means nothing here, found ';'"),
        ("a.1", 3, "expected a field's name after the dot"),
        ("a[b]", 3, "expected a name in quotes or an index"),
        ("a < null", 5, "< compares with a number or a text"),
        ("a ~ '('", 5, "no regular expression"),
        ("a ~ 3", 5, "~ searches a regular expression"),
    ],
)
def test_an_error_names_its_position(expression: str, position: int, why: str) -> None:
    with pytest.raises(ConfigError) as refused:
        where(expression)
    first, shown, mark = str(refused.value).split("\n")
    assert first.startswith(f"--where, position {position}: {why}")
    assert shown == f"  {expression}"
    assert mark == "  " + " " * (position - 1) + "^"


def test_a_time_in_nanoseconds_is_compared_exactly() -> None:
    line = {"record": {"t": 1760000000123456789, "none": None, "nan": float("nan")}}
    assert where("t == 1760000000123456789 and t <= 1760000000123456789")(line)
    assert not where("t == 1760000000123456788 or t > 1760000000123456789")(line)
    assert not where("none == 0 or none < 1 or nan == 1 or nan < 1 or nan >= 1")(line)


@pytest.mark.parametrize(
    ("expression", "position"), [("(" * 500 + "a" + ")" * 500, 101), ("not " * 5000 + "a", 401)], ids=["(", "not"]
)
def test_an_expression_nested_too_deep_is_refused(expression: str, position: int) -> None:
    with pytest.raises(ConfigError, match=f"position {position}: more than 100 parentheses and `not`"):
        where(expression)


def test_nesting_counts_only_what_is_open() -> None:
    assert where("(" * 100 + "primary" + ")" * 100)(LINE)
    assert where(" and ".join(["(primary)"] * 500))(LINE)


def test_a_number_too_long_to_read_is_refused() -> None:
    with pytest.raises(ConfigError, match="position 5: too long a number"):
        where("a > " + "9" * 5000)


def test_text_that_cannot_be_read_as_json_has_no_fields() -> None:
    holds = where("attributes.k == 'x'")
    assert not any(holds({"record": {"attributes": '{"k":' + text}}) for text in ("", "[" * 100_000, "9" * 5000 + "}"))


@given(st.text(alphabet="abno rdt.[]()'\"@=<>!~ 019-", max_size=30))
def test_any_text_is_either_an_expression_or_a_clear_error(text: str) -> None:
    refused, held = "", None
    try:
        held = where(text)(LINE)
    except ConfigError as error:
        refused = str(error)
    assert held in (True, False) or refused.startswith("--where, position ")
