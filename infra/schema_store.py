"""What a schema registry holds: subjects, versions, ids, compatibility levels; no HTTP."""

from __future__ import annotations

import json
import threading
import uuid
from collections.abc import Callable
from dataclasses import dataclass

from ..schemas.errors import SchemaMismatch
from .compatibility import LEVELS, complaints, parse

DEFAULT_LEVEL = "BACKWARD"
NOT_FOUND, CONFLICT, UNPROCESSABLE = 404, 409, 422
NO_SUBJECT, NO_VERSION, NO_SCHEMA, NO_CONFIG = 40401, 40402, 40403, 40408
BAD_SCHEMA, BAD_VERSION, BAD_LEVEL = 42201, 42202, 42203
# Any fixed namespace will do: equal schemas must get equal GUIDs in every process.
GUIDS = uuid.UUID("6f0c1f0e-6d0b-4b9a-9d7e-0d6f8a3a5c11")


class Refusal(Exception):
    """An answer other than 200, as Confluent's registry words it."""

    def __init__(self, status: int, code: int, message: str) -> None:
        super().__init__(status, code, message)
        self.status, self.code, self.message = status, code, message


@dataclass(frozen=True, slots=True)
class Registered:
    """One schema, whatever subjects it is under."""

    id: int
    guid: str
    text: str


class SchemaStore:
    """Subjects, versions and ids; no HTTP."""

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self._schemas: dict[str, Registered] = {}  # by canonical text
        self._subjects: dict[str, list[Registered]] = {}
        self._levels: dict[str, str] = {}
        self._level = DEFAULT_LEVEL

    def register(self, subject: str, text: str) -> tuple[Registered, int]:
        """The schema and its version. Raises Refusal 409 where it is incompatible, 422 where it is no schema."""
        with self._lock:
            versions = self._subjects.get(subject, [])
            canonical = _canonical(text)
            for number, known in enumerate(versions, 1):
                if _canonical(known.text) == canonical:
                    return known, number
            if wrong := complaints(self._levels.get(subject, self._level), text, [v.text for v in versions]):
                raise Refusal(
                    CONFLICT,
                    CONFLICT,
                    "Schema being registered is incompatible with an earlier schema for subject "
                    f'"{subject}", details: [{"; ".join(wrong)}]',
                )
            found = self._schemas.get(canonical)
            if found is None:
                found = Registered(len(self._schemas) + 1, str(uuid.uuid5(GUIDS, canonical)), text)
                self._schemas[canonical] = found
            self._subjects.setdefault(subject, []).append(found)
            return found, len(self._subjects[subject])

    def find(self, subject: str, text: str) -> tuple[Registered, int]:
        """A schema under a subject. Raises Refusal 404."""
        canonical = _canonical(text)
        for number, known in enumerate(self.versions(subject), 1):
            if _canonical(known.text) == canonical:
                return known, number
        raise Refusal(NOT_FOUND, NO_SCHEMA, "Schema not found")

    def subjects(self) -> list[str]:
        """All subjects, sorted."""
        with self._lock:
            return sorted(self._subjects)

    def versions(self, subject: str) -> list[Registered]:
        """A subject's schemas, oldest first. Raises Refusal 404."""
        with self._lock:
            if subject not in self._subjects:
                raise Refusal(NOT_FOUND, NO_SUBJECT, f"Subject '{subject}' not found.")
            return list(self._subjects[subject])

    def version(self, subject: str, number: str) -> tuple[Registered, int]:
        """A numbered version, or `latest`. Raises Refusal."""
        versions = self.versions(subject)
        if number in ("latest", "-1"):
            return versions[-1], len(versions)
        if not number.isdecimal() or int(number) < 1:
            raise Refusal(
                UNPROCESSABLE,
                BAD_VERSION,
                f"The specified version '{number}' is not a valid version id. Allowed values are between [1, 2^31-1] "
                'and the string "latest"',
            )
        if int(number) > len(versions):
            raise Refusal(NOT_FOUND, NO_VERSION, f"Version {number} not found.")
        return versions[int(number) - 1], int(number)

    def by(self, wanted: Callable[[Registered], bool]) -> Registered:
        """The schema that is wanted. Raises Refusal 404."""
        with self._lock:
            for known in self._schemas.values():
                if wanted(known):
                    return known
        raise Refusal(NOT_FOUND, NO_SCHEMA, "Schema not found")

    def check(self, subject: str, number: str, text: str) -> list[str]:
        """Why a schema may not follow a version; empty = it may."""
        with self._lock:
            earlier, at = self.version(subject, number)
            level = self._levels.get(subject, self._level)
            versions = self.versions(subject)[:at] if level.endswith("_TRANSITIVE") else [earlier]
            return complaints(level, text, [v.text for v in versions])

    def level(self, subject: str | None) -> str:
        """A subject's own level, or the global one. Raises Refusal 404 where a subject has none of its own."""
        if subject is None:
            return self._level
        if subject not in self._levels:
            raise Refusal(
                NOT_FOUND, NO_CONFIG, f"Subject '{subject}' does not have subject-level compatibility configured"
            )
        return self._levels[subject]

    def set_level(self, subject: str | None, level: str) -> None:
        """Raises Refusal 422 for an unknown level."""
        if level not in LEVELS:
            raise Refusal(
                UNPROCESSABLE, BAD_LEVEL, f"Invalid compatibility level. Valid values are {', '.join(LEVELS)}"
            )
        if subject is None:
            self._level = level
        else:
            self._levels[subject] = level


def _canonical(text: str) -> str:
    """White space and key order do not make another schema. Raises Refusal 422."""
    try:
        parse(text)
    except SchemaMismatch as error:
        raise Refusal(UNPROCESSABLE, BAD_SCHEMA, f"Invalid schema: {error}") from error
    return json.dumps(json.loads(text), sort_keys=True, separators=(",", ":"))
