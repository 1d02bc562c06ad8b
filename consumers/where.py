"""A small expression over a record, for `tail --where`: no code is run, every error names its position.

    value < 0.5 and not name == 'style'
    spans.call.usage.output > 100 or spans.status = 'error'
    spans.attributes["gen_ai.operation.name"] == 'chat'      text that is JSON is looked into
    @partition == 2 and @key ~ '^ro-1'                        @key @partition @offset @error: the record's own place

A path goes through lists: it stands for every value found, and a comparison holds where one of them makes it so;
`!=` holds where none is equal. `~` searches a regular expression. A path alone holds where something is neither null,
false, empty nor 0.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import cast

from ..schemas.errors import ConfigError
from ..schemas.messages import UNREADABLE

Test = Callable[[Mapping[str, object]], bool]
TOKEN = re.compile(
    r"""\s*(?:(?P<number>-?\d+(?:\.\d+)?(?:[eE][+-]?\d+)?)(?![\w.])
    |(?P<text>'(?:[^'\\]|\\.)*'|"(?:[^"\\]|\\.)*")
    |(?P<word>@?[A-Za-z_]\w*)
    |(?P<mark>==|!=|<=|>=|=|<|>|~|\(|\)|\.|\[|\]))""",
    re.X,
)
COMPARE: dict[str, Callable[[float | str, float | str], bool]] = {
    "<": lambda a, b: a < b,  # type: ignore[operator]  # both are numbers, or both text
    "<=": lambda a, b: a <= b,  # type: ignore[operator]  # as above
    ">": lambda a, b: a > b,  # type: ignore[operator]  # as above
    ">=": lambda a, b: a >= b,  # type: ignore[operator]  # as above
}
EQUAL, UNEQUAL = ("==", "="), "!="
WORDS: dict[str, object] = {"true": True, "false": False, "null": None}
OPERATORS = (*EQUAL, UNEQUAL, *COMPARE, "~")
PLACE = "@"
MAX_NESTED = 100  # parentheses and `not` inside one another: each takes several of Python's 1,000 frames


@dataclass(frozen=True, slots=True)
class _Token:
    kind: str  # number, text, word, mark, end
    text: str
    at: int  # position of its first character


def where(expression: str) -> Test:
    """A test of a line of `tail`. Raises ConfigError naming the position of what is wrong."""
    return _Parser(expression).whole()


class _Parser:
    """or ─▶ and ─▶ not ─▶ comparison ─▶ path, literal."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._tokens = list(_tokens(text))
        self._next = 0
        self._nested = 0

    def whole(self) -> Test:
        test = self._or()
        if self._peek().kind != "end":
            raise self._wrong(self._peek(), "expected `and`, `or` or the end")
        return test

    def _or(self) -> Test:
        tests = [self._and()]
        while self._took("or"):
            tests.append(self._and())
        return tests[0] if len(tests) == 1 else lambda line: any(test(line) for test in tests)

    def _and(self) -> Test:
        tests = [self._not()]
        while self._took("and"):
            tests.append(self._not())
        return tests[0] if len(tests) == 1 else lambda line: all(test(line) for test in tests)

    def _not(self) -> Test:
        token = self._peek()
        negated = self._took("not")
        if not negated and not self._took("("):
            return self._comparison()
        if self._nested == MAX_NESTED:
            raise self._wrong(token, f"more than {MAX_NESTED} parentheses and `not` inside one another")
        self._nested += 1
        inner = self._not() if negated else self._or()
        self._nested -= 1
        if negated:
            return lambda line: not inner(line)
        self._need(")")
        return inner

    def _comparison(self) -> Test:
        path = self._path()
        token = self._peek()
        if token.kind != "mark" or token.text not in OPERATORS:
            return lambda line: any(bool(value) for value in _values(line, path))
        self._next += 1
        at, literal = self._peek(), self._literal()
        return self._compared(path, token.text, literal, at)

    def _compared(self, path: list[str], operator: str, literal: object, at: _Token) -> Test:
        if operator in EQUAL:
            return lambda line: any(_equal(value, literal) for value in _values(line, path))
        if operator == UNEQUAL:
            return lambda line: not any(_equal(value, literal) for value in _values(line, path))
        if operator == "~":
            pattern = self._pattern(literal, at)
            return lambda line: any(pattern.search(v) is not None for v in _values(line, path) if isinstance(v, str))
        if literal is None or isinstance(literal, bool):
            raise self._wrong(at, f"{operator} compares with a number or a text")
        bound, holds = cast("float | str", literal), COMPARE[operator]
        return lambda line: any(
            holds(cast("float | str", v), bound) for v in _values(line, path) if _comparable(v, bound)
        )

    def _pattern(self, literal: object, at: _Token) -> re.Pattern[str]:
        if not isinstance(literal, str):
            raise self._wrong(at, "~ searches a regular expression, a text in quotes")
        try:
            return re.compile(literal)
        except re.error as error:
            raise self._wrong(at, f"no regular expression: {error}") from error

    def _path(self) -> list[str]:
        token = self._take()
        if token.kind != "word" or token.text in ("and", "or", "not"):
            raise self._wrong(token, "expected the name of a field")
        path = [token.text]
        while True:
            if self._took("."):
                token = self._take()
                if token.kind != "word":
                    raise self._wrong(token, 'expected a field\'s name after the dot; other names go in ["…"]')
                path.append(token.text)
            elif self._took("["):
                token = self._take()
                if token.kind not in ("text", "number"):
                    raise self._wrong(token, "expected a name in quotes or an index")
                path.append(_unquoted(token.text) if token.kind == "text" else token.text)
                self._need("]")
            else:
                return path

    def _literal(self) -> object:
        token = self._take()
        if token.kind == "number":
            return self._number(token)
        if token.kind == "text":
            return _unquoted(token.text)
        if token.text in WORDS:
            return WORDS[token.text]
        raise self._wrong(token, "expected a number, a text in quotes, true, false or null")

    def _number(self, token: _Token) -> float:
        if any(c in token.text for c in ".eE"):
            return float(token.text)
        try:
            return int(token.text)  # exact: a time in nanoseconds is more than a float holds
        except ValueError as error:  # Python reads at most 4,300 digits
            raise self._wrong(token, "too long a number") from error

    def _peek(self) -> _Token:
        return self._tokens[self._next]

    def _take(self) -> _Token:
        token = self._tokens[self._next]
        self._next += token.kind != "end"
        return token

    def _took(self, text: str) -> bool:
        token = self._peek()
        found = token.kind in ("word", "mark") and token.text == text
        self._next += found
        return found

    def _need(self, text: str) -> None:
        if not self._took(text):
            raise self._wrong(self._peek(), f"expected {text!r}")

    def _wrong(self, token: _Token, why: str) -> ConfigError:
        return _error(self._text, token.at, why, token.text)


