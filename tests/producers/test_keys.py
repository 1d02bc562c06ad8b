"""A key names its attempt and cannot be made without the secret."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spanloop.producers import keys
from spanloop.schemas.errors import InvalidKey

NAME = st.text(alphabet=st.characters(blacklist_categories=["Cs", "Cc"]), min_size=1)


@given(NAME, NAME, NAME)
def test_a_key_gives_back_the_attempt_it_was_minted_for(secret: str, rollout: str, attempt: str) -> None:
    assert keys.verify(secret, keys.mint(secret, rollout, attempt)) == (rollout, attempt)


@given(NAME, NAME)
def test_another_secret_refuses_a_key(secret: str, other: str) -> None:
    key = keys.mint(secret, "ro-1", "at-1")
    if secret != other:
        with pytest.raises(InvalidKey, match="another secret"):
            keys.verify(other, key)


@given(st.integers(0, 200), st.sampled_from("aZ0_-."))
def test_a_changed_key_is_refused_or_the_same_key(position: int, character: str) -> None:
    key = keys.mint("s", "ro-1", "at-1")
    position %= len(key)
    changed = key[:position] + character + key[position + 1 :]
    if changed != key:
        try:
            assert keys.verify("s", changed) == ("ro-1", "at-1")
        except InvalidKey:
            return


@pytest.mark.parametrize(
    "text", ["", "EMPTY", "sk-proj-123", "sk-spanloop-", "sk-spanloop-a", "sk-spanloop-!.?", "ä.b"]
)
def test_what_is_no_key_is_refused(text: str) -> None:
    with pytest.raises(InvalidKey):
        keys.verify("s", text)


def test_no_secret_mints_and_verifies_nothing() -> None:
    with pytest.raises(InvalidKey, match="SPANLOOP_SECRET"):
        keys.mint("", "ro-1", "at-1")
    with pytest.raises(InvalidKey):
        keys.verify("", keys.mint("s", "ro-1", "at-1"))


def test_ids_cannot_be_moved_across_the_border_between_them() -> None:
    assert keys.mint("s", "ab", "c") != keys.mint("s", "a", "bc")


@pytest.mark.parametrize(
    ("text", "ours"), [("sk-spanloop-x", True), ("sk-proj-x", False), ("EMPTY", False), ("", False)]
)
def test_our_keys_are_told_from_others(text: str, ours: bool) -> None:
    assert keys.is_key(text) is ours
