"""The command line: help, and messages instead of tracebacks."""

from __future__ import annotations

import io
import json
import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Generator, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any, cast

import pytest
from typer.core import TyperGroup as Group
from typer.main import get_command
from typer.testing import CliRunner

from spanloop import cli, cli_ask, cli_letters, cli_ops, cli_parts
from spanloop.consumers import tail
from spanloop.consumers.export import ExportService
from spanloop.consumers.query import Result
from spanloop.infra import stack
from spanloop.infra.producer import Producer
from spanloop.infra.settings import PREFIX, Settings
from spanloop.schemas.records import Task
from spanloop.schemas.topics import TOPICS

del cli_letters, cli_ops, cli_parts  # they register their commands
COMMANDS = sorted(cast("Group", get_command(cli.app)).commands)
DEADLINE_S = 120.0
TRAINER = """
run_id = "run"
trainer_id = "tr"
policy = "policy"
model_dir = "/nowhere"
folder = "/nowhere"
correction = "none"
total_steps = 1
"""
AGENT = Path(__file__).parent.parent.parent / "examples" / "lookup_agent.py"
# Every command that reads or writes topics, with what it cannot do without.
NEED_A_BROKER = {
    "init": [],
    "streams": [],
    "sink": [],
    "gateway": ["--port", "0"],
    "worker": [f"{AGENT}:lookup"],
    "engine": ["--url", "http://127.0.0.1:1"],
    "train": ["trainer.toml"],
    "tail": ["spans"],
}
# Those that start nothing are asked in this process, which costs less.
ASK_A_BROKER = [
    ["lag"],
    ["pause", "ro-1"], ["resume", "ro-1"], ["cancel", "ro-1"], ["drain", "*"],
    ["requeue", "ro-1"], ["limit", "run", "4"], ["assemble", "--from-log", "ro-1"],
    ["dlq", "list"], ["dlq", "show", "0"], ["dlq", "replay", "--all"],
]  # fmt: skip


@pytest.fixture
def bare(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """No settings at all: no variables, and a folder without spanloop.toml."""
    for name in [name for name in os.environ if name.startswith(PREFIX)]:
        monkeypatch.delenv(name)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def refused(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    """What a command that ends with status 1 says, its lines joined."""
    monkeypatch.setattr(sys, "argv", ["spanloop", *arguments])
    with pytest.raises(SystemExit) as ended:
        cli.main()
    assert ended.value.code == 1
    return " ".join(capsys.readouterr().err.split())


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_explains_itself(command: str) -> None:
    result = CliRunner().invoke(cli.app, [command, "--help"])
    assert result.exit_code == 0
    assert f"{command} [OPTIONS]" in result.output


def test_the_commands_are_those_promised() -> None:
    promised = (
        "assemble cancel demo dlq doctor drain engine gateway init lag limit pause requeue resume show sink sql "
        "streams tail topics train up version worker"
    )
    assert promised.split() == COMMANDS


@pytest.mark.usefixtures("bare")
def test_a_missing_setting_is_named_with_every_way_to_give_it(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    said = refused(monkeypatch, capsys, "sink")
    assert said.startswith("ConfigError: bootstrap is not set: give --bootstrap, SPANLOOP_BOOTSTRAP or bootstrap in")
    assert "`spanloop up` starts an embedded stack" in said
    said = refused(monkeypatch, capsys, "--bootstrap", "b:1", "--registry-url", "http://r:1", "sink")
    assert said.startswith("ConfigError: clickhouse_url is not set: give --clickhouse-url, SPANLOOP_CLICKHOUSE_URL or")


@pytest.mark.usefixtures("bare")
def test_an_unknown_topic_is_refused_with_those_there_are(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    said = refused(monkeypatch, capsys, "tail", "nosuch")
    assert said == f"ConfigError: no topic is called 'nosuch'; there are: {', '.join(TOPICS)}"


@pytest.mark.usefixtures("bare")
def test_a_message_is_shown_as_it_is(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    said = refused(monkeypatch, capsys, "tail", "spans", "--home", "[/x]")  # would be markup
    assert "[/x]/topics/spans.avro does not exist" in said


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["demo", "--control", "none"], "expected frozen or shuffled"),
        (["streams", "--only", "sink"], "expected controller or assembler"),
        (["engine"], "either --model (starts the embedded engine) or --url"),
        (["engine", "--model", "m", "--logprobs-mode", "raw_logprobs"], "--logprobs-mode is about a vLLM (--url)"),
        (["train", "nowhere.toml"], "nowhere.toml"),
        (["demo", "--report", "nowhere/r.json"], "there is no folder"),
        (["demo", "--home", "/proc/nowhere"], "/proc/nowhere"),
        (["up", "--home", "/proc/nowhere"], "/proc/nowhere"),
    ],
)
@pytest.mark.usefixtures("bare")
def test_contradicting_arguments_are_refused(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], arguments: list[str], said: str
) -> None:
    assert said in refused(monkeypatch, capsys, *arguments)


@pytest.mark.parametrize("kept", ["topics", "trainer"])
def test_a_demo_is_not_run_over_an_earlier_one(
    bare: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], kept: str
) -> None:
    monkeypatch.setattr("spanloop.demo.EmbeddedStack", None)  # nothing is started before it is known
    (bare / "run" / kept).mkdir(parents=True)
    said = refused(monkeypatch, capsys, "demo", "--home", "run")
    assert f"run holds an earlier run ({kept}/): choose another home (--home) or remove this one" in said


