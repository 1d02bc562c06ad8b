"""A small transformers engine with vLLM's response fields and dev-mode admin routes: vLLM's embedded twin.

    python -m spanloop.infra.embedded_engine --model DIR --served-model-name policy --port 8101

fp32, causal language models with full attention, continuous batching with a KV cache. Prompts are right-padded, so a
row's cache has holes between its prompt and what it generated; holes are masked and positions are explicit:

    columns  p0 p1 p2 .  .  d0 d1      a row admitted with a longer one
             q0 q1 q2 q3 q4 d0 d1

This is the only file outside `trainer/` that imports torch. Start reading at `embedded_engine_scheduler.py`.
"""

# torch and transformers leave much of their API untyped
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false

from __future__ import annotations

import argparse
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor
from torch.nn import functional as F
from transformers import AutoModelForCausalLM, DynamicCache

from .embedded_engine_scheduler import Draw, Generation

Keys = list[tuple[Tensor, Tensor]]  # per layer: keys and values, each (B, H, S, D)


@dataclass(slots=True)
class _Cache:
    """The running rows: mask (B, S) is 1 where a column belongs to the row."""

    rows: list[Generation]
    mask: Tensor
    lengths: Tensor  # (B,) tokens so far, and so the next position
    last: Tensor  # (B,) token drawn last
    layers: Keys


