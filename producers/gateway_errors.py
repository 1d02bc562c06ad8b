"""What the gateway answers in place of a completion, in the shape OpenAI's clients understand; and engines' errors."""

from __future__ import annotations

import re

from .gateway_json import Object, dumps, items, obj
from .outcome import tells_overflow

USER = re.compile(r"//[^/?#\s]*@")  # user and password in a URL
# One line per refusal: code -> (HTTP status, OpenAI error type). The codes are the closed list.
REFUSALS: dict[str, tuple[int, str]] = {
    "invalid_request": (400, "invalid_request_error"),
    "context_overflow": (400, "invalid_request_error"),
    "invalid_key": (401, "authentication_error"),
    "unknown_path": (404, "invalid_request_error"),
    "unknown_attempt": (404, "invalid_request_error"),
    "too_large": (413, "invalid_request_error"),
    "too_many_calls": (429, "rate_limit_error"),
    "internal_error": (500, "server_error"),
    "upstream_broken": (502, "server_error"),
    "no_engine": (503, "server_error"),
    "not_recorded": (503, "server_error"),
    "attempts_unread": (503, "server_error"),
    "upstream_timeout": (504, "server_error"),
}


def told(error: Exception) -> str:
    """An error's kind and message. Its repr is for nobody: aiohttp's holds the request's headers, and so our key."""
    return USER.sub("//", f"{type(error).__name__}: {error}")


class Refused(Exception):
    """The call ends here with this error; `code` is one of REFUSALS."""

    def __init__(self, code: str, message: str, retry_after_s: int | None = None) -> None:
        super().__init__(code, USER.sub("//", message), retry_after_s)
        self.code = code
        self.message = USER.sub("//", message)
        self.retry_after_s = retry_after_s

    @property
    def status(self) -> int:
        """HTTP status."""
        return REFUSALS[self.code][0]

    def body(self) -> bytes:
        """{"error": …} as OpenAI writes it."""
        return dumps(
            {"error": {"message": self.message, "type": REFUSALS[self.code][1], "param": None, "code": self.code}}
        )

    def event(self) -> bytes:
        """The same as an event inside a stream, on which OpenAI's clients raise."""
        return b"data: " + self.body() + b"\n\n"

    def headers(self) -> list[tuple[bytes, bytes]]:
        """Headers beside content-type."""
        return [] if self.retry_after_s is None else [(b"retry-after", str(self.retry_after_s).encode())]


def tells_error(part: Object) -> bool:
    """True where an answer or chunk tells of an error, at its top or in a choice, whatever else is in it."""
    if part.get("error") or part.get("object") == "error":  # an empty one is how some engines write none
        return True
    for item in items(part.get("choices")):
        choice = obj(item)
        if choice.get("error") or choice.get("finish_reason") == "error":
            return True
    return False


def ended_by(data: bytes) -> Refused:
    """How a call is refused whose stream ended with this error."""
    said = data.decode(errors="replace")
    code = "context_overflow" if tells_overflow(said) else "upstream_broken"
    return Refused(code, f"the engine ended its stream with an error: {said[:500]}")