@pytest.mark.usefixtures("bare")
def test_up_starts_what_the_settings_say(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[dict[str, Any]] = []

    def serve(home: Path, **chosen: Any) -> None:
        asked.append({"home": home, **chosen})

    monkeypatch.setattr(stack, "serve", serve)
    monkeypatch.setenv("SPANLOOP_PARTITIONS", "16")
    assert CliRunner().invoke(cli.app, ["--prefix", "mine", "up", "--home", "there"]).exit_code == 0
    assert asked == [{"home": Path("there"), "kafka": False, "prefix": "mine", "partitions": 16}]


def test_a_table_shows_data_as_it_is(capsys: pytest.CaptureFixture[str]) -> None:
    cells = ('{"x": [true]}', "ends [/INST]", ":warning: \\[b]", None)
    cli_ask.show_table(Result(("a[1]", "[/b]", ":x:", "d"), (cells,)))
    said = capsys.readouterr().out
    for text in (*cells[:3], "a[1]", "[/b]", ":x:"):
        assert f" {text} " in said


@pytest.mark.usefixtures("bare")
def test_each_line_of_tail_is_in_the_pipe_before_the_next_one_comes(monkeypatch: pytest.MonkeyPatch) -> None:
    pipe = io.BytesIO()
    seen: list[bytes] = []

    def lines(home: Path, name: str) -> Generator[dict[str, Any]]:
        for n in range(2):
            yield {"home": str(home), "topic": name, "n": n}
            seen.append(pipe.getvalue().splitlines()[-1])

    monkeypatch.setattr(tail, "exported", lines)
    monkeypatch.setattr(sys, "argv", ["spanloop", "tail", "spans", "--home", "h"])
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(io.BufferedWriter(pipe)))
    with pytest.raises(SystemExit) as ended:
        cli.main()
    assert not ended.value.code
    assert [json.loads(line)["n"] for line in seen] == [0, 1]


@pytest.mark.usefixtures("bare")
def test_a_filter_that_cannot_be_read_is_refused_at_its_position(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    said = refused(monkeypatch, capsys, "tail", "spans", "--where", "value <")
    assert said.startswith("ConfigError: --where, position 8: expected a number, a text in quotes, true, false or null")


def test_a_reachable_topic_is_printed_as_lines_of_json(
    bare: Path, embedded_settings: Settings, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for name, value in embedded_settings.environment().items():
        monkeypatch.setenv(name, value)
    with closing(Producer(embedded_settings, "test")) as producer:
        producer.send_wait(Task(rollout_id="ro-0", run_id="other"))
        producer.send_wait(Task(rollout_id="ro-1", run_id="run", input='"é"'))
    exported = ExportService(embedded_settings, bare / "topics")
    (stop := threading.Event()).set()
    exported.run(stop)
    for arguments in (["--from-beginning", "-n", "1"], ["--home", str(bare)]):
        monkeypatch.setattr(sys, "argv", ["spanloop", "tail", "tasks", "--where", "run_id == 'run'", *arguments])
        with pytest.raises(SystemExit) as ended:
            cli.main()
        assert not ended.value.code
        (line,) = capsys.readouterr().out.splitlines()
        assert json.loads(line)["record"]["input"] == '"é"'


@pytest.fixture
def closed_port() -> Iterator[int]:
    """A loopback port on which nobody answers: bound, so that nobody else takes it, and not listening."""
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))
        yield int(held.getsockname()[1])


def test_without_a_broker_every_command_names_its_address_and_a_remedy(bare: Path, closed_port: int) -> None:
    (bare / "trainer.toml").write_text(TRAINER, "utf-8")
    address = f"127.0.0.1:{closed_port}"
    environment = {
        **os.environ,
        "COLUMNS": "1000",
        "SPANLOOP_BOOTSTRAP": address,
        "SPANLOOP_REGISTRY_URL": f"http://{address}",
        "SPANLOOP_CLICKHOUSE_URL": f"http://{address}",
    }
    children = {
        command: subprocess.Popen(
            [sys.executable, "-m", "spanloop", command, *arguments],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            env=environment,
            cwd=bare,
            text=True,
        )
        for command, arguments in NEED_A_BROKER.items()
    }
    deadline = time.monotonic() + DEADLINE_S
    try:
        for command, child in children.items():
            _, said = child.communicate(timeout=max(0.1, deadline - time.monotonic()))
            assert child.returncode == 1, command
            last = said.splitlines()[-1]
            assert last.startswith(f"Unavailable: no Kafka broker answers at {address} within 5 s"), said
            assert "`spanloop up` starts an embedded one" in last
            assert "Traceback" not in said, command
    finally:
        for child in children.values():
            child.kill()
            child.wait()


@pytest.mark.parametrize("arguments", ASK_A_BROKER, ids=" ".join)
@pytest.mark.usefixtures("bare")
def test_without_a_broker_every_question_names_its_address_and_a_remedy(  # UX-1
    arguments: list[str], closed_port: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(cli, "BROKER_PATIENCE_S", 0.2)
    address = f"127.0.0.1:{closed_port}"
    said = refused(monkeypatch, capsys, "--bootstrap", address, "--registry-url", f"http://{address}", *arguments)
    assert f"Unavailable: no Kafka broker answers at {address} within 0.2 s" in said
    assert "`spanloop up` starts an embedded one" in said


def test_every_command_is_known_to_need_a_broker_or_not() -> None:
    without = {"demo", "doctor", "show", "sql", "topics", "up", "version"}
    assert sorted(without | NEED_A_BROKER.keys() | {arguments[0] for arguments in ASK_A_BROKER}) == COMMANDS


def test_the_wait_for_a_broker_leaves_time_to_say_so_within_ten_seconds() -> None:  # UX-1
    assert cli.BROKER_PATIENCE_S <= 6
