"""A toy policy small enough to learn on one core: ~140,000 parameters, one token a character, made on the spot.

Its task is a lookup with a tool, in two turns:

    user "get 7?"  →  assistant "7"   the right key
    tool " 2!"     →  assistant "2"   the right value; after a wrong key the tool says " ?!"

VAL[d] = D[(3·d + 1) mod 10]. Reward 0.2 for the right key, and 1.0 more for the right value after it. `warm_start`
teaches it from demonstrations that are right half of the time, so reinforcement learning starts at about 0.4 of 1.2.
"""

# torch and transformers leave much of their API untyped
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false

from __future__ import annotations

import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from torch import Tensor
from torch.nn import functional as F
from transformers import AutoModelForCausalLM, PreTrainedTokenizerFast, Qwen2Config, Qwen2ForCausalLM
from transformers.utils.logging import disable_progress_bar

DIGITS = "0123456789"
VALUES = {d: DIGITS[(int(d) * 3 + 1) % 10] for d in DIGITS}
KEY_REWARD, VALUE_REWARD = 0.2, 1.0

SPECIAL = ("<pad>", "<bos>", "<eos>", "<unk>")
PAD, BOS, EOS = 0, 1, 2
CHARACTERS = "0123456789+-*=abcdefghijklmnopqrstuvwxyz .,:?!\n"
# Byte-level BPE without merges rather than whole words: AutoTokenizer loads a folder of model type qwen2 as a
# byte-level Qwen2Tokenizer whatever its tokenizer_config.json says, and that must give the same ids. For the same
# reason characters outside the list are dropped, not <unk>; without an <unk> that class would add one of its own.
BYTE_NAMES = {" ": "Ġ", "\n": "Ċ"}
VOCABULARY = 64
TEMPLATE = (
    "{% for m in messages %}{{ m['content'] or '' }}"
    "{% if m['role'] == 'assistant' %}{{ eos_token }}{% endif %}{% endfor %}"
)

# Half right: enough to meet rewards from the first step, little enough that there is much to learn.
DEMONSTRATION_SKILL = 0.5
ROWS = 128
LEARNING_RATE = 3e-3
LEAST_STEPS = 300
# Nats a label, over so many steps. What is left in demonstrations that are known is 0.91: half of them are guesses.
LEARNED, SMOOTHED = 0.94, 20
IGNORED = -100  # the label cross_entropy leaves out


def make_policy(folder: Path, seed: int) -> None:
    """Writes a Hugging Face folder: random weights by `seed`, a character tokenizer, a chat template."""
    disable_progress_bar()
    tokenizer().save_pretrained(folder)
    config = Qwen2Config(
        vocab_size=VOCABULARY,
        hidden_size=64,
        intermediate_size=256,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=4,
        max_position_embeddings=256,
        tie_word_embeddings=False,
        bos_token_id=BOS,
        eos_token_id=EOS,
        pad_token_id=PAD,
    )
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        Qwen2ForCausalLM(config).save_pretrained(folder)


def tokenizer() -> PreTrainedTokenizerFast:
    """One token a character; contents verbatim, an assistant's turn ended by <eos>, no generation prompt."""
    names = [*SPECIAL, *(BYTE_NAMES.get(c, c) for c in CHARACTERS)]
    rust = Tokenizer(models.BPE({name: i for i, name in enumerate(names)}, []))
    rust.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    rust.decoder = decoders.ByteLevel()
    made = PreTrainedTokenizerFast(
        tokenizer_object=rust, pad_token="<pad>", bos_token="<bos>", eos_token="<eos>", unk_token="<unk>"
    )
    made.chat_template = TEMPLATE
    return made


def question(key: str) -> str:
    """The user's turn."""
    return f"get {key}?"


def observation(key: str, answer: str) -> str:
    """What the tool says to the first answer."""
    return f" {VALUES[key]}!" if answer == key else " ?!"


def reward(key: str, first: str, second: str) -> float:
    """0.2 for the right key, 1.0 more for the right value after it."""
    if first != key:
        return 0.0
    return KEY_REWARD + (VALUE_REWARD if second == VALUES[key] else 0.0)


def warm_start(folder: Path, seed: int, steps: int = 900) -> None:
    """Supervised steps on half-right demonstrations, in place; the same on every run of one machine.

    Ends before `steps` once the demonstrations are learned: some random weights need twice the steps of others.
    One thread for as long as it lasts: sums in another order would be other weights.
    """
    disable_progress_bar()
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        model: Any = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)  # transformers types no forward
        coded = tokenizer()
        rng = random.Random(seed)
        optimiser = torch.optim.AdamW(model.parameters(), lr=LEARNING_RATE)
        losses: list[float] = []
        while len(losses) < steps and not _learned(losses):
            ids, labels = _batch([demonstration(rng, coded) for _ in range(ROWS)])
            logits = model(input_ids=ids, attention_mask=torch.ones_like(ids)).logits[:, :-1]
            loss = F.cross_entropy(logits.flatten(0, 1), labels[:, 1:].flatten(), ignore_index=IGNORED)
            optimiser.zero_grad()
            loss.backward()
            optimiser.step()
            losses.append(float(loss.detach()))
        model.save_pretrained(folder)
    finally:
        torch.set_num_threads(threads)


def _learned(losses: Sequence[float]) -> bool:
    return len(losses) >= LEAST_STEPS and sum(losses[-SMOOTHED:]) < SMOOTHED * LEARNED


def demonstration(rng: random.Random, coded: PreTrainedTokenizerFast) -> tuple[list[int], list[int]]:
    """A two-turn conversation's ids, and its labels: the assistant's tokens, ends included."""
    key = rng.choice(DIGITS)
    first = key if rng.random() < DEMONSTRATION_SKILL else rng.choice(DIGITS)
    second = VALUES[key] if first == key and rng.random() < DEMONSTRATION_SKILL else rng.choice(DIGITS)
    turns = [(question(key), False), (first, True), (observation(key, first), False), (second, True)]
    ids: list[int] = []
    labels: list[int] = []
    for text, trained in turns:
        more = [*coded.encode(text), *([EOS] if trained else [])]
        ids += more
        labels += more if trained else [IGNORED] * len(more)
    return ids, labels


def _batch(rows: Sequence[tuple[list[int], list[int]]]) -> tuple[Tensor, Tensor]:
    """(B, T) ids and labels, padded on the right, where causal attention never looks from a real token."""
    width = max(len(ids) for ids, _ in rows)
    ids = torch.tensor([[*ids, *[PAD] * (width - len(ids))] for ids, _ in rows])
    labels = torch.tensor([[*labels, *[IGNORED] * (width - len(labels))] for _, labels in rows])
    return ids, labels
