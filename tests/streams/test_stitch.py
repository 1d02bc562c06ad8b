"""Calls become rows: exact prefixes only, every token once, in time linear in tokens."""

from __future__ import annotations

import math
import time
from collections import Counter
from collections.abc import Sequence
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from spanloop.schemas.packed import pack_ids, pack_logprobs, unpack_ids, unpack_logprobs
from spanloop.schemas.records import Row, Sampling, Segment, VersionRun
from spanloop.streams.stitch import Drawn, Stitched, build_row, resolve_prompts, row_key, stitch

KEY = row_key("policy", "", Sampling(temperature=1.0))


def drawn(
    index: int,
    prompt: Sequence[int],
    response: Sequence[int],
    *,
    path: str = "",
    sampling: Sampling | None = None,
    **f: Any,
) -> Drawn:
    key = row_key("policy", path, sampling or Sampling(temperature=1.0))
    return Drawn(index, (f"{index:016x}", 0), key, pack_ids(prompt), pack_ids(response), **f)


def rows(found: Stitched) -> list[Row]:
    return [build_row(row, {c.index: c.index for r in found.rows for c in r}) for row in found.rows]


def ids(found: Stitched) -> list[list[int]]:
    return sorted(unpack_ids(row.token_ids) for row in rows(found))


def test_a_prompt_that_goes_on_from_a_row_joins_it() -> None:  # SP-13
    found = stitch([drawn(0, [1, 2], [3, 9]), drawn(1, [1, 2, 3, 9, 198, 4], [5, 9])])
    (row,) = rows(found)
    assert unpack_ids(row.token_ids) == [1, 2, 3, 9, 198, 4, 5, 9]
    assert list(row.mask) == [0, 0, 1, 1, 0, 0, 1, 1]
    assert row.segments == [Segment(2, 4, 0), Segment(6, 8, 1)]
    assert found.drift == 0
    assert found.follows == {1: 0}


def test_a_retokenised_prefix_is_a_new_row_and_counts_as_drift() -> None:  # SP-14
    found = stitch([drawn(0, [1], [20, 21]), drawn(1, [1, 77, 4], [5])])
    assert ids(found) == [[1, 20, 21], [1, 77, 4, 5]]
    assert found.drift == 1


def test_interleaved_agents_have_a_row_each() -> None:  # SP-16
    calls = [
        drawn(0, [1], [2], path="a"),
        drawn(1, [50], [51], path="b"),
        drawn(2, [1, 2, 3], [4], path="a"),
        drawn(3, [50, 51, 52], [53], path="b"),
    ]
    found = stitch(calls)
    assert ids(found) == [[1, 2, 3, 4], [50, 51, 52, 53]]
    assert len(calls) / len(found.rows) == 2.0
    assert found.drift == 0


def test_interleaved_conversations_of_one_agent_are_told_apart_by_their_prompts() -> None:
    found = stitch([drawn(0, [1], [2]), drawn(1, [50], [51]), drawn(2, [1, 2, 3], [4]), drawn(3, [50, 51, 52], [53])])
    assert ids(found) == [[1, 2, 3, 4], [50, 51, 52, 53]]


def test_of_all_open_rows_the_longest_prefix_wins() -> None:
    found = stitch([drawn(0, [1], [2]), drawn(1, [1, 9], [2]), drawn(2, [1, 9, 2, 3], [4]), drawn(3, [1, 2, 7], [8])])
    assert ids(found) == [[1, 2, 7, 8], [1, 9, 2, 3, 4]]
    assert found.follows == {2: 1, 3: 0}


def test_a_call_that_branches_off_at_a_response_starts_a_row_without_drift() -> None:
    found = stitch([drawn(0, [1], [2]), drawn(1, [1, 2, 3], [4]), drawn(2, [1, 2, 5, 6, 7, 8], [9])])
    assert ids(found) == [[1, 2, 3, 4], [1, 2, 5, 6, 7, 8, 9]]
    assert (found.drift, found.follows) == (0, {1: 0, 2: 0})


def test_the_same_prompt_asked_again_is_a_row_of_its_own_without_drift() -> None:
    found = stitch([drawn(0, [1, 2], [3]), drawn(1, [1, 2], [3]), drawn(2, [1, 2], [4])])
    assert ids(found) == [[1, 2, 3], [1, 2, 3], [1, 2, 4]]
    assert found.drift == 0


def test_a_row_never_mixes_samplings_but_seed_and_length_limit_may_differ() -> None:
    hot, seeded = Sampling(temperature=0.7), Sampling(temperature=1.0, seed=3, max_tokens=9)
    found = stitch(
        [drawn(0, [1], [2]), drawn(1, [1, 2, 3], [4], sampling=hot), drawn(2, [1, 2, 3], [5], sampling=seeded)]
    )
    assert ids(found) == [[1, 2, 3, 4], [1, 2, 3, 5]]
    assert {row.sampling for row in rows(found)} == {hot, Sampling(temperature=1.0)}


def test_versions_of_one_answer_keep_their_borders() -> None:  # SP-18
    runs = [VersionRun(2, 0, 2), VersionRun(4, 2, 4), VersionRun(6, 4, 12)]
    (row,) = rows(stitch([drawn(0, [], range(12), versions=runs)]))
    assert row.policy_versions == runs
    (row,) = rows(stitch([drawn(0, [1, 2, 3], range(12), versions=runs)]))
    assert row.policy_versions == [VersionRun(2, 3, 5), VersionRun(4, 5, 7), VersionRun(6, 7, 15)]


