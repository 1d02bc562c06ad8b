"""Only what a restart need not read again is committed."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from spanloop.streams.offsets import Held


def test_a_partition_with_nothing_open_is_committable_to_its_end() -> None:
    held = Held(7)
    assert held.committable() == 7
    held.read(7)
    held.read(9)  # 8 was a transaction marker
    assert (held.committable(), held.lag) == (10, 0)


def test_the_oldest_open_record_holds_everything_after_it() -> None:
    held = Held(0)
    for offset in range(6):
        held.read(offset)
    held.hold("a", 2)
    held.hold("b", 4)
    held.hold("a", 5)
    assert (held.committable(), held.lag, len(held)) == (2, 4, 2)
    held.release("a")
    assert held.committable() == 4
    held.release("b")
    held.release("b")
    assert (held.committable(), len(held)) == (6, 0)


def test_an_earlier_record_of_a_key_counts_when_it_is_read_later() -> None:
    held = Held(0)
    held.hold("a", 5)
    held.hold("a", 3)
    assert held.committable() == 3
    held.release("a")
    held.read(5)
    assert held.committable() == 6


@given(st.lists(st.tuples(st.sampled_from("abcdef"), st.booleans()), max_size=200))
def test_it_equals_the_lowest_first_offset_of_the_open_keys(steps: list[tuple[str, bool]]) -> None:
    held, first = Held(0), dict[str, int]()
    for offset, (key, opens) in enumerate(steps):
        held.read(offset)
        if opens:
            held.hold(key, offset)
            first.setdefault(key, offset)
        else:
            held.release(key)
            first.pop(key, None)
        assert held.committable() == min(first.values(), default=offset + 1)


def test_its_memory_is_that_of_what_is_open_not_of_what_was_read() -> None:
    held = Held(0)
    held.hold("old", 0)
    for offset in range(1, 20_000):
        held.read(offset)
        held.hold(offset, offset)
        held.release(offset)
    assert held.committable() == 0
    assert len(held._heap) < 100  # pyright: ignore[reportPrivateUsage]  # the figure the test is about
