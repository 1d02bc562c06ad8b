"""The engine's OpenAI routes, with vLLM's fields for token ids, log-probs and scoring.

Requests that only score (`prompt_logprobs`, max_tokens 0) are answered while the engine is paused, unlike vLLM's, so
new weights can be probed before anyone is served by them.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from pathlib import Path
from random import Random
from uuid import uuid4

from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import Route

from .embedded_engine_answers import ChatForm, Choice, Delta, Detokenizer, StopStrings, TokenNames, usage
from .embedded_engine_http import CLIENT_CLOSED, Json, answer, event, refusing, unless_gone
from .embedded_engine_requests import ChatRequest, CompletionRequest, RefusedRequest, generations, parse, room
from .embedded_engine_scheduler import Drawn, Generation, Scheduler, Weights
from .embedded_engine_tokenizer import Tokenizer

DONE = b"data: [DONE]\n\n"


@dataclass(frozen=True, slots=True)
class Options:
    """What the command line said."""

    model: Path
    vocabulary: int
    served_model_name: str = "policy"
    max_model_len: int = 256
    max_num_seqs: int = 256
    logprobs_mode: str = "processed_logprobs"
    seed: int = 0


class _Reply:
    """A request's choices and the generations behind them; lives on the event loop."""

    def __init__(self, choices: list[Choice]) -> None:
        self.choices = choices
        self.rows: list[Generation] = []
        self._deltas: asyncio.Queue[Delta] = asyncio.Queue()

    def sink(self, index: int) -> Callable[[Drawn], None]:
        """Takes the events of one choice."""
        choice = self.choices[index]

        def take(drawn: Drawn) -> None:
            if choice.finish is not None:  # a step that was under way when a stop string was met
                return
            delta = choice.push(drawn)
            if delta.finish is not None:
                drawn.generation.cancelled = True
            self._deltas.put_nowait(delta)

        return take

    async def deltas(self) -> AsyncIterator[Delta]:
        """Every step's, until all choices have ended."""
        open_choices = len(self.choices)
        while open_choices:
            delta = await self._deltas.get()
            open_choices -= delta.finish is not None
            yield delta

    async def whole(self) -> _Reply:
        """Itself once all choices have ended. Raises RefusedRequest (500) where the engine failed."""
        async for delta in self.deltas():
            if delta.finish == "error":
                raise _engine_failed()
        return self

    def drop(self) -> None:
        """Stops generating what nobody waits for any more."""
        for row in self.rows:
            row.cancelled = True


