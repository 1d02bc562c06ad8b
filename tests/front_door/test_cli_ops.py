"""Commands that keep a deployment going, on the embedded twins."""

from __future__ import annotations

import json
import sys
import time
from contextlib import closing
from pathlib import Path

import pytest
from events import batch, end, span
from waiting import until

from spanloop import cli
from spanloop.consumers.sink import GROUP as SINK
from spanloop.consumers.sink import SINK_TOPICS
from spanloop.infra import doctor_facts
from spanloop.infra.facts import Facts, Trouble
from spanloop.infra.groups import GROUPS
from spanloop.infra.kafka import Reader
from spanloop.infra.producer import Producer
from spanloop.infra.registry import Registry
from spanloop.infra.settings import Settings
from spanloop.schemas.records import DeadLetter, Limits, Rollout, Task
from spanloop.schemas.serde import Decoder
from spanloop.schemas.topics import REWARDS, SPANS, TASKS
from spanloop.streams.app import NAME as ASSEMBLER
from spanloop.streams.controller_shell import GROUP as CONTROLLER
from spanloop.streams.controller_shell import INPUTS
from spanloop.streams.messages import Policy
from spanloop.streams.rebuild import from_log


@pytest.fixture
def ours(embedded_settings: Settings, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Settings:
    """Settings of a fresh prefix, in the environment."""
    monkeypatch.chdir(tmp_path)
    for name, value in embedded_settings.environment().items():
        monkeypatch.setenv(name, value)
    return embedded_settings


def ran(monkeypatch: pytest.MonkeyPatch, *arguments: str) -> int:
    """Runs a command; its status."""
    monkeypatch.setattr(sys, "argv", ["spanloop", *arguments])
    with pytest.raises(SystemExit) as ended:
        cli.main()
    return int(ended.value.code or 0)


def test_the_consumer_groups_are_those_that_parts_join() -> None:
    assert {SINK: SINK_TOPICS, ASSEMBLER: (SPANS, REWARDS), CONTROLLER: INPUTS} == GROUPS


def test_the_doctor_finds_an_embedded_stack_well_and_reads_what_tasks_ask_for(
    ours: Settings, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with closing(Producer(ours, "test")) as producer:
        producer.send_wait(Task("ro-1", "run", limits=Limits(timeout_s=100_000), reward_deadline_s=50))
    assert doctor_facts.gather(ours, longest_attempt_s=1, round_s=60).longest_task_s == 100_050
    monkeypatch.setattr(doctor_facts.gather, "__kwdefaults__", {"round_s": 60.0})  # the machine may be busy
    assert ran(monkeypatch, "doctor", "--format", "json") == 0
    told = json.loads(capsys.readouterr().out)
    wrong = {f["check"] for f in told["findings"] if f["status"] != "ok"}
    assert wrong <= {"clickhouse", "disk"}  # none is configured; a small disk is no fault of the stack
    found = {(f["check"], f["about"]): f for f in told["findings"]}
    assert found["lag", "sink"]["found"] == "has not run yet under this prefix, 1 records wait for it"
    assert found["clock", "registry"]["status"] == "ok"


def test_the_doctor_bears_attempts_as_long_as_the_assembler_does() -> None:
    assert cli_default("longest_attempt_s") == Policy().absolute_s


def cli_default(name: str) -> object:
    from inspect import signature

    from spanloop.cli_ops import doctor

    return signature(doctor).parameters[name].default


def test_the_doctor_ends_with_status_1_in_bounded_time_when_everything_is_down(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    nobody = "127.0.0.1:1"
    places = ["--bootstrap", nobody, "--registry-url", f"http://{nobody}", "--clickhouse-url", f"http://{nobody}"]
    began = time.monotonic()
    assert ran(monkeypatch, *places, "doctor") == 1
    assert time.monotonic() - began < 60  # its own bound is 2 * ROUND_S; the machine may be busy
    assert 2 * doctor_facts.ROUND_S < 20
    said = capsys.readouterr().out
    for name in ("broker 127.0.0.1:1: no Kafka broker answers", "registry http://127.0.0.1:1: ", "clickhouse: "):
        assert f"fail  {name}" in said


@pytest.mark.parametrize("format", ["table", "json"])
def test_the_doctor_keeps_secrets_to_itself(
    format: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    said = Trouble("http://me:r3g-pw@r:1 refuses r3g-pw; sasl.password=sasl-pw, try again")

    def found(settings: Settings, *, longest_attempt_s: float) -> Facts:
        return Facts(settings, longest_attempt_s, broker=said, registry=said, clickhouse=said, disk=said)

    monkeypatch.setattr(doctor_facts, "gather", found)
    assert ran(monkeypatch, "--registry-url", "http://me:r3g-pw@r:1", "doctor", "--format", format) == 1
    out = capsys.readouterr().out
    assert "-pw" not in out
    assert out.count("refuses ***; sasl.password=***, try again") == 4
    assert "http://me:***@r:1" in out


@pytest.mark.parametrize(
    "arguments",
    [
        ["tail", "tasks"], ["lag"], ["pause", "ro-1"], ["resume", "ro-1"], ["cancel", "ro-1"], ["requeue", "ro-1"],
        ["limit", "run", "4"], ["drain", "box-1"], ["assemble", "--from-log", "ro-1"], ["dlq", "replay", "--all"],
    ],
    ids=lambda arguments: arguments[0],
)  # fmt: skip
@pytest.mark.usefixtures("ours")
def test_partition_counts_that_are_not_the_settings_are_told(
    arguments: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("SPANLOOP_PARTITIONS", "8")
    assert ran(monkeypatch, *arguments) == 1
    said = " ".join(capsys.readouterr().err.split())
    assert "ConfigError: topic 'assignments' has 4 partitions, expected 8; " in said


@pytest.mark.usefixtures("ours")
def test_a_prefix_without_topics_is_told_what_makes_them(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for arguments in (["drain", "*"], ["lag"], ["tail", "tasks"], ["streams"]):
        assert ran(monkeypatch, "--prefix", "fresh", *arguments) == 1
        assert "has no topic of prefix 'fresh': run `spanloop init`" in capsys.readouterr().err


@pytest.mark.usefixtures("ours")
def test_what_nobody_could_mean_is_refused(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    for seconds in ("nan", "-5", "inf"):
        assert ran(monkeypatch, "doctor", "--longest-attempt-s", seconds) == 1
        assert f"--longest-attempt-s {seconds}: expected seconds" in capsys.readouterr().err
    assert ran(monkeypatch, "limit", "order/x", "3") == 1
    assert "order/" in capsys.readouterr().err


@pytest.mark.usefixtures("ours")
def test_dead_letters_can_be_read_whatever_the_partition_counts_are(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SPANLOOP_PARTITIONS", "8")
    assert ran(monkeypatch, "dlq", "list") == 0


def test_lag_is_told_group_by_group(
    ours: Settings, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with closing(Producer(ours, "test")) as producer:
        producer.send_wait(Task("ro-1", "run"))
    assert ran(monkeypatch, "lag", "controller", "--format", "json") == 0
    (tasks, *_) = json.loads(capsys.readouterr().out)["controller"]
    assert tasks == {
        "topic": "tasks", "partition": 0, "committed": None, "first": 0, "end": 1, "lag": 1
    }  # fmt: skip
    assert ran(monkeypatch, "lag") == 0
    assert "controller" in capsys.readouterr().out
    assert ran(monkeypatch, "lag", "nosuch") == 1


def test_an_order_goes_to_tasks_for_the_rollout_or_the_run_that_is_named(
    ours: Settings, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with closing(Producer(ours, "test")) as producer:
        producer.send_wait(Rollout("ro-1", "running", Task("ro-1", "run")))
    assert ran(monkeypatch, "pause", "run") == 0
    assert capsys.readouterr().out == "pause run 'run' (1 open rollouts): sent as tasks[0]@0\n"
    assert ran(monkeypatch, "cancel", "ro-1", "--reason", "wrong prompt") == 0
    assert ran(monkeypatch, "drain", "box-1") == 0
    assert ran(monkeypatch, "drain", "box-1", "--undo") == 0
    assert ran(monkeypatch, "limit", "run", "4") == 0
    assert ran(monkeypatch, "resume", "nosuch") == 1
    assert [(t.action, t.rollout_id, t.run_id) for t in sent(ours, 5)] == [
        ("pause", "run", "run"),
        ("cancel", "ro-1", "run"),
        ("drain", "box-1", ""),
        ("undrain", "box-1", ""),
        ("limit", "run", "run"),
    ]


def test_a_finished_rollout_is_queued_again_as_a_new_one(
    ours: Settings, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with closing(Producer(ours, "test")) as producer:
        producer.send_wait(Rollout("ro-1", "failed", Task("ro-1", "run", input='{"a": 1}'), final=True))
    assert ran(monkeypatch, "requeue", "ro-1", "--reason", "a worker was broken") == 0
    (task,) = sent(ours, 1)
    assert f"ro-1 again as {task.rollout_id}: sent as tasks[0]@0" in capsys.readouterr().out
    assert (task.requeued_from, task.reason, task.input) == ("ro-1", "a worker was broken", '{"a": 1}')
    assert task.rollout_id != "ro-1"


def test_dead_letters_are_listed_with_what_others_wrote_as_it_is(
    ours: Settings, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with closing(Producer(ours, "test")) as producer:
        producer.send_wait(DeadLetter("[a]", "[/b]", 0, 3, "undecodable", b"ro-1", None, "x [/INST]"))
    for arguments in ([], ["--summary"]):
        assert ran(monkeypatch, "dlq", "list", *arguments) == 0
        said = capsys.readouterr().out
        assert "[a]" in said
        assert "[/b]" in said


def sent(settings: Settings, count: int) -> list[Task]:
    """The first so many tasks."""
    found: list[Task] = []
    with closing(Registry(settings.registry_url)) as registry, closing(Reader(settings, "test")) as reader:
        reader.assign_topics([TASKS])
        decoder = Decoder(registry)
        until(
            lambda: found.extend(decoder.decode(Task, m.value or b"") for m in reader.poll()) or len(found) >= count,
            f"{count} tasks",
        )
    return found


def test_a_trajectory_is_made_anew_from_the_log_and_compared(
    ours: Settings, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with closing(Producer(ours, "test")) as producer:
        producer.send_wait(batch(span("root"), begin=True, end=end(span_count=1, reward_count=0)))
    assert ran(monkeypatch, "assemble", "--from-log", "ro-1") == 1
    told = capsys.readouterr()
    assert json.loads(told.out)["attempt_id"] == "at-1"
    assert told.err == "differs at-1: the topic holds none (yet)\n"
    (made,) = from_log(ours, "ro-1").trajectories.values()
    with closing(Producer(ours, "test")) as producer:
        producer.send_wait(made)
    assert ran(monkeypatch, "assemble", "--from-log", "ro-1") == 0
    assert capsys.readouterr().err == "equal at-1: revision 1 in the topic\n"
    assert ran(monkeypatch, "assemble", "--from-log", "ro-2") == 1
    assert "holds no span and no reward of rollout 'ro-2'" in capsys.readouterr().err


def test_dead_letters_are_listed_shown_and_put_back_once(
    ours: Settings, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    raw = b"\0\0\0\0\1broken"
    with closing(Producer(ours, "test")) as producer:
        producer.send_wait(DeadLetter("sink", "spans", 0, 3, "undecodable", b"ro-1", raw, "no SpanBatch"))
    assert ran(monkeypatch, "dlq", "list", "--format", "json") == 0
    (line,) = map(json.loads, capsys.readouterr().out.splitlines())
    assert (line["letter"], line["reason"], line["replayed"]) == (0, "undecodable", False)
    assert ran(monkeypatch, "dlq", "show", "0", "--raw", str(tmp_path)) == 1
    assert f"IsADirectoryError: [Errno 21] Is a directory: '{tmp_path}'" in capsys.readouterr().err
    assert ran(monkeypatch, "dlq", "show", "0", "--raw", str(tmp_path / "raw")) == 0
    assert json.loads(capsys.readouterr().out)["undecodable"].startswith("undecodable: ")
    assert (tmp_path / "raw").read_bytes() == raw
    assert ran(monkeypatch, "dlq", "replay") == 1
    assert "choose letters by" in capsys.readouterr().err
    assert ran(monkeypatch, "dlq", "replay", "--reason", "nosuch") == 1
    assert "--reason nosuch: expected one of bad_framing" in " ".join(capsys.readouterr().err.split())
    assert ran(monkeypatch, "dlq", "replay", "--offset", "9-3") == 1
    assert "--offset 9-3: expected 17, 10-20 or 10-" in capsys.readouterr().err
    for arguments, said in (
        (["--all", "--dry-run"], "1 would be put back, 0 kept"),
        (["--reason", "undecodable"], "1 put back, 0 kept"),
        (["--offset", "0-"], "0 put back, 1 kept"),
        (["--all", "--again"], "1 put back, 0 kept"),
    ):
        assert ran(monkeypatch, "dlq", "replay", *arguments) == 0
        assert capsys.readouterr().out.splitlines()[-1] == said
    assert ran(monkeypatch, "dlq", "list") == 0
    assert "yes" in capsys.readouterr().out
    assert ran(monkeypatch, "dlq", "list", "--summary") == 0
    assert "undecodable" in capsys.readouterr().out
