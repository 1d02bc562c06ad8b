"""What the embedded ClickHouse must know of a statement before chDB runs it: its kind, its format, what it may touch.

chDB runs as the user who started it and knows no users of its own, so nothing that reaches files, processes or other
hosts is let through, and with readonly=1 nothing but a single query.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Literal

Kind = Literal["insert", "query", "command"]

# Table functions that stay inside the database; all others that chDB lists reach out of it.
INSIDE = {
    "null", "numbers", "numbers_mt", "zeros", "zeros_mt", "primes", "values", "view", "merge", "format", "input",
    "generaterandom", "generateseries", "generate_series", "mergetreeindex", "mergetreeprojection", "dictionary",
}  # fmt: skip
# Reach out too, without being table functions: dictionary sources and backup destinations.
OUTSIDE = {"http", "disk"}
KEYWORDS = {"infile", "outfile"}
QUERIES = {"select", "with", "show", "desc", "describe", "explain", "exists", "values", "check"}

TOKEN = re.compile(
    r"""--[^\n]* | /\*.*?\*/ | '(?:[^'\\]|\\.|'')*' | `(?:[^`\\]|\\.|``)*` | "(?:[^"\\]|\\.|"")*" | \w+ | \S""",
    re.S | re.X,
)
TAIL_FORMAT = re.compile(r"\bformat\s+(\w+)\s*(?:settings\b[^;]*)?;?\s*$", re.I)
INSERT = re.compile(r"\s*(?:(?:--[^\n]*\n|/\*.*?\*/)\s*)*insert\b", re.I | re.S)
INLINE = re.compile(
    r"(?P<into>.*?)(?P<settings>\bsettings\b.*?)?\b(?:format\s+(?P<format>\w+)|values\b)[^\S\n]*\n?", re.I | re.S
)


class Refused(ValueError):
    """A statement that the embedded ClickHouse does not run. Told to clients as ACCESS_DENIED."""


@dataclass(frozen=True, slots=True)
class InlineInsert:
    """INSERT with its data behind it: `into` [`settings`] FORMAT `format`, the data from character `end` on."""

    into: str
    settings: str
    format: str
    end: int


def tokens(sql: str) -> Iterator[str]:
    """Words, quoted names, strings and signs, without comments and white space."""
    return (t for t in TOKEN.findall(sql) if not t.startswith(("--", "/*")))


def kind(sql: str) -> Kind:
    """What a statement is, by its first word."""
    first = next(tokens(sql), "").lower()
    if first == "insert":
        return "insert"
    return "query" if first in QUERIES or first == "(" else "command"


def result_format(sql: str) -> str | None:
    """The format named at the end of a query."""
    found = TAIL_FORMAT.search(sql)
    return found[1] if found else None


def without_format(sql: str) -> str:
    """A query without the format named at its end."""
    return TAIL_FORMAT.sub("", sql)


def inline_insert(text: str) -> InlineInsert | None:
    """The head of an INSERT whose data follows; None for INSERT … SELECT and other statements."""
    if not INSERT.match(text):
        return None
    found = INLINE.match(text)
    if found is None or "select" in (t.lower() for t in tokens(found["into"])):
        return None
    return InlineInsert(found["into"], found["settings"] or "", found["format"] or "Values", found.end())


def denied_functions(table_functions: Iterable[str]) -> frozenset[str]:
    """Of chDB's table functions (any case), those that reach out of the database, in lower case."""
    return frozenset(f.lower() for f in table_functions) - INSIDE | OUTSIDE


def refuse(sql: str, denied: frozenset[str], *, readonly: bool) -> None:
    """Raises Refused for a statement that reaches out, that is several, or that writes where it may only read."""
    found = list(tokens(sql))
    if readonly and kind(sql) != "query":
        raise Refused(f"{found[0].upper() if found else 'nothing'} is no query, and readonly=1 allows only queries")
    for token, after in zip(found, [*found[1:], ""], strict=True):
        word = token.lower()
        if word in KEYWORDS:
            raise Refused(f"{token} reaches files of the server; send data and read results over HTTP")
        if word == ";" and after not in ("", ";"):
            raise Refused("one statement a request: leave out what follows the semicolon")
        if after == "(" and _reaches_out(word, denied):
            raise Refused(f"{token}() reaches out of the database, which the embedded ClickHouse does not do")


def _reaches_out(word: str, denied: frozenset[str]) -> bool:
    if word[:1] in '`"':  # a quoted name calls a function too, and escapes could spell any name
        return "\\" in word or word[1:-1] in denied
    return word in denied
