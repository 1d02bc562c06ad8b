"""The engine's tokenizer: chat templates and text to ids, ids to text."""

# transformers leaves much of its API untyped
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, cast

import jinja2
from transformers import AutoTokenizer

from .embedded_engine_requests import ChatRequest, RefusedRequest, chat_messages


class Tokenizer:
    """A Hugging Face folder's tokenizer. Used by one thread: the Rust side is not made for more."""

    def __init__(self, folder: Path, vocabulary: int) -> None:
        """`vocabulary`: how many ids the network knows."""
        self._hf: Any = AutoTokenizer.from_pretrained(folder, local_files_only=True)  # its own types are unions of all
        self.eos = _eos_ids(folder, self._hf.eos_token_id)
        self._vocabulary = vocabulary

    def chat(self, request: ChatRequest) -> list[int]:
        """A conversation's ids by the chat template. Raises RefusedRequest where the template does."""
        try:
            text = self._hf.apply_chat_template(
                chat_messages(request.messages),
                tools=request.tools or None,
                add_generation_prompt=request.add_generation_prompt,
                tokenize=False,
                **request.chat_template_kwargs,
            )
        except (jinja2.TemplateError, TypeError, ValueError) as error:
            raise RefusedRequest(f"the chat template refused the messages: {error}") from error
        return self._encode(text, special=False)

    def prompt(self, prompt: str | list[int]) -> list[int]:
        """A plain prompt's ids. Raises RefusedRequest for ids outside the vocabulary."""
        ids = self._encode(prompt, special=True) if isinstance(prompt, str) else prompt
        if outside := [i for i in ids if not 0 <= i < self._vocabulary]:
            raise RefusedRequest(f"token ids {outside[:5]} are outside the vocabulary of {self._vocabulary}")
        return ids

    def decode(self, ids: Sequence[int], skip_special: bool) -> str:
        """Ids as text."""
        return cast("str", self._hf.decode(ids, skip_special_tokens=skip_special, clean_up_tokenization_spaces=False))

    def _encode(self, text: str, *, special: bool) -> list[int]:
        ids = cast("list[int]", self._hf.encode(text, add_special_tokens=special))
        if not ids:
            raise RefusedRequest("the prompt is empty; expected at least one token")
        return ids


def _eos_ids(folder: Path, eos: int | None) -> frozenset[int]:
    """Every token that ends an answer: the tokenizer's, and those of generation_config.json."""
    file = folder / "generation_config.json"
    more = json.loads(file.read_text("utf-8")).get("eos_token_id") if file.exists() else None
    found = [eos, *(cast("list[int]", more) if isinstance(more, list) else [cast("int | None", more)])]
    return frozenset(i for i in found if i is not None)
