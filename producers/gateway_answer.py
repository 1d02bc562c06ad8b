"""The engine's answer, whole or chunk by chunk: put together for the record, and stripped for the agent.

engine ──▶ Answer.add(chunk) ──▶ ids, log-probs, versions, text (recorded)
       └─▶ strip(chunk)      ──▶ what the agent would have got without us
"""

from __future__ import annotations

import math
from array import array
from dataclasses import dataclass, field
from typing import TypeVar, cast

from ..schemas.packed import NAN
from ..schemas.spans import Usage, VersionRun
from .attributes import clean
from .gateway_json import Object, integer, items, listed, loads, number, obj, text, text_or_json
from .gateway_request import Prepared

# Message fields that arrive in pieces and are joined; every other field's last value counts.
PIECES = ("content", "reasoning_content", "reasoning", "refusal")
N = TypeVar("N", int, float)
OURS_TOP = ("prompt_token_ids",)
OURS_CHOICE = ("token_ids", "prompt_token_ids", "weight_versions")
# vLLM writes -9999 in place of -inf. No log-prob is above 0, but for rounding.
FLOOR, CEILING = -9999.0, 1e-3


@dataclass(slots=True)
class Choice:
    """One of n answers as far as it has come."""

    index: int
    message: Object = field(default_factory=lambda: {"role": "assistant", "content": None})
    calls: list[tuple[int, Object]] = field(default_factory=list[tuple[int, Object]])  # tool calls with their index
    open_calls: dict[int, Object] = field(default_factory=dict[int, Object])  # by index, the one pieces belong to
    ids: array[int] | None = None  # None = not reported
    logprobs: array[float] | None = None  # NaN = missing there
    versions: list[VersionRun] = field(default_factory=list[VersionRun])
    finish_reason: str | None = None
    extra: Object = field(default_factory=dict[str, object])  # stop_reason and the like

    def add(self, choice: Object) -> None:
        """Takes a choice of a whole answer (`message`) or of a chunk (`delta`)."""
        delta = choice.get("delta")
        self._add_message(obj(choice.get("message") if delta is None else delta))
        if (ids := _ids(choice.get("token_ids"))) is not None:
            self.ids = _joined(self.ids, ids)
        if (content := listed(obj(choice.get("logprobs")).get("content"))) is not None:
            self.logprobs = _joined(self.logprobs, _logprobs(content))
        if runs := items(choice.get("weight_versions")):
            self.versions = [run for run in map(_version, runs) if run is not None]
        if reason := text(choice.get("finish_reason")):
            self.finish_reason = clean(reason)
        if (stop := choice.get("stop_reason")) is not None:
            self.extra["stop_reason"] = stop

    def _add_message(self, delta: Object) -> None:
        for name, value in delta.items():
            if value is None:
                continue
            if name == "tool_calls":
                for position, call in enumerate(items(value)):
                    self._add_call(obj(call), position)
            elif name in PIECES:
                self.message[name] = _pieced(self.message.get(name), value)
            elif name == "function_call":
                _join_function(self.message, "function_call", obj(value))
            elif value != "" or name not in self.message:
                self.message[name] = value

    def _add_call(self, delta: Object, position: int) -> None:
        call = self._call_of(delta, position)
        for name in ("id", "type"):
            if isinstance(value := delta.get(name), str) and value:
                call[name] = call.get("id", value) if name == "id" else value  # the first one, which the agent keeps
        for name, value in delta.items():
            if name == "function":
                _join_function(call, "function", obj(value))
            elif name not in ("index", "id", "type") and value is not None:
                call[name] = value

    def _call_of(self, delta: Object, position: int) -> Object:
        """The tool call that a piece belongs to. Engines number them, or only name them, or send each in one piece."""
        index, name = integer(delta.get("index")), text(delta.get("id"))
        same = [call for _, call in self.calls if call.get("id") == name] if name and index is None else []
        index = position if index is None else index
        call = same[0] if same else self.open_calls.get(index)
        if call is None or _is_another(call, delta):
            call = self.open_calls[index] = {"type": "function"}
            self.calls.append((index, call))
        return call

    def stored(self) -> Object:
        """The choice as recorded: no ids, no log-probs."""
        message = dict(self.message)
        if self.calls:
            message["tool_calls"] = [call for _, call in sorted(self.calls, key=lambda numbered: numbered[0])]
        return {"index": self.index, "message": message, "finish_reason": self.finish_reason, **self.extra}

    def finite_logprobs(self) -> tuple[array[float] | None, int]:
        """Log-probs, one per id, and how many are missing (NaN): null, no log-prob, or fewer or more than ids."""
        if self.logprobs is None:
            return None, 0
        out = self.logprobs
        if self.ids is not None and len(out) != len(self.ids):
            known = array("f") if self.miscounts_logprobs() else out
            out = known + array("f", [NAN] * (len(self.ids) - len(known)))
        if not out or (min(out) > FLOOR and max(out) <= CEILING and math.isfinite(sum(out))):  # the sum tells a NaN
            return out, 0
        out = array("f", [x if FLOOR < x <= CEILING else NAN for x in out])
        return out, sum(x != x for x in out)

    def miscounts_logprobs(self) -> bool:
        """True where there are more log-probs than ids, so that nobody knows which belongs to which."""
        return self.ids is not None and self.logprobs is not None and len(self.logprobs) > len(self.ids)


