"""Records as people read them, from a broker and from a finished run."""

from __future__ import annotations

import math
from contextlib import closing
from itertools import islice
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer as KafkaProducer

from spanloop.consumers.plain import plain
from spanloop.consumers.tail import exported, live, topic_named
from spanloop.infra.producer import Producer
from spanloop.infra.settings import Settings
from spanloop.schemas.errors import ConfigError
from spanloop.schemas.packed import NAN, pack_ids, pack_logprobs
from spanloop.schemas.records import ModelCall, Reward, Span, SpanBatch, Task
from spanloop.schemas.serde import to_plain
from spanloop.schemas.topics import TASKS, TOPICS


def shown_call(call: ModelCall) -> dict[str, Any]:
    """A call as it is shown in its span."""
    batch = SpanBatch("ro-1", "at-1", "wo-1", spans=[Span("0" * 32, "1" * 16, "chat", 7, call=call)])
    return plain(to_plain(batch))["spans"][0]["call"]


def test_packed_ids_and_logprobs_are_unpacked_wherever_they_are() -> None:
    ids, logprobs = pack_ids([1, 2, 70_000]), pack_logprobs([-0.5, NAN, -math.inf])
    shown = shown_call(ModelCall("{}", prompt_ids=ids, response_ids=b"", logprobs=logprobs))
    assert shown["prompt_ids"] == [1, 2, 70_000]
    assert shown["response_ids"] == []
    assert shown["logprobs"] == [-0.5, None, None]
    assert shown_call(ModelCall("{}"))["prompt_ids"] is None  # not reported is not empty


def test_a_rows_mask_is_a_list_of_bits() -> None:
    row = {"token_ids": pack_ids([5, 6]), "mask": b"\x00\x01", "logprobs": pack_logprobs([NAN, -1.0])}
    assert plain({"rows": [row]}) == {"rows": [{"token_ids": [5, 6], "mask": [0, 1], "logprobs": [None, -1.0]}]}


@pytest.mark.parametrize(
    ("value", "shown"),
    [(math.nan, None), (math.inf, None), (0.0, 0.0), (b"\x00\xff", "00ff"), ([math.nan, 1], [None, 1]), ("x", "x")],
)
def test_other_values_become_json(value: object, shown: object) -> None:
    assert plain(value) == shown


def test_a_reward_that_is_no_number_is_null() -> None:
    reward = Reward("rw-1", "ro-1", "judge", value=math.nan, dimensions={"style": math.inf, "facts": 1.0})
    shown = plain(to_plain(reward))
    assert shown["value"] is None
    assert shown["dimensions"] == {"style": None, "facts": 1.0}


def test_an_unknown_topic_is_refused_with_those_there_are() -> None:
    with pytest.raises(ConfigError, match=f"'nosuch'; there are: {', '.join(TOPICS)}"):
        topic_named("nosuch")


def test_a_folder_without_an_export_is_refused_by_its_name(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"topics/spans\.avro does not exist; is .* a finished run's folder\?"):
        next(exported(tmp_path, "spans"))


def test_a_topic_of_a_finished_run_that_got_no_record_is_empty(tmp_path: Path) -> None:
    (tmp_path / "topics").mkdir()
    assert list(exported(tmp_path, "dead-letters")) == []


def test_a_live_topic_is_read_from_its_first_record_on(embedded_settings: Settings) -> None:
    with closing(Producer(embedded_settings, "test")) as producer:
        producer.send_wait(Task(rollout_id="ro-1", run_id="run", input='"é"'))
    raw = KafkaProducer({"bootstrap.servers": embedded_settings.bootstrap})
    raw.produce(TASKS.full(embedded_settings.prefix), b"no framing", key=b"ro-2")
    raw.produce(TASKS.full(embedded_settings.prefix), None, key=b"ro-3")
    assert raw.flush(30) == 0
    with closing(live(embedded_settings, "tasks", beginning=True)) as lines:
        first, bad, tombstone = islice(lines, 3)
    assert (first["partition"], first["offset"], first["key"]) == (0, 0, "ro-1")
    assert first["record"]["input"] == '"é"'
    assert bad["error"].startswith("bad_framing")
    assert tombstone == {"partition": 0, "offset": 2, "key": "ro-3", "record": None}
