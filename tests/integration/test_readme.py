"""The README's own agent, from its first file to its last command."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from waiting import until

from spanloop.infra.real_kafka import free_port
from spanloop.infra.stack import FOR_SHELLS
from spanloop.trainer import tiny

README = Path(__file__).parents[2] / "README.md"
STACK = Path("runs/up") / FOR_SHELLS


def blocks(kind: str) -> list[str]:
    """The code blocks of a language, in order; "" = those without one."""
    return [
        body
        for name, body in re.findall(r"^```(\w*)\n(.*?)^```$", README.read_text("utf-8"), re.M | re.S)
        if name == kind
    ]


class Terminals:
    """Runs commands in a folder, each as in a terminal of its own; what they say goes to files."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._port = free_port()
        self._running: list[subprocess.Popen[bytes]] = []

    def open(self, command: str) -> subprocess.Popen[bytes]:
        if command == "spanloop gateway":  # its usual port may be taken on this machine
            command += f" --port {self._port}"
        with (self._folder / f"{len(self._running)}.log").open("wb") as told:
            child = subprocess.Popen(
                ["sh", "-c", f"[ ! -f {STACK} ] || . {STACK}; exec {command}"],
                cwd=self._folder, stdout=told, stderr=subprocess.STDOUT, env=self._environment(),
            )  # fmt: skip
        self._running.append(child)
        return child

    def asked(self, query: str) -> list[dict[str, Any]]:
        """The rows that a query of `spanloop sql` gives."""
        command = ["sh", "-c", f". {STACK}; exec {query} --format json"]
        done = subprocess.run(
            command, cwd=self._folder, capture_output=True, text=True, check=True, env=self._environment()
        )
        return json.loads(done.stdout)

    def said(self) -> str:
        return "\n".join(f"{f.name}: {f.read_text()[-1500:]}" for f in sorted(self._folder.glob("*.log")))

    def close(self) -> None:
        for child in reversed(self._running):
            child.send_signal(signal.SIGTERM)
            child.wait(60)

    def _environment(self) -> dict[str, str]:
        kept = {name: value for name, value in os.environ.items() if not name.startswith("SPANLOOP_")}
        path = os.pathsep.join((str(Path(sys.executable).parent), kept["PATH"]))
        return kept | {"PATH": path, "SPANLOOP_GATEWAY_URL": f"http://127.0.0.1:{self._port}"}


@pytest.fixture
def terminals(tmp_path: Path) -> Iterator[Terminals]:
    opened = Terminals(tmp_path)
    yield opened
    opened.close()


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_the_readmes_commands_run_its_agent_and_its_trainer(tmp_path: Path, terminals: Terminals) -> None:
    agent, tasks = blocks("python")
    for name, text in (("agent.py", agent), ("tasks.py", tasks), ("train.toml", blocks("toml")[0])):
        (tmp_path / name).write_text(text, "utf-8")
    tiny.make_policy(tmp_path / "policy", 0)
    commands = next(block for block in blocks("") if "spanloop up\n" in block)
    up, *parts, train, enqueue, ask = [line.partition(" #")[0].strip() for line in commands.splitlines()]
    terminals.open(up)
    until((tmp_path / STACK).exists, terminals.said)
    for part in parts:
        terminals.open(part)
    trainer = terminals.open(train)
    assert terminals.open(enqueue).wait(60) == 0, terminals.said()
    until(lambda: trainer.poll() is not None, terminals.said)
    assert trainer.returncode == 0, terminals.said()
    until(lambda: sum(row["count()"] for row in terminals.asked(ask)) == 16, terminals.said)
    rewarded = "select count() as n from v_trajectories where final and final_reward is not null and call_count = 1"
    assert terminals.asked(f'spanloop sql "{rewarded}"') == [{"n": 64}], terminals.said()
