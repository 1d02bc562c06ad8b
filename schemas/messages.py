"""The conversation that a model call was sent, as the messages of its request or as an instrumentation's attributes.

    {"messages": [{"role": "user", "content": "q"}, …]}          a request as the gateway keeps it
    gen_ai.prompt.0.role, gen_ai.prompt.0.content, …             one attribute per entry and field

Entries come without roles from libraries that take them for granted, so a role is derived where it can only be one.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

PREFIX = "gen_ai.prompt."
POSITION_DIGITS = 9  # of a longer number int() may refuse the digits, and no conversation is so long
# What json.loads raises: the text is no JSON, or holds an integer of too many digits, or is nested too deeply.
UNREADABLE = (ValueError, RecursionError)
Entry = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Conversation:
    """Messages in order, each with its role, and why entries were left out."""

    messages: Sequence[Entry]
    warnings: Sequence[str]


def conversation(entries: Sequence[object]) -> Conversation:
    """Entries with their roles. One whose role cannot be told is left out with a warning, and the others stay."""
    messages: list[Entry] = []
    warnings: list[str] = []
    for position, entry in enumerate(entries):
        fields = cast("Entry", entry if isinstance(entry, Mapping) else {})
        role = _role(fields)
        if role is None:
            shown = json.dumps(entry, default=str)[:100]
            warnings.append(f"message {position} has no role, tool_calls or tool_call_id and is left out: {shown}")
        else:
            messages.append({**fields, "role": role})
    return Conversation(messages, warnings)


def of_request(request: str) -> Conversation:
    """The messages of a request's JSON; of anything else an empty conversation that says so."""
    try:
        body = json.loads(request)
    except UNREADABLE:
        return Conversation([], ["the request is no JSON"])
    found = cast("object", body.get("messages")) if isinstance(body, dict) else None  # pyright: ignore[reportUnknownMemberType]
    return conversation(cast("list[object]", found) if isinstance(found, list) else [])


def answers(response: str | None) -> Sequence[Entry]:
    """The assistant's messages in a response's JSON, one a choice; none where it holds none."""
    try:
        body = json.loads(response or "{}")
        choices = cast("list[Entry]", body["choices"])
        return [{"role": "assistant", **choice["message"]} for choice in choices]
    except (*UNREADABLE, LookupError, TypeError):  # an error's body, or another API's
        return []


def entries(attributes: Mapping[str, object]) -> list[Entry]:
    """The entries of `gen_ai.prompt.<position>.<field>` as they came, in order of their positions."""
    found: dict[int, dict[str, object]] = {}
    for name, value in attributes.items():
        position, _, field = name.removeprefix(PREFIX).partition(".")
        if name.startswith(PREFIX) and field and _is_position(position):
            found.setdefault(int(position), {})[field] = value
    return [found[position] for position in sorted(found)]


def _is_position(text: str) -> bool:
    return text.isascii() and text.isdigit() and len(text) <= POSITION_DIGITS


def _role(entry: Entry) -> str | None:
    if isinstance(role := entry.get("role"), str) and role:
        return role
    if entry.get("tool_call_id"):
        return "tool"
    return "assistant" if any(name == "tool_calls" or name.startswith("tool_calls.") for name in entry) else None
