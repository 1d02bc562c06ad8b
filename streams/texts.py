"""How much of an id, and of a text for people, travels on into further records, beside what else they hold."""

from __future__ import annotations

from ..schemas.errors import InvalidRecord
from ..schemas.records import Reward, SpanBatch

ID_MAX = 1000  # characters; an id is written up to three times in one record
# A controller's record holds two beside a whole task, in the 64 KiB that a task must leave; four bytes a character.
TEXT_MAX = 4000


def why_long(name: str, value: str | None) -> str | None:
    """Why an id cannot be written into further records; None if it can."""
    if value is None or len(value) <= ID_MAX:
        return None
    return f"{name} has {len(value)} characters, expected at most {ID_MAX}"


def why_no_key(name: str, value: str) -> str | None:
    """Why an id cannot be the key of further records; None if it can."""
    return why_long(name, value) if value else f"{name} is empty; what is written about it needs a key"


def check_ids(record: object) -> None:
    """Raises InvalidRecord where an id of an event is no key for what is written about its attempt.

    A reward whose attempt_id is empty has none, as one with null: it goes to the counting attempt.
    """
    if not isinstance(record, SpanBatch | Reward):
        return
    wrong = why_no_key("rollout_id", record.rollout_id)
    attempt_id = record.attempt_id
    if wrong is None and attempt_id is not None and (attempt_id or isinstance(record, SpanBatch)):
        wrong = why_no_key("attempt_id", attempt_id)
    if wrong is not None:
        raise InvalidRecord("unsupported", wrong)


def short(text: str | None) -> str | None:
    """The text, cut where it is too long to be handed on."""
    if text is None or len(text) <= TEXT_MAX:
        return text
    return f"{text[:TEXT_MAX]} … (of {len(text)} characters)"