@dataclass(slots=True)
class Answer:
    """All choices of one call as far as they have come."""

    head: Object = field(default_factory=dict[str, object])  # id, created, model and the like
    prompt_ids: array[int] | None = None  # None = not reported
    usage: Usage = Usage()
    reported_usage: Object | None = None  # as the engine wrote it
    choices: dict[int, Choice] = field(default_factory=dict[int, Choice])

    def add(self, part: Object) -> None:
        """Takes a whole answer or one chunk of it."""
        for name in ("id", "created", "model", "system_fingerprint", "service_tier"):
            if name not in self.head and part.get(name) is not None:
                self.head[name] = part[name]
        self._add_prompt(part)
        for position, item in enumerate(items(part.get("choices"))):
            choice = obj(item)
            self._add_prompt(choice)
            index = integer(choice.get("index"), 32)
            index = position if index is None else index
            known = self.choices.get(index)
            if known is None:
                known = self.choices[index] = Choice(index)
            known.add(choice)
        if isinstance(part.get("usage"), dict):
            self.reported_usage = obj(part["usage"])
            self.usage = _usage(self.reported_usage)

    def _add_prompt(self, part: Object) -> None:
        if self.prompt_ids is None and (ids := _ids(part.get("prompt_token_ids"))) is not None:
            self.prompt_ids = ids

    def finished(self, asked: int, *, told: bool) -> bool:
        """True once all `asked` answers have a finish reason; where the engine told its end ([DONE]), all that came.

        Some engines never send one, but always their end.
        """
        done = sum(choice.finish_reason is not None for choice in self.choices.values())
        return done in (0, len(self.choices)) if told else done >= asked

    def miscounts_response(self) -> bool:
        """True where the engine counted other response tokens than it sent ids: some were lost on the way."""
        sent = [choice.ids for choice in self.choices.values()]
        known = [ids for ids in sent if ids is not None]
        return bool(sent) and len(known) == len(sent) and self.usage.output not in (None, sum(map(len, known)))

    def miscounts_prompt(self) -> bool:
        """The same of the prompt; an image is counted as more tokens than it has ids, by some."""
        return self.prompt_ids is not None and self.usage.input not in (None, len(self.prompt_ids))

    def stored(self, choice: Choice) -> Object:
        """The answer as recorded with one of its choices: no ids, no log-probs."""
        out: Object = {"object": "chat.completion", **self.head, "choices": [choice.stored()]}
        if self.reported_usage is not None:
            out["usage"] = self.reported_usage
        return out


def strip(part: Object, prepared: Prepared) -> bool:
    """Takes what only we asked for out of an answer or chunk, in place; False where there was nothing to take."""
    changed = False
    for item in items(part.get("choices")):
        choice = obj(item)
        if not prepared.wants_logprobs and choice.get("logprobs") is not None:
            choice["logprobs"] = None  # null is what engines write where nobody asked
            changed = True
        changed |= not prepared.wants_ids and _remove(choice, OURS_CHOICE)
    changed |= not prepared.wants_ids and _remove(part, OURS_TOP)
    if prepared.stream and not prepared.wants_usage and "usage" in part and part["usage"] is None:
        del part["usage"]  # the null that include_usage puts on every chunk
        changed = True
    return changed


