"""How much of a text for people travels on into further records, beside what else they hold."""

from __future__ import annotations

# A controller's record holds two beside a whole task, in the 64 KiB that a task must leave; four bytes a character.
TEXT_MAX = 4000


def short(text: str | None) -> str | None:
    """The text, cut where it is too long to be handed on."""
    if text is None or len(text) <= TEXT_MAX:
        return text
    return f"{text[:TEXT_MAX]} … (of {len(text)} characters)"