def _error(text: str, at: int, why: str, found: str) -> ConfigError:
    what = repr(found) if found else "the end"
    return ConfigError(f"--where, position {at + 1}: {why}, found {what}\n  {text}\n  {' ' * at}^")


def _tokens(text: str) -> Iterator[_Token]:
    at = 0
    while text[at:].strip():
        found = TOKEN.match(text, at)
        if found is None:
            at += len(text[at:]) - len(text[at:].lstrip())
            why = "a text without its closing quote" if text[at] in "'\"" else "a character that means nothing here"
            raise _error(text, at, why, text[at])
        kind = cast("str", found.lastgroup)
        yield _Token(kind, found[kind], found.start(kind))
        at = found.end()
    yield _Token("end", "", len(text))


def _unquoted(text: str) -> str:
    return re.sub(r"\\(.)", r"\1", text[1:-1])


def _values(line: Mapping[str, object], path: list[str]) -> Iterator[object]:
    """Every value a path stands for; null where a field is missing."""
    first, *rest = path
    if first.startswith(PLACE):
        yield from _into(line, [first.removeprefix(PLACE), *rest])
    else:
        yield from _into(line.get("record"), path)


def _into(value: object, path: list[str]) -> Iterator[object]:
    if isinstance(value, list):
        items = cast("list[object]", value)
        if path and path[0].lstrip("-").isdigit():
            index = int(path[0])
            yield from _into(items[index] if -len(items) <= index < len(items) else None, path[1:])
            return
        for item in items:
            yield from _into(item, path)
        if not items and not path:
            yield None
    elif not path:
        yield value
    elif isinstance(value, Mapping):
        yield from _into(cast("Mapping[str, object]", value).get(path[0]), path[1:])
    elif isinstance(value, str) and value[:1] in ("{", "["):
        yield from _into(_parsed(value), path)
    else:
        yield None


def _parsed(text: str) -> object:
    try:
        return json.loads(text)
    except UNREADABLE:  # text that only begins like JSON has no fields
        return None


def _equal(value: object, literal: object) -> bool:
    if isinstance(value, bool) or isinstance(literal, bool):
        return value is literal
    return value == literal


def _comparable(value: object, bound: float | str) -> bool:
    if isinstance(bound, str):
        return isinstance(value, str)
    return isinstance(value, int | float) and not isinstance(value, bool)
