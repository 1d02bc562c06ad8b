"""Keeps secrets out of logs and messages: those that the settings hold, wherever they are, and what looks like one."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import TYPE_CHECKING
from urllib.parse import quote, unquote, urlsplit

if TYPE_CHECKING:
    from .settings import Settings

MASK = "***"
# Shorter values would be found inside ordinary words.
MIN_SECRET = 4
SECRET_NAME = re.compile(r"password|secret|token|jaas|credential|private|\.key|api[-_]?key", re.I)
URLS = ("registry_url", "clickhouse_url", "gateway_url", "otel_endpoint")

# user:password@ in a URL; a bearer token; a key as OpenAI's and the gateway's are; name=value with a telling name.
PATTERNS: tuple[tuple[re.Pattern[str], str], ...] = (
    (re.compile(r"(\w+://[^\s:/@]*):(?!password@)[^\s/@]+@"), rf"\1:{MASK}@"),
    (re.compile(r"\b(bearer|basic)\s+[\w.~+/=:-]{6,}", re.I), rf"\1 {MASK}"),
    (re.compile(r"\bsk-[\w.-]{6,}"), f"sk-{MASK}"),
    (
        re.compile(
            r"""(["']?[\w.-]*(?:password|passwd|secret|api[-_]?key|jaas\.config)["']?\s*[=:]\s*)("[^"]*"|'[^']*'|[^\s,;&}]+)""",
            re.I,
        ),
        rf"\1{MASK}",
    ),
)


class Masker:
    """Replaces secrets in text by ***."""

    def __init__(self, secrets: Iterable[str] = ()) -> None:
        """`secrets`: values to be hidden wherever they stand."""
        known = sorted({s for s in secrets if len(s) >= MIN_SECRET}, key=len, reverse=True)
        self._known = re.compile("|".join(map(re.escape, known))) if known else None

    def __call__(self, text: str) -> str:
        """The text without secrets."""
        if self._known is not None:
            text = self._known.sub(MASK, text)
        for pattern, instead in PATTERNS:
            text = pattern.sub(instead, text)
        return text


def secrets_of(settings: Settings) -> set[str]:
    """Every value in the settings that nobody may read in a log.

    A URL's password that is its user's name is no secret, but perhaps a word of every second line.
    """
    found = {settings.secret, settings.registry_password}
    found |= {value for name, value in settings.kafka.items() if SECRET_NAME.search(name)}
    for name in URLS:
        password = _password(getattr(settings, name))
        found |= {password, unquote(password), quote(password, safe="")}
    return found - {""} - {_user(getattr(settings, name)) for name in URLS}


def without_password(url: str) -> str:
    """A URL that may be shown."""
    password = _password(url)
    return url.replace(f":{password}@", f":{MASK}@") if password else url


def _user(url: str) -> str:
    try:
        return urlsplit(url).username or ""
    except ValueError:
        return ""


def _password(url: str) -> str:
    try:
        return urlsplit(url).password or ""
    except ValueError:  # no URL; the patterns still find user:password@ in it
        return ""
