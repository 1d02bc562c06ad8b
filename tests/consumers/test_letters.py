"""Dead letters: chosen, shown, and put back exactly once."""

from __future__ import annotations

from contextlib import closing
from dataclasses import replace
from functools import partial
from typing import Any

import pytest
from sink_rig import Lab

from spanloop.consumers.letters import Kept, Letter, Put, Selection, note, read, replayed, shown, summary
from spanloop.consumers.letters import plan as plan_with
from spanloop.consumers.replay import HEADER, replay
from spanloop.infra.embedded_broker import EmbeddedBroker
from spanloop.infra.kafka import Message, Reader
from spanloop.infra.producer import Producer
from spanloop.infra.registry import encoder
from spanloop.infra.settings import Settings
from spanloop.schemas import orders
from spanloop.schemas.errors import ConfigError
from spanloop.schemas.records import DeadLetter, Reward, SpanBatch, Task
from spanloop.schemas.serde import Decoder, Encoder, LocalSchemas, encode_body, local_ids
from spanloop.schemas.topics import REWARDS, TASKS, TOPICS, Topic, partition_of

PRODUCE, TOPIC_AUTHORIZATION_FAILED = 0, 29  # of Kafka's protocol
REWARD = Reward("rw-1", "ro-1", "judge", value=1.0)
RAW = Encoder(local_ids()).encode(REWARD)
DEAD = DeadLetter("assembler", "rewards", 2, 17, "nonfinite_reward", b"ro-1", RAW, "NaN", 5)
plan = partial(plan_with, decoder=Decoder(LocalSchemas()))


def letter(offset: int = 3, **changes: Any) -> Letter:
    return Letter(offset, replace(DEAD, **changes))


def test_a_letter_goes_back_with_its_bytes_to_the_partition_it_came_from() -> None:
    assert plan(letter(), (), 4) == Put(3, "rewards", 2, b"ro-1", RAW)
    assert plan(letter(raw=None), (), 4) == Put(3, "rewards", 2, b"ro-1", None)  # a tombstone


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"key": None}, "has no key"),
        ({"raw": b"no framing"}, "has no schema id in front"),
        (
            {"message": f"NaN; cut, of a key of 4 and a value of 30000000 bytes with SHA-256 {'0' * 64}"},
            "only the first",
        ),
        ({"partition": -1, "reason": "unknown_attempt"}, "was never in the log"),
        ({"partition": 4}, "was never in the log"),
        ({"topic": "dead-letters"}, "no topic that can be replayed"),
        ({"topic": "nosuch"}, "no topic that can be replayed"),
    ],
)
def test_what_would_only_be_refused_again_is_kept(changes: dict[str, Any], why: str) -> None:
    kept = plan(letter(**changes), (), 4)
    assert isinstance(kept, Kept)
    assert why in kept.why


# What is made of each topic: put back where a repeat is known as one, kept where it would undo what came later.
GOES_BACK = {"tasks", "spans", "rewards", "trajectories", "decisions", "resources"}


@pytest.mark.parametrize("topic", TOPICS)
def test_what_a_later_record_may_have_replaced_is_kept(topic: str) -> None:
    raw = Encoder(local_ids()).encode(Task("ro-1", "run")) if topic == "tasks" else RAW
    found = plan(letter(topic=topic, partition=0, reason="unknown_schema_id", raw=raw), (), 1, again=True)
    assert isinstance(found, Put) is (topic in GOES_BACK)
    if isinstance(found, Kept) and topic != "dead-letters":
        assert found.why == "a later record may have replaced it; read it with `dlq show 3`"


@pytest.mark.parametrize(
    ("raw", "why"),
    [
        (Encoder(local_ids()).encode(orders.pause_run("run")), "is an order (pause): a later one may have lifted it"),
        (Encoder(local_ids()).encode(orders.cancel("ro-1", "run")), "is an order (cancel)"),
        (b"\0\0\0\0\x63broken", "cannot be told from an order (unknown_schema_id: "),
    ],
    ids=["of a run", "of a rollout", "who knows"],
)
def test_an_order_is_kept_for_it_would_be_obeyed_now(raw: bytes, why: str) -> None:
    kept = plan(letter(topic="tasks", partition=0, raw=raw), (), 1)
    assert isinstance(kept, Kept)
    assert kept.why.startswith(why)


def test_in_sql_a_letter_tells_when_it_was_put_back_and_the_note_is_none_itself(lab: Lab) -> None:
    put = plan(letter(0), (), 4)
    assert isinstance(put, Put)
    other = replace(DEAD, offset=18)
    lab.store(DEAD, other, note(put, 6))
    found = lab.rows("SELECT offset, reason, toUnixTimestamp64Nano(replayed_at) FROM v_dead_letters ORDER BY offset")
    assert found == [(17, "nonfinite_reward", 6), (18, "nonfinite_reward", None)]


def test_a_letter_is_put_back_once_unless_told_otherwise() -> None:
    put = plan(letter(), (), 4)
    assert isinstance(put, Put)
    done = replayed([letter(), Letter(9, note(put, 6))])
    assert done == {3}
    kept = plan(letter(), done, 4)
    assert isinstance(kept, Kept)
    assert "--again" in kept.why
    assert plan(letter(), done, 4, again=True) == put
    assert isinstance(plan(letter(4), done, 4), Put)