class Completions:
    """/v1/chat/completions, /v1/completions, /v1/models, /health."""

    def __init__(self, scheduler: Scheduler, weights: Weights, tokenizer: Tokenizer, options: Options) -> None:
        self._scheduler = scheduler
        self._weights = weights
        self._tokenizer = tokenizer
        self._options = options
        self._names = TokenNames(tokenizer.decode)
        self._seeds = Random(options.seed)

    def routes(self) -> list[Route]:
        """All of them."""
        return [
            Route("/v1/chat/completions", refusing(self.chat), methods=["POST"]),
            Route("/v1/completions", refusing(self.completions), methods=["POST"]),
            Route("/v1/models", self.models),
            Route("/health", self.health),
        ]

    async def chat(self, request: Request) -> Response:
        """POST /v1/chat/completions."""
        asked = parse(ChatRequest, await request.body())
        self._check_model(asked.model)
        prompt = self._tokenizer.chat(asked)
        form = ChatForm(
            id=f"chatcmpl-{request.headers.get('x-request-id') or uuid4().hex}",
            created=int(time.time()),
            model=self._options.served_model_name,
            names=self._names,
            logprobs=asked.logprobs,
            token_ids=asked.return_token_ids,
        )
        reply = self._submit(asked, prompt, room(len(prompt), asked.limit, self._options.max_model_len))
        if asked.stream:
            stream = _stream(form, prompt, reply, include_usage=asked.stream_options.include_usage)
            return StreamingResponse(stream, media_type="text/event-stream")
        if await self._ended(request, reply) is None:
            return Response(status_code=CLIENT_CLOSED)
        return answer(form.whole(prompt, reply.choices))

    async def completions(self, request: Request) -> Response:
        """POST /v1/completions: generation from text or ids, and scoring of ids."""
        asked = parse(CompletionRequest, await request.body())
        self._check_model(asked.model)
        prompt = self._tokenizer.prompt(asked.prompt)
        limit = room(len(prompt), asked.limit, self._options.max_model_len)
        extra: Json = {"prompt_token_ids": prompt} if asked.return_token_ids else {}
        if asked.prompt_logprobs is not None:
            extra["prompt_logprobs"] = await self._scored(prompt, asked.prompt_logprobs)
        reply = self._submit(asked, prompt, limit) if limit else _Reply([])
        if await self._ended(request, reply) is None:
            return Response(status_code=CLIENT_CLOSED)
        choices = reply.choices or [self._choice(0, (), finish="length")]
        echoed = self._tokenizer.decode(prompt, True) if asked.echo else ""
        return answer(
            {
                "id": f"cmpl-{request.headers.get('x-request-id') or uuid4().hex}",
                "object": "text_completion",
                "created": int(time.time()),
                "model": self._options.served_model_name,
                "choices": [self._completion(asked, choice, echoed) | extra for choice in choices],
                "usage": usage(len(prompt), choices),
            }
        )

    async def models(self, request: Request) -> Response:
        """GET /v1/models; `logprobs_mode` is ours, so that a recorder can say what a log-prob is of."""
        del request
        card = {
            "id": self._options.served_model_name,
            "object": "model",
            "owned_by": "spanloop",
            "root": str(self._options.model),
            "max_model_len": self._options.max_model_len,
            "logprobs_mode": self._options.logprobs_mode,
        }
        return answer({"object": "list", "data": [card]})

    async def health(self, request: Request) -> Response:
        """GET /health."""
        del request
        return Response()

    def _check_model(self, model: str | None) -> None:
        if model not in (None, self._options.served_model_name):
            raise RefusedRequest(
                f"The model `{model}` does not exist; this engine serves `{self._options.served_model_name}`.",
                status=404,
                kind="NotFoundError",
                param="model",
            )

    def _choice(self, index: int, stops: tuple[str, ...], finish: str | None = None) -> Choice:
        return Choice(index, Detokenizer(self._tokenizer.decode), StopStrings(stops), finish=finish)

    def _submit(self, asked: ChatRequest | CompletionRequest, prompt: list[int], limit: int) -> _Reply:
        reply = _Reply([self._choice(i, asked.stops) for i in range(asked.n)])
        reply.rows = generations(
            asked, prompt, max_tokens=limit, eos=self._tokenizer.eos, seeds=self._seeds, sink=reply.sink
        )
        self._scheduler.submit(reply.rows)
        return reply

    async def _ended(self, request: Request, reply: _Reply) -> _Reply | None:
        try:
            return await unless_gone(request, reply.whole())
        finally:
            reply.drop()

    async def _scored(self, prompt: list[int], top: int) -> list[Json | None]:
        """vLLM's prompt_logprobs: raw log-probs of each prompt token, keyed by id."""
        scored = await asyncio.wrap_future(self._scheduler.call(lambda: self._weights.score(prompt, top)))
        out: list[Json | None] = [None]
        for token, (logprob, rank, tops) in zip(prompt[1:], scored, strict=True):
            entries: Json = {
                str(t): {"logprob": lp, "rank": i, "decoded_token": self._names[t]} for i, (t, lp) in enumerate(tops, 1)
            }
            entries[str(token)] = {"logprob": logprob, "rank": rank, "decoded_token": self._names[token]}
            out.append(entries)
        return out

    def _completion(self, asked: CompletionRequest, choice: Choice, echoed: str) -> Json:
        out: Json = {
            "index": choice.index,
            "text": echoed + "".join(choice.text),
            "logprobs": None if asked.logprobs is None else self._names.columns(choice.draws),
            "finish_reason": choice.finish,
            "stop_reason": choice.stop_reason,
            "weight_versions": choice.weight_versions(),
        }
        if asked.return_token_ids:
            out["token_ids"] = [draw.token for draw in choice.draws]
        return out


def _engine_failed() -> RefusedRequest:
    return RefusedRequest("the engine failed; see its log", status=500, kind="InternalServerError")


async def _stream(form: ChatForm, prompt: list[int], reply: _Reply, *, include_usage: bool) -> AsyncIterator[bytes]:
    """Server-sent events; when the client goes this is cancelled, and with it the generations."""
    try:
        yield event(form.first(prompt, len(reply.choices)))
        async for delta in reply.deltas():
            if delta.finish == "error":
                yield event(_engine_failed().body)
                break
            yield event(form.chunk(delta, reply.choices[delta.index]))
        if include_usage:
            yield event(form.last(prompt, reply.choices))
        yield DONE
    finally:
        reply.drop()
