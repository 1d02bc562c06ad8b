"""The last revision is a function of the set of events: order, duplicates, batching and timers do not show."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

from events import NOW, S, batch, end, llm, rew, span
from hypothesis import given, settings
from hypothesis import strategies as st

from spanloop.schemas.packed import unpack_ids
from spanloop.schemas.records import Reward, Span, SpanBatch, Trajectory
from spanloop.schemas.semconv import AGENT
from spanloop.streams.assembler import Assembler
from spanloop.streams.messages import Emitted, Message, Output, Policy, Reread

ATTEMPTS = ("at-1", "at-2")
Draw = st.DrawFn


@st.composite
def attempts(draw: Draw) -> list[Message]:
    """The log of a rollout of two attempts: conversations that branch and drift, rewards, end markers."""
    messages: list[Message] = []
    for attempt in ATTEMPTS:
        spans = draw_spans(draw, attempt)
        parts = draw(st.lists(st.integers(0, len(spans)), max_size=3).map(sorted))
        pieces = [spans[a:b] for a, b in zip([0, *parts], [*parts, len(spans)], strict=True)]
        batches = [batch(*p, attempt=attempt, producer=draw(st.sampled_from("pq"))) for p in pieces if p]
        batches = [replace(b, begin=True) if i == 0 else b for i, b in enumerate(batches)]
        if draw(st.booleans()):
            marker = end(final=attempt == ATTEMPTS[-1], span_count=draw(st.none() | st.integers(0, 4)))
            batches.append(batch(attempt=attempt, producer="p", end=marker))
        messages += [Message("spans", 0, 0, b) for b in batches]
    for i in range(draw(st.integers(0, 3))):
        value = draw(st.sampled_from([0.0, 1.0, float("nan"), None]))
        attempt = draw(st.sampled_from([*ATTEMPTS, None]))
        target = draw(st.sampled_from([None, "at-1m0", "at-1m2"]))
        messages.append(Message("rewards", 0, 0, rew(value, target, rid=f"rw-{i}", attempt=attempt, created=900 + i)))
    return numbered(messages)


def numbered(messages: list[Message]) -> list[Message]:
    """The messages as they lie in their partition."""
    counts: Counter[str] = Counter()
    out: list[Message] = []
    for m in messages:
        out.append(replace(m, offset=counts[m.topic]))
        counts[m.topic] += 1
    return out


def draw_spans(draw: Draw, attempt: str) -> list[Span]:
    root = span(f"{attempt}r", attrs={AGENT: "lead"}, seq=0)
    out, history = [root], [1]
    for i in range(draw(st.integers(0, 4))):
        response = draw(st.lists(st.integers(2, 4), max_size=3))
        keep = draw(st.integers(0, len(history)))
        name = f"{attempt}m{draw(st.integers(0, i))}"  # the same id again now and then: a conflict
        prompt = history[: len(history) if keep % 2 else keep]
        out.append(llm(name, prompt, response, parent=f"{attempt}r", seq=i + 1, start=draw(st.integers(-5, 5))))
        history = [*prompt, *response, 9]
    return out


def run(order: list[Message], waits: list[int], policy: Policy) -> dict[str, Trajectory]:
    """Last revision by attempt; forgotten attempts are read again from the log, as the shell does."""
    assembler, now, last = Assembler(policy), NOW, dict[str, Trajectory]()
    assembler.assign(0, spans=0, rewards=0)
    seen: list[Message] = []

    def carry_out(outputs: list[Output]) -> None:
        for output in outputs:
            if isinstance(output, Emitted):
                last[output.trajectory.attempt_id] = output.trajectory
            elif isinstance(output, Reread):
                for message in seen:
                    assembler.restore(message)
                carry_out(assembler.restored(output, now))

    for message, wait in zip(order, waits, strict=True):
        seen.append(message)
        carry_out(assembler.add(message, now))
        now += wait * S
        carry_out(assembler.tick(now))
    carry_out(assembler.tick(now + 1_000_000 * S))
    assert assembler.attempts == {}
    return last


def comparable(found: dict[str, Trajectory]) -> dict[str, str]:
    """Trajectories without the offsets of their spans, which are where the records lie and not what they say."""
    return {a: repr(replace(t, calls=[replace(c, offset=0) for c in t.calls])) for a, t in found.items()}


PATIENT = Policy()
HASTY = Policy(grace_s=1, idle_s=2, absolute_s=5, hold_s=0, revised_at_once=0)


@settings(max_examples=40, deadline=None)
@given(st.data(), attempts())
def test_the_last_revision_does_not_depend_on_timers_or_duplicates(data: st.DataObject, log: list[Message]) -> None:
    expected = comparable(run(log, [0] * len(log), PATIENT))
    waits = data.draw(st.lists(st.integers(0, 7), min_size=len(log), max_size=len(log)))
    assert comparable(run(log, waits, HASTY)) == expected
    twice = [m for message in log for m in [message] * data.draw(st.integers(1, 2))]
    assert comparable(run(numbered(twice), [0] * len(twice), PATIENT)) == expected


@settings(max_examples=40, deadline=None)
@given(st.data(), attempts())
def test_the_last_revision_does_not_depend_on_the_order_of_arrival(data: st.DataObject, log: list[Message]) -> None:
    expected = comparable(run(log, [0] * len(log), PATIENT))
    order = numbered(data.draw(st.permutations(log)))
    assert comparable(run(order, [0] * len(order), PATIENT)) == expected


@settings(max_examples=25, deadline=None)
@given(st.data(), attempts())
def test_splitting_batches_changes_nothing_but_where_records_lie(data: st.DataObject, log: list[Message]) -> None:
    split: list[Message] = []
    for message in log:
        record = message.record
        if isinstance(record, SpanBatch) and len(record.spans) > 1 and data.draw(st.booleans()):
            first, rest = replace(record, spans=record.spans[:1], end=None), replace(record, spans=record.spans[1:])
            split += [replace(message, record=first), replace(message, record=replace(rest, begin=False))]
        else:
            split.append(message)
    found, expected = (run(x, [0] * len(x), PATIENT) for x in (numbered(split), log))
    assert comparable(found) == comparable(expected)


@settings(max_examples=25, deadline=None)
@given(attempts())
def test_every_trained_token_is_one_of_a_response_and_is_trained_once(log: list[Message]) -> None:
    for found in run(log, [0] * len(log), PATIENT).values():
        trained = Counter(s.call for row in found.rows for s in row.segments)
        assert set(trained.values()) <= {1}
        assert sorted(trained) == [i for i, call in enumerate(found.calls) if call.excluded is None]
        for row in found.rows:
            length = len(unpack_ids(row.token_ids))
            assert (len(row.mask), len(row.logprobs)) == (length, 4 * length)
            assert sum(row.mask) == sum(s.end - s.start for s in row.segments)


def test_a_log_of_nothing_but_rewards_emits_nothing() -> None:
    log = [Message("rewards", 0, i, rew(1.0, rid=f"rw-{i}", attempt=a)) for i, a in enumerate(["at-1", None])]
    assert run(log, [1, 1], HASTY) == {}
    assert all(isinstance(m.record, Reward) for m in log)
