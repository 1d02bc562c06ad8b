"""What the gateway answers in place of a completion, in the shape OpenAI's clients understand."""

from __future__ import annotations

from .gateway_json import dumps

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


class Refused(Exception):
    """The call ends here with this error; `code` is one of REFUSALS."""

    def __init__(self, code: str, message: str, retry_after_s: int | None = None) -> None:
        super().__init__(code, message, retry_after_s)
        self.code = code
        self.message = message
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