def test_log_probs_are_nan_wherever_the_policy_drew_nothing() -> None:
    first = drawn(0, [1, 2], [3, 9], logprobs=pack_logprobs([-0.5, -1.0]))
    (row,) = rows(stitch([first, drawn(1, [1, 2, 3, 9, 4], [5])]))
    found = unpack_logprobs(row.logprobs)
    assert found[2:4] == [-0.5, -1.0]
    assert [math.isnan(x) for x in found] == [True, True, False, False, True, True]


def test_a_prompt_of_which_only_the_tail_is_stored_is_made_whole() -> None:
    prompts: dict[str, tuple[bytes | None, bytes | None]] = {
        "a": (pack_ids([1, 2]), pack_ids([3])),
        "b": (pack_ids([4]), pack_ids([5])),
        "c": (pack_ids([6]), pack_ids([7])),
        "lost": (pack_ids([6]), None),
    }
    whole = resolve_prompts(prompts, {"c": ("b", 5), "b": ("a", 3), "lost": ("never", 3)})
    assert {k: None if v is None else unpack_ids(v) for k, v in whole.items()} == {
        "a": [1, 2],
        "b": [1, 2, 3, 4],
        "c": [1, 2, 3, 4, 5, 6],
        "lost": None,
    }


def test_prompts_that_rest_on_each_other_are_not_known() -> None:
    prompts: dict[str, tuple[bytes | None, bytes | None]] = {"a": (b"", b""), "b": (b"", b"")}
    assert resolve_prompts(prompts, {"a": ("b", 1), "b": ("a", 1)}) == {"a": None, "b": None}


@given(st.integers(-(1 << 62), -1) | st.integers(4, 1 << 62))
def test_a_prompt_that_rests_on_more_or_less_than_there_is_is_not_known(length: int) -> None:
    prompts: dict[str, tuple[bytes | None, bytes | None]] = {
        "a": (pack_ids([1, 2]), pack_ids([3])),
        "b": (pack_ids([4]), None),
    }
    assert resolve_prompts(prompts, {"b": ("a", length)})["b"] is None


def conversation(turns: int, per_turn: int, start: int = 0) -> list[Drawn]:
    """A conversation whose prompts grow by `per_turn` tokens a turn, half of them drawn."""
    half, history, out = per_turn // 2, list[int](), list[Drawn]()
    for turn in range(turns):
        history = history + [start + turn] * half
        response = [start + turn + 1] * half
        out.append(drawn(start + turn, history, response))
        history = history + response
    return out


def broken(count: int, length: int) -> list[Drawn]:
    """Calls that share a long beginning and never go on from each other: the worst case for looking back."""
    return [drawn(i, [7] * (length - i - 1) + [1000 + i] * (i + 1), [5]) for i in range(count)]


def test_tokens_looked_at_grow_linearly_with_tokens_given() -> None:
    sizes = (50, 100, 200)
    for series in ([conversation(n, 8) for n in sizes], [broken(n, 4 * n) for n in sizes]):
        ratios: list[float] = []
        for calls in series:
            work = stitch(calls).work
            ratios.append((work.hashed + work.compared) / sum(c.length for c in calls))
        assert max(ratios) < 6
        assert ratios[-1] < ratios[0] * 1.1


def test_a_thousand_calls_of_8k_tokens_are_stitched_at_the_cost_of_reading_them() -> None:
    calls = [drawn(i, [*range(4, 8000), i], [i]) for i in range(1000)]
    started = time.process_time()
    found = stitch(calls)
    spent = time.process_time() - started
    total = sum(c.length for c in calls)
    assert found.work.hashed + found.work.compared < 5 * total
    assert spent < 30, f"{spent:.1f} s: far beyond any machine's cost of hashing {total} tokens"


tokens = st.lists(st.integers(0, 2), max_size=6)


@given(st.lists(st.tuples(tokens, st.lists(st.integers(0, 2), min_size=1, max_size=3)), max_size=12), st.randoms())
def test_ids_in_are_ids_out_and_no_token_is_trained_twice(
    given_calls: list[tuple[list[int], list[int]]], random: Any
) -> None:
    calls = [drawn(i, p, r) for i, (p, r) in enumerate(given_calls)]
    shuffled = list(calls)
    random.shuffle(shuffled)
    found = stitch(shuffled)
    assert [[c.index for c in row] for row in found.rows] == [[c.index for c in row] for row in stitch(calls).rows]
    trained: Counter[int] = Counter()
    for row, members in zip(rows(found), found.rows, strict=True):
        all_ids = unpack_ids(row.token_ids)
        assert len(row.mask) == len(all_ids) == len(row.logprobs) // 4
        assert sum(row.mask) == sum(s.end - s.start for s in row.segments)
        for segment, call in zip(row.segments, members, strict=True):
            trained[call.index] += 1
            assert all_ids[: segment.start] == given_calls[call.index][0]
            assert all_ids[segment.start : segment.end] == given_calls[call.index][1]
    assert trained == Counter(range(len(calls)))
