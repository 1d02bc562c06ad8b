"""Server-sent events: cutting a byte stream into events, and where the write-ahead hold begins.

data: {"choices":[{"delta":{"content":"a"}}]}          ─▶ passed on at once
data: {"choices":[{"delta":{},"finish_reason":"stop"}]} ─▶ held, as is everything after it,
data: [DONE]                                               until the broker has acknowledged the span
"""

from __future__ import annotations

import re
from collections.abc import AsyncIterator
from dataclasses import dataclass, field

from .gateway_errors import Refused
from .gateway_json import Object, integer, items, obj, text_or_json

# A blank line, whichever line ends it is made of. A CR at the end waits for what follows: an LF would belong to it.
# Written out, since a search for alternatives with known first bytes is several times faster than one for a group.
BOUNDARY = re.compile(rb"\r\n(?:@)|\n(?:@)|\r(?!\n|\Z)(?:@)".replace(b"@", rb"\r\n|\n|\r(?!\n|\Z)"))
BOUNDARY_BYTES = 4
BOM = b"\xef\xbb\xbf"
DONE = b"[DONE]"


async def events(chunks: AsyncIterator[bytes], max_bytes: int) -> AsyncIterator[list[bytes]]:
    """Whole events, their blank line included, as many at a time as the network brought together.

    Raises Refused(upstream_broken) past `max_bytes` in all.
    """
    buffer, total, returns = bytearray(), 0, False
    async for chunk in chunks:
        total += len(chunk)
        if total > max_bytes:
            raise Refused("upstream_broken", f"the answer is longer than {max_bytes} bytes")
        searched = max(0, len(buffer) - BOUNDARY_BYTES)
        buffer += chunk
        returns = returns or b"\r" in chunk
        if ends := _ends(buffer, searched, returns):
            yield [bytes(buffer[start:end]) for start, end in zip([0, *ends], ends, strict=False)]
            del buffer[: ends[-1]]
    if buffer.strip():
        yield [bytes(buffer)]


def _ends(buffer: bytearray, searched: int, returns: bool) -> list[int]:
    """Where events end that end behind `searched`. Hardly any engine writes carriage returns."""
    if returns:
        return [found.end() for found in BOUNDARY.finditer(buffer, searched)]
    ends: list[int] = []
    while (at := buffer.find(b"\n\n", searched)) >= 0:
        searched = at + 2
        ends.append(searched)
    return ends


def data_of(event: bytes) -> bytes | None:
    """An event's data lines joined, white space around them left out; None for a comment or a keep-alive."""
    one_line = event.find(b"\n") == len(event) - 2 and event.endswith(b"\n") and b"\r" not in event
    if one_line and event.startswith(b"data:"):
        return event[5:].strip() or None
    lines = [line[5:].removeprefix(b" ") for line in event.removeprefix(BOM).splitlines() if line.startswith(b"data:")]
    return b"\n".join(lines).strip() or None


def names_error(event: bytes) -> bool:
    """True for an event of the type `error`."""
    if b"event:" not in event:
        return False
    return any(line.replace(b" ", b"") == b"event:error" for line in event.removeprefix(BOM).splitlines())


@dataclass(slots=True)
class Braces:
    """Watches a JSON object arrive in pieces, each character looked at once."""

    depth: int = 0
    opened: bool = False
    quoted: bool = False
    escaped: bool = False

    def feed(self, piece: str) -> bool:
        """True once the object's last brace has come."""
        for character in piece:
            if self.escaped:
                self.escaped = False
            elif self.quoted:
                self.escaped = character == "\\"
                self.quoted = character != '"'
            elif character == '"':
                self.quoted = True
            elif character in "{[":
                self.depth, self.opened = self.depth + 1, True
            elif character in "}]":
                self.depth -= 1
        return self.opened and self.depth <= 0


@dataclass(slots=True)
class Hold:
    """Decides from which event on a stream is held back; once begun it never ends by itself."""

    begun: bool = False
    ended: bool = False  # [DONE] has come
    _calls: dict[tuple[int, int], Braces] = field(default_factory=dict[tuple[int, int], Braces])

    def starts_at(self, chunk: Object) -> bool:
        """True where this chunk, or one before it, finishes an answer or completes a tool call."""
        for choice in items(chunk.get("choices")):
            if self.begun:
                break
            self.begun = self._finishes(obj(choice))
        return self.begun

    def _finishes(self, choice: Object) -> bool:
        complete = bool(choice.get("finish_reason"))  # "" on every chunk is how some write null
        delta, index = obj(choice.get("delta")), integer(choice.get("index")) or 0
        for call in map(obj, items(delta.get("tool_calls"))):
            complete |= self._completes(index, integer(call.get("index")) or 0, obj(call.get("function")))
        if legacy := obj(delta.get("function_call")):
            complete |= self._completes(index, -1, legacy)
        return complete

    def _completes(self, choice: int, call: int, function: Object) -> bool:
        known = self._calls.get((choice, call))
        # A further call of the same answer says that the one before it is complete, whatever its arguments look like.
        follows = known is None and any(key[0] == choice for key in self._calls)
        braces = self._calls.setdefault((choice, call), Braces())
        return braces.feed(text_or_json(function.get("arguments") or "")) or follows  # {} may stand for what is to come