@pytest.mark.parametrize(
    ("selection", "taken"),
    [
        (Selection(), [0, 1, 2]),
        (Selection(reasons=["undecodable"]), [1, 2]),
        (Selection(topics=["rewards"], reasons=["undecodable"]), [1]),
        (Selection(consumers=["sink"]), [2]),
        (Selection(first=1), [1, 2]),
        (Selection(first=1, last=1), [1]),
    ],
)
def test_letters_are_chosen_by_all_that_is_given_and_never_the_ledgers_notes(
    selection: Selection, taken: list[int]
) -> None:
    log = [
        letter(0),
        letter(1, reason="undecodable"),
        letter(2, reason="undecodable", topic="spans", consumer="sink"),
        Letter(3, note(Put(0, "rewards", 2, b"ro-1", RAW), 6)),
    ]
    assert [x.offset for x in log if selection.takes(x)] == taken
    assert summary(log)["assembler", "rewards", "undecodable"] == 1
    assert summary(log).total() == 3


def test_a_letter_is_shown_with_its_record_where_that_can_be_read() -> None:
    decoder = Decoder(LocalSchemas())
    told = shown(letter(), decoder)
    assert (told["letter"], told["reason"], told["key"], told["bytes"]) == (3, "nonfinite_reward", "ro-1", len(RAW))
    assert told["record"]["reward_id"] == "rw-1"
    bad = shown(letter(raw=b"\x07junk", key=b"\xff"), decoder)
    assert bad["undecodable"].startswith("bad_framing")
    assert (bad["hex"], bad["key"]) == ("076a756e6b", "\\xff")
    assert shown(letter(raw=None), decoder)["record"] is None
    gateway = shown(letter(topic="spans", partition=-1, raw=encode_body(SpanBatch("ro-1", "at-1", "gw"))), decoder)
    assert gateway["record"]["attempt_id"] == "at-1"


def everything(settings: Settings, topic: Topic) -> list[Message]:
    """All records of a topic there are now."""
    found: list[Message] = []
    with closing(Reader(settings, "test")) as reader:
        reader.assign_topics([topic])
        ends = reader.ends()
        while not reader.reached(ends):
            found += reader.poll()
    return found


def test_replaying_puts_the_very_bytes_back_and_notes_it(embedded_settings: Settings) -> None:
    partition = partition_of("ro-1", embedded_settings.partitions)
    task = encoder(embedded_settings).encode(Task("ro-1", "run"))
    with closing(Producer(embedded_settings, "test")) as producer:
        producer.send_wait(replace(DEAD, partition=partition))
        producer.send_wait(replace(DEAD, partition=0, topic="tasks", raw=task, reason="undecodable"))
        producer.send_wait(replace(DEAD, partition=-1, reason="unknown_attempt"))
    rehearsal = list(replay(embedded_settings, Selection(), dry_run=True))
    assert [type(done.put) for done in rehearsal] == [Put, Put, Kept]
    assert everything(embedded_settings, REWARDS) == []

    (done,) = replay(embedded_settings, Selection(topics=["rewards"], reasons=["nonfinite_reward"]))
    assert done.offset == 0
    (m,) = everything(embedded_settings, REWARDS)
    assert (m.partition, m.key, m.value) == (partition, b"ro-1", RAW)
    assert m.headers == [(HEADER, b"dead-letters@0")]

    again = list(replay(embedded_settings, Selection()))
    assert [type(done.put) for done in again] == [Kept, Put, Kept]
    assert len(everything(embedded_settings, REWARDS)) == 1
    assert [m.value for m in everything(embedded_settings, TASKS)] == [task]
    (forced, *_) = replay(embedded_settings, Selection(last=0), again=True)
    assert forced.offset == 1

    letters = list(read(embedded_settings))
    assert replayed(letters) == {0, 1}
    assert [x.is_ledger for x in letters] == [False, False, False, True, True, True]
    assert [x.offset for x in read(embedded_settings, first=4)] == [4, 5]
    assert list(read(embedded_settings, first=99)) == []
    assert all(x.dead.raw is None for x in read(embedded_settings, bodies=False))


def test_a_replay_that_may_not_write_says_where(broker: EmbeddedBroker, embedded_settings: Settings) -> None:
    with closing(Producer(embedded_settings, "test")) as producer:
        producer.send_wait(replace(DEAD, partition=0))
    broker.refuse_next(PRODUCE, TOPIC_AUTHORIZATION_FAILED)
    with pytest.raises(ConfigError, match=f"refuses dead letter 0 on topic {embedded_settings.prefix}-rewards: "):
        list(replay(embedded_settings, Selection()))


def test_a_record_that_is_no_dead_letter_is_told_of_and_is_in_nobodys_way(embedded_settings: Settings) -> None:
    from confluent_kafka import Producer as KafkaProducer

    raw = KafkaProducer({"bootstrap.servers": embedded_settings.bootstrap})
    raw.produce(TOPICS["dead-letters"].full(embedded_settings.prefix), b"junk", key=b"spans")
    assert raw.flush(30) == 0
    with closing(Producer(embedded_settings, "test")) as producer:
        producer.send_wait(DEAD)
        producer.send_wait(Task("ro-1", "run"))
    bad, good = read(embedded_settings)
    assert (bad.dead.consumer, bad.dead.reason, bad.where) == ("?", "bad_framing", "dead-letters[0]@0")
    assert good.dead == DEAD