class TorchDecoder:
    """The network; holds one cache for all running rows. Used by one thread."""

    def __init__(self, folder: Path, *, device: str, raw_logprobs: bool = False, frozen: bool = False) -> None:
        """`frozen` acknowledges new weights and keeps the old: the control of an experiment."""
        model: Any = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, local_files_only=True)
        kinds = set(getattr(model.config, "layer_types", None) or ["full_attention"])
        if kinds != {"full_attention"}:
            raise ValueError(f"{folder} has layers {sorted(kinds)}; the embedded engine serves full attention only")
        self._model = model.to(device).eval()
        self._device = torch.device(device)
        self._raw = raw_logprobs
        self._frozen = frozen
        self._cache: _Cache | None = None

    @property
    def vocabulary(self) -> int:
        """How many token ids the network knows; often more than its tokenizer."""
        return int(self._model.config.vocab_size)

    @property
    def max_positions(self) -> int:
        """How many tokens the network was made for."""
        return int(self._model.config.max_position_embeddings)

    @torch.inference_mode()
    def prefill(self, rows: Sequence[Generation]) -> list[Draw]:
        """Runs right-padded prompts and adds their rows to the cache."""
        tokens, mask = self._pad([row.prompt for row in rows])
        lengths = mask.sum(1)
        ends, where = torch.unique(lengths - 1, return_inverse=True)
        out = self._model(
            input_ids=tokens, attention_mask=mask, past_key_values=DynamicCache(), use_cache=True, logits_to_keep=ends
        )
        draws, last = self._draw(out.logits[torch.arange(len(rows), device=self._device), where], rows)
        layers = [(layer.keys, layer.values) for layer in out.past_key_values.layers]
        fresh = _Cache(list(rows), mask, lengths, last, layers)
        self._cache = fresh if self._cache is None else _merge(self._cache, fresh)
        return draws

    @torch.inference_mode()
    def decode(self) -> list[Draw]:
        """One token for every row of the cache."""
        cache = self._cache
        if cache is None:
            return []
        cache.mask = F.pad(cache.mask, (0, 1), value=1)
        past: Any = DynamicCache(cache.layers)
        out = self._model(
            input_ids=cache.last[:, None],
            attention_mask=cache.mask,
            position_ids=cache.lengths[:, None],
            past_key_values=past,
            use_cache=True,
        )
        cache.layers = [(layer.keys, layer.values) for layer in past.layers]
        cache.lengths = cache.lengths + 1
        draws, cache.last = self._draw(out.logits[:, -1], cache.rows)
        return draws

    @torch.inference_mode()
    def keep(self, kept: Sequence[bool]) -> None:
        """Drops rows, and the columns that none of those left uses."""
        cache = self._cache
        if cache is None or not any(kept):
            self._cache = None
            return
        index = torch.tensor([i for i, keep in enumerate(kept) if keep], device=self._device)
        mask = cache.mask[index]
        used = mask.any(0).nonzero()[:, 0]
        self._cache = _Cache(
            [row for row, keep in zip(cache.rows, kept, strict=True) if keep],
            mask[:, used],
            cache.lengths[index],
            cache.last[index],
            [(k[index][:, :, used], v[index][:, :, used]) for k, v in cache.layers],
        )

    @torch.inference_mode()
    def score(self, ids: Sequence[int], top: int) -> list[tuple[float, int, list[tuple[int, float]]]]:
        """Log-probability at T=1 and rank of ids[1:] given what is before each, with the `top` likeliest."""
        tokens, mask = self._pad([ids])
        logits = self._model(input_ids=tokens, attention_mask=mask, use_cache=False).logits[0, :-1].float()
        logps = torch.log_softmax(logits, -1)
        chosen = logps.gather(1, tokens[0, 1:, None])
        ranks = (logps > chosen).sum(1) + 1
        tops = _top(logps, top)
        return list(zip(chosen[:, 0].tolist(), ranks.tolist(), tops, strict=True))

    def load(self, folder: Path) -> None:
        """Takes over the weights of a folder's *.safetensors; some tensors may be absent and then stay.

        Names and shapes are checked before the first is written. Raises ValueError, and then nothing has changed.
        """
        files = _weight_files(folder)
        own = cast("dict[str, Tensor]", self._model.state_dict())
        try:
            _check(files, own)
            if self._frozen:
                return
            with torch.inference_mode():
                for name, tensor in _tensors(files, self._device):
                    own[name].copy_(tensor)
        except SafetensorError as error:
            raise ValueError(f"{folder}: {error}; expected whole safetensors files") from error

    def _pad(self, sequences: Sequence[Sequence[int]]) -> tuple[Tensor, Tensor]:
        width = max(map(len, sequences))
        tokens = torch.tensor([[*ids, *[0] * (width - len(ids))] for ids in sequences], device=self._device)
        lengths = torch.tensor([len(ids) for ids in sequences], device=self._device)
        return tokens, (torch.arange(width, device=self._device) < lengths[:, None]).long()

    def _draw(self, logits: Tensor, rows: Sequence[Generation]) -> tuple[list[Draw], Tensor]:
        """Draws by inverse distribution function, so that a row's tokens depend on its own random numbers alone."""
        logits = logits.float()
        # Greedy rows report the unscaled distribution, as vLLM does.
        temperature = torch.tensor([row.temperature or 1.0 for row in rows], device=self._device)
        logps = torch.log_softmax(_truncate(logits / temperature[:, None], rows), -1)
        cdf = logps.double().exp().cumsum(-1)
        uniform = torch.tensor([row.rng.random() for row in rows], device=self._device, dtype=torch.float64)
        at = torch.searchsorted(cdf, uniform[:, None] * cdf[:, -1:], right=True)[:, 0].clamp(max=cdf.shape[1] - 1)
        if any(row.temperature == 0 for row in rows):
            greedy = torch.tensor([row.temperature == 0 for row in rows], device=self._device)
            at = torch.where(greedy, logits.argmax(-1), at)
        if self._raw:
            logps = torch.log_softmax(logits, -1)
        chosen = logps.gather(1, at[:, None])[:, 0]
        if not torch.isfinite(chosen).all():
            raise ValueError("the weights give no finite log-probability; load others")
        tops = _top(logps, max(row.top_logprobs for row in rows))
        drawn = zip(at.tolist(), chosen.tolist(), tops, rows, strict=True)
        return [Draw(token, logprob, top[: row.top_logprobs]) for token, logprob, top, row in drawn], at


def _top(logps: Tensor, count: int) -> list[list[tuple[int, float]]]:
    """The likeliest tokens of each row with their log-probabilities; impossible ones are left out."""
    if not count:
        return [[] for _ in range(logps.shape[0])]
    best = logps.topk(min(count, logps.shape[1]), -1)
    rows = zip(best.indices.tolist(), best.values.tolist(), strict=True)
    return [[(i, lp) for i, lp in zip(*row, strict=True) if lp > float("-inf")] for row in rows]


