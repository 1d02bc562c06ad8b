"""The toy policy: its tokenizer, its task, and that it is the same for the same seed."""

# safetensors and transformers leave much of their API untyped
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import load_file
from transformers import AutoTokenizer

from spanloop.trainer import tiny

KEY_AT = len("get ")


def test_a_folder_is_read_with_the_tokenizer_it_was_made_with(tmp_path: Path) -> None:
    tiny.make_policy(tmp_path, 0)
    text = "get 7?7<eos> 2!\nabc+1*2=xyz"
    loaded: Any = AutoTokenizer.from_pretrained(tmp_path)
    made: Any = tiny.tokenizer()
    assert loaded.encode(text) == made.encode(text)
    assert len(loaded.encode("get 7?")) == 6
    assert loaded.decode(loaded.encode(text)) == text


def test_a_second_turn_continues_the_first_token_for_token() -> None:
    made: Any = tiny.tokenizer()
    first = [{"role": "user", "content": "get 7?"}]
    second = [*first, {"role": "assistant", "content": "7"}, {"role": "tool", "content": " 2!"}]

    def ids(messages: list[dict[str, str]]) -> list[int]:
        text = made.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
        return made.encode(text)

    prompt = ids(first)
    assert ids(second) == [*prompt, *made.encode("7"), tiny.EOS, *made.encode(" 2!")]


@pytest.mark.parametrize(
    ("first", "second", "expected"),
    [("7", "2", 1.2), ("7", "3", 0.2), ("8", "2", 0.0), ("", "", 0.0), ("77", "2", 0.0)],
)
def test_rewards_are_for_the_key_and_then_the_value(first: str, second: str, expected: float) -> None:
    assert tiny.reward("7", first, second) == pytest.approx(expected)


def test_the_tool_answers_a_right_key_only() -> None:
    assert tiny.observation("7", "7") == " 2!"
    assert tiny.observation("7", "8") == " ?!"


def test_demonstrations_are_half_right_and_train_answers_with_their_ends() -> None:
    rng, made = random.Random(0), tiny.tokenizer()
    rights = 0
    for _ in range(2000):
        ids, labels = tiny.demonstration(rng, made)
        trained = [label for label in labels if label != tiny.IGNORED]
        assert trained[1::2] == [tiny.EOS, tiny.EOS]
        assert all(label in (tiny.IGNORED, token) for token, label in zip(ids, labels, strict=True))
        rights += trained[0] == ids[KEY_AT]
    assert 0.5 < rights / 2000 < 0.6  # one half, and one in ten of the other by chance


def warmed(folder: Path, seed: int, steps: int) -> dict[str, object]:
    tiny.make_policy(folder, seed)
    tiny.warm_start(folder, seed, steps)
    return {k: v.numpy().tobytes() for k, v in load_file(folder / "model.safetensors").items()}


def test_a_warm_start_ends_once_the_demonstrations_are_learned(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tiny, "LEAST_STEPS", 3)
    monkeypatch.setattr(tiny, "SMOOTHED", 2)
    assert warmed(tmp_path / "a", 1, steps=4) != warmed(tmp_path / "b", 1, steps=3)  # nothing is learned yet
    monkeypatch.setattr(tiny, "LEARNED", 100.0)
    assert warmed(tmp_path / "c", 1, steps=4) == warmed(tmp_path / "d", 1, steps=3)


def test_the_same_seed_makes_and_warms_the_same_policy(tmp_path: Path) -> None:
    first = warmed(tmp_path / "a", 1, steps=3)
    assert warmed(tmp_path / "b", 1, steps=3) == first
    assert warmed(tmp_path / "c", 2, steps=3) != first
    assert sum(len(v) for v in first.values() if isinstance(v, bytes)) // 4 == 139_968
