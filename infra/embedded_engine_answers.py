"""What the engine answers: tokens become text, log-probs, versions; a stream's chunks add up to the whole answer."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from typing import Any

from .embedded_engine_scheduler import Draw, Drawn

REPLACEMENT = "\ufffd"  # what an unfinished UTF-8 sequence decodes to
Decode = Callable[[Sequence[int], bool], str]  # (ids, skip special tokens) -> text
Json = dict[str, Any]


class Detokenizer:
    """Turns ids into text one at a time, holding back bytes that are no character yet."""

    def __init__(self, decode: Decode) -> None:
        self._decode = decode
        self._ids: list[int] = []
        self._from = 0  # ids before this have their text out and are no context any more
        self._read = 0  # ids before this have their text out

    def push(self, token: int, *, last: bool) -> str:
        """The text that a token adds."""
        self._ids.append(token)
        known = self._decode(self._ids[self._from : self._read], True)
        text = self._decode(self._ids[self._from :], True)
        if len(text) <= len(known) or (text.endswith(REPLACEMENT) and not last):
            return ""
        self._from, self._read = self._read, len(self._ids)
        return text[len(known) :]


class StopStrings:
    """Lets text through up to the first stop string, holding back what could still become one."""

    def __init__(self, stops: tuple[str, ...]) -> None:
        self._stops = stops
        self._held = ""
        self._longest = max(map(len, stops), default=1)

    def push(self, text: str, *, last: bool) -> tuple[str, str | None]:
        """(text to let through, the stop string met)."""
        held = self._held + text
        found = [(at, stop) for stop in self._stops if (at := held.find(stop)) >= 0]
        if found:
            at, stop = min(found)
            return held[:at], stop
        keep = 0 if last else min(len(held), self._longest - 1)
        self._held = held[len(held) - keep :] if keep else ""
        return held[: len(held) - keep], None


@dataclass(frozen=True, slots=True)
class Delta:
    """What one step adds to a choice. The first failure or end has `finish`."""

    index: int
    text: str = ""
    draws: tuple[Draw, ...] = ()
    finish: str | None = None
    stop_reason: str | int | None = None


@dataclass(slots=True)
class Choice:
    """A choice under way: events in, deltas out."""

    index: int
    detokenizer: Detokenizer
    stops: StopStrings
    text: list[str] = field(default_factory=list[str])
    draws: list[Draw] = field(default_factory=list[Draw])
    versions: list[list[Any]] = field(default_factory=list[list[Any]])  # [version, start, end)
    finish: str | None = None
    stop_reason: str | int | None = None

    def push(self, event: Drawn) -> Delta:
        """Takes a step's event; after `finish` callers push no more."""
        finish: str | None = event.finish
        if event.draw is None:
            text, met = self.stops.push("", last=True)
        else:
            self._stamp(event.version)
            self.draws.append(event.draw)
            last = finish is not None
            text, met = self.stops.push(self.detokenizer.push(event.draw.token, last=last), last=last)
        if met is not None:
            finish, self.stop_reason = "stop", met
        self.text.append(text)
        self.finish = finish
        return Delta(self.index, text, () if event.draw is None else (event.draw,), finish, self.stop_reason)

    def weight_versions(self) -> list[Json]:
        """Which weights drew which tokens of the response, run by run."""
        return [{"version": version, "start": start, "end": end} for version, start, end in self.versions]

    def _stamp(self, version: str) -> None:
        at = len(self.draws)
        if self.versions and self.versions[-1][0] == version:
            self.versions[-1][2] = at + 1
        else:
            self.versions.append([version, at, at + 1])


class TokenNames:
    """Tokens as log-prob entries show them."""

    def __init__(self, decode: Decode) -> None:
        self._decode = decode
        self._names: dict[int, str] = {}

    def __getitem__(self, token: int) -> str:
        name = self._names.get(token)
        if name is None:
            name = self._names[token] = self._decode([token], False)
        return name

    def entry(self, token: int, logprob: float) -> Json:
        """A token with its log-probability, in OpenAI's form."""
        name = self[token]
        return {"token": name, "logprob": logprob, "bytes": list(name.encode())}

    def content(self, draws: Sequence[Draw]) -> Json:
        """choices[].logprobs of a chat completion."""
        return {
            "content": [
                {**self.entry(d.token, d.logprob), "top_logprobs": [self.entry(t, lp) for t, lp in d.top]}
                for d in draws
            ]
        }

    def columns(self, draws: Sequence[Draw]) -> Json:
        """choices[].logprobs of a plain completion."""
        names = [self[d.token] for d in draws]
        return {
            "tokens": names,
            "token_logprobs": [d.logprob for d in draws],
            "top_logprobs": [{self[t]: lp for t, lp in d.top} for d in draws],
            "text_offset": list(accumulate(map(len, names[:-1]), initial=0)) if names else [],
        }


def usage(prompt: int, choices: Sequence[Choice]) -> Json:
    """Token counts of an answer."""
    made = sum(len(c.draws) for c in choices)
    return {"prompt_tokens": prompt, "completion_tokens": made, "total_tokens": prompt + made}


@dataclass(frozen=True, slots=True)
class ChatForm:
    """How one chat request wants its answer."""

    id: str
    created: int
    model: str
    names: TokenNames
    logprobs: bool
    token_ids: bool

    def whole(self, prompt: Sequence[int], choices: Sequence[Choice]) -> Json:
        """The answer in one piece."""
        out = self._head("chat.completion") | {
            "choices": [self._whole_choice(c) for c in choices],
            "usage": usage(len(prompt), choices),
        }
        if self.token_ids:
            out["prompt_token_ids"] = list(prompt)
        return out

    def first(self, prompt: Sequence[int], choices: int) -> Json:
        """The chunk that opens a stream: the roles and, if asked for, the prompt's ids."""
        opened = [
            {"index": i, "delta": {"role": "assistant", "content": ""}, "logprobs": None, "finish_reason": None}
            for i in range(choices)
        ]
        out = self._head("chat.completion.chunk") | {"choices": opened}
        if self.token_ids:
            out["prompt_token_ids"] = list(prompt)
        return out

    def chunk(self, delta: Delta, choice: Choice) -> Json:
        """A step's chunk; the last of a choice carries its weight versions."""
        out: Json = {"index": delta.index, "delta": {"content": delta.text}} | self._extras(delta.draws)
        out["finish_reason"] = delta.finish
        if delta.finish is not None:
            out |= {"stop_reason": delta.stop_reason, "weight_versions": choice.weight_versions()}
        return self._head("chat.completion.chunk") | {"choices": [out]}

    def last(self, prompt: Sequence[int], choices: Sequence[Choice]) -> Json:
        """The chunk with the usage."""
        return self._head("chat.completion.chunk") | {"choices": [], "usage": usage(len(prompt), choices)}

    def _head(self, kind: str) -> Json:
        return {"id": self.id, "object": kind, "created": self.created, "model": self.model}

    def _extras(self, draws: Sequence[Draw]) -> Json:
        out: Json = {"logprobs": self.names.content(draws) if self.logprobs else None}
        if self.token_ids:
            out["token_ids"] = [d.token for d in draws]
        return out

    def _whole_choice(self, choice: Choice) -> Json:
        message: Json = {"role": "assistant", "content": "".join(choice.text), "tool_calls": []}
        return {
            "index": choice.index,
            "message": message,
            **self._extras(choice.draws),
            "finish_reason": choice.finish,
            "stop_reason": choice.stop_reason,
            "weight_versions": choice.weight_versions(),
        }