def _truncate(logits: Tensor, rows: Sequence[Generation]) -> Tensor:
    """Top-k, then top-p (the token that crosses p is kept), as vLLM applies them."""
    if all(row.top_k == 0 and row.top_p == 1 for row in rows):
        return logits
    ordered, order = logits.sort(-1, descending=True)
    vocabulary = logits.shape[1]
    k = torch.tensor([row.top_k or vocabulary for row in rows], device=logits.device)
    p = torch.tensor([row.top_p for row in rows], device=logits.device)
    ordered = ordered.masked_fill(torch.arange(vocabulary, device=logits.device) >= k[:, None], float("-inf"))
    probs = ordered.softmax(-1)
    before = probs.cumsum(-1) - probs
    ordered = ordered.masked_fill((before >= p[:, None]) & (p < 1)[:, None], float("-inf"))
    return torch.empty_like(logits).scatter_(1, order, ordered)


def _merge(a: _Cache, b: _Cache) -> _Cache:
    """Two caches under each other; the narrower gets holes on the right."""
    wide = max(a.mask.shape[1], b.mask.shape[1])

    def columns(x: Tensor, dim: int) -> Tensor:
        return F.pad(x, (0, 0) * (x.dim() - 1 - dim) + (0, wide - x.shape[dim]))

    def both(x: Tensor, y: Tensor) -> Tensor:
        return torch.cat([columns(x, 2), columns(y, 2)])

    return _Cache(
        a.rows + b.rows,
        torch.cat([columns(a.mask, 1), columns(b.mask, 1)]),
        torch.cat([a.lengths, b.lengths]),
        torch.cat([a.last, b.last]),
        [(both(k, x), both(v, y)) for (k, v), (x, y) in zip(a.layers, b.layers, strict=True)],
    )


def _weight_files(folder: Path) -> list[Path]:
    if not folder.is_absolute():
        raise ValueError(f"weights_path {str(folder)!r} is relative; expected an absolute folder")
    files = sorted(folder.glob("*.safetensors"))
    if not files:
        raise ValueError(f"{folder} holds no *.safetensors; expected weights under their HF names")
    return files


def _check(files: Iterable[Path], own: dict[str, Tensor]) -> None:
    for file in files:
        with safe_open(file, "pt") as held:
            for name in held.keys():  # noqa: SIM118 - safe_open is no mapping
                shape = tuple(held.get_slice(name).get_shape())
                if name not in own:
                    raise ValueError(f"{file.name}: the served model has no tensor {name!r}")
                if shape != tuple(own[name].shape):
                    raise ValueError(f"{file.name}: {name} is {shape}; the served model's is {tuple(own[name].shape)}")


def _tensors(files: Iterable[Path], device: torch.device) -> Iterator[tuple[str, Tensor]]:
    for file in files:
        with safe_open(file, "pt", device=str(device)) as held:
            for name in held.keys():  # noqa: SIM118 - safe_open is no mapping
                yield name, held.get_tensor(name)


def arguments() -> argparse.ArgumentParser:
    """The command line; its flags are vLLM's where vLLM has them."""
    parser = argparse.ArgumentParser(prog="python -m spanloop.infra.embedded_engine")
    parser.add_argument("--model", type=Path, required=True, help="Hugging Face folder: config, weights, tokenizer")
    parser.add_argument("--served-model-name", default="policy")
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=8101, help="0 = any free one; its URL goes to standard output")
    parser.add_argument("--max-model-len", type=int, default=None, help="default: what the model was made for")
    parser.add_argument("--max-num-seqs", type=int, default=256)
    parser.add_argument("--logprobs-mode", choices=["processed_logprobs", "raw_logprobs"], default="processed_logprobs")
    parser.add_argument("--seed", type=int, default=0, help="for requests that bring none")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--frozen", action="store_true", help="acknowledge new weights, keep the old: a control")
    parser.add_argument("--with-stdin", action="store_true", help="end when standard input closes")
    return parser


def main() -> None:
    """Serves until SIGTERM."""
    from .embedded_engine_routes import Options
    from .embedded_engine_server import serve

    given = arguments().parse_args()
    decoder = TorchDecoder(
        given.model, device=given.device, raw_logprobs=given.logprobs_mode == "raw_logprobs", frozen=given.frozen
    )
    options = Options(
        model=given.model,
        served_model_name=given.served_model_name,
        max_model_len=given.max_model_len or decoder.max_positions,
        vocabulary=decoder.vocabulary,
        max_num_seqs=given.max_num_seqs,
        logprobs_mode=given.logprobs_mode,
        seed=given.seed,
    )
    serve(decoder, options, host=given.host, port=given.port, with_stdin=given.with_stdin)


if __name__ == "__main__":
    main()