def is_usage_chunk(part: Object) -> bool:
    """True for the chunk that `include_usage` adds. Usage beside choices is sent by an engine unasked, so it stays."""
    return part.get("choices") == [] and isinstance(part.get("usage"), dict)


def _remove(part: Object, names: tuple[str, ...]) -> bool:
    before = len(part)
    for name in names:
        if name in part:
            del part[name]
    return len(part) < before


def _pieced(known: object, piece: object) -> object:
    """A message field with its next piece: texts are joined, and so are lists of parts."""
    if isinstance(piece, str) and (known is None or isinstance(known, str)):
        return (known or "") + piece
    if isinstance(piece, str) or listed(piece) is not None:
        return [*_parts(known), *_parts(piece)]
    return piece


def _parts(value: object) -> list[object]:
    return [{"type": "text", "text": value}] if isinstance(value, str) and value else items(value)


def _is_another(call: Object, delta: Object) -> bool:
    """Whether a piece at a tool call's place begins a further one; some engines send each piece under an id of its own.

    Either tells: another id with a name, or behind whole arguments further ones, with another id or a name.
    """
    function, known = obj(delta.get("function")), obj(call.get("function"))
    id_, named = text(delta.get("id")), bool(function.get("name"))
    if id_ and call.get("id") in (None, id_):
        return False
    if id_ and named:
        return True
    opens = text_or_json(function.get("arguments")).lstrip().startswith("{")
    return opens and (bool(id_) or named) and _is_whole(text(known.get("arguments")) or "")


def _is_whole(arguments: str) -> bool:
    try:
        return isinstance(loads(arguments.encode(errors="replace")), dict)
    except ValueError:
        return False


def _join_function(holder: Object, key: str, delta: Object) -> None:
    """A name is sent in pieces, or again with every piece of the arguments. An object is what they come to so far."""
    joined = obj(holder.setdefault(key, {"name": "", "arguments": ""}))
    for name, value in delta.items():
        known = text(joined.get(name)) or ""
        if name == "arguments" and isinstance(value, str):
            stands_for_it = known.strip() == "{}" and value.lstrip().startswith("{")
            joined[name] = value if stands_for_it else known + value
        elif name == "arguments":
            joined[name] = known if known and value == {} else text_or_json(value) or known
        elif name == "name":
            piece = text(value) or ""
            joined[name] = known if piece == known else known + piece
        elif value is not None:
            joined[name] = value


def _ids(value: object) -> array[int] | None:
    """Token ids; what is no list of 32-bit integers is as good as not reported."""
    try:
        return None if (found := listed(value)) is None else array("i", cast("list[int]", found))
    except (TypeError, OverflowError):
        return None


def _joined(head: array[N] | None, tail: array[N]) -> array[N]:
    """In place, so that a long stream stays linear."""
    if head is None:
        return tail
    head.extend(tail)
    return head


def _logprobs(content: list[object]) -> array[float]:
    try:
        return array("f", [entry["logprob"] for entry in cast("list[dict[str, float]]", content)])
    except (TypeError, KeyError, OverflowError):  # null, or no number: looked at one by one
        return array("f", [NAN if (value := number(obj(e).get("logprob"))) is None else value for e in content])


def _version(run: object) -> VersionRun | None:
    found = obj(run)
    start, end, version = integer(found.get("start"), 32), integer(found.get("end"), 32), found.get("version")
    try:
        version = integer(int(version) if isinstance(version, str) else version)
    except ValueError:  # an engine that was never given one of our versions names its own
        return None
    return None if start is None or end is None or version is None else VersionRun(version, start, end)


def _usage(usage: Object) -> Usage:
    return Usage(
        input=integer(usage.get("prompt_tokens")),
        cached_input=integer(obj(usage.get("prompt_tokens_details")).get("cached_tokens")),
        output=integer(usage.get("completion_tokens")),
        reasoning=integer(obj(usage.get("completion_tokens_details")).get("reasoning_tokens")),
    )
