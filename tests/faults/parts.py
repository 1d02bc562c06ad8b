"""Processes by name: started, killed, frozen, and started anew where they end by themselves, as a supervisor would."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO

from waiting import until

STOP_TIMEOUT_S = 15.0
LOOK_S = 0.2
RESTART_S = 1.0
TAIL = 3000
# Infrastructure that stays away longer than a part is patient ends it with one of these, on purpose and by name.
FORESEEN = re.compile(r"^(?:PartFailed: \S+ failed: )?(Unavailable|DeliveryFailed|Fenced|BackPressure): .*", re.M)
LAST_WORDS = 600  # characters; a message may be wrapped


@dataclass(slots=True)
class Child:
    """One process; `wanted` says whether it is to be started anew when it ends."""

    name: str
    command: Sequence[str]
    log: Path
    wanted: bool = False
    frozen: bool = False
    process: subprocess.Popen[bytes] | None = None
    output: IO[bytes] | None = None
    starts: int = 0
    began_at: int = 0  # where this life's output begins in the log
    due_s: float = 0.0

    @property
    def runs(self) -> bool:
        """Whether it is there."""
        return self.process is not None and self.process.poll() is None

    @property
    def kind(self) -> str:
        """What it is one of."""
        return self.name.partition("-")[0]

    @property
    def log_size(self) -> int:
        """Bytes it has said."""
        return self.log.stat().st_size if self.log.exists() else 0

    @property
    def number(self) -> int:
        """Its process; 0 = none yet."""
        return 0 if self.process is None else self.process.pid

    @property
    def stands(self) -> bool:
        """Whether a SIGSTOP has reached it."""
        stat = Path(f"/proc/{self.number}/stat")
        return stat.exists() and stat.read_text().rsplit(")", 1)[1].split()[0] == "T"

    def said_since(self, at: int) -> str:
        """What it said from a place in its log on."""
        if not self.log_size:
            return ""
        with self.log.open("rb") as log:
            log.seek(at)
            return log.read().decode("utf-8", "replace")

    def said(self) -> str:
        """What this life of it said last."""
        return self.said_since(self.began_at)[-TAIL:]


@dataclass(slots=True)
class Ended:
    """A process that ended without having been told to."""

    name: str
    status: int
    said: str

    @property
    def foreseen(self) -> bool:
        """Whether it gave up on infrastructure in the way it promises."""
        return self.status == 1 and FORESEEN.search(self.said[-LAST_WORDS:]) is not None

    @property
    def last_words(self) -> str:
        """For people."""
        found = FORESEEN.search(self.said[-LAST_WORDS:])
        return found[0] if found else (self.said.strip().splitlines() or ["it said nothing"])[-1]


@dataclass
class Parts:
    """All processes of a rig."""

    environment: Mapping[str, str]
    logs: Path
    say: Callable[[str], None] = lambda _: None
    children: dict[str, Child] = field(default_factory=dict[str, Child])
    ended: list[Ended] = field(default_factory=list[Ended])

    def __post_init__(self) -> None:
        self.logs.mkdir(parents=True, exist_ok=True)
        self._lock = threading.RLock()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="supervisor", daemon=True)
        self._thread.start()

    def add(self, name: str, *command: str) -> None:
        """A process that can be started; `command` follows the interpreter."""
        self.children[name] = Child(name, (sys.executable, *command), self.logs / f"{name}.log")

    def start(self, name: str) -> None:
        """Starts it, unless it runs."""
        with self._lock:
            child = self.children[name]
            self._note(child)
            child.wanted = True
            if not child.runs:
                self._start(child)

    def _start(self, child: Child) -> None:
        self._close_output(child)
        child.output = child.log.open("ab")
        child.began_at = child.log_size
        child.process = subprocess.Popen(
            child.command, stdout=child.output, stderr=subprocess.STDOUT, env={**os.environ, **self.environment},
            start_new_session=True,
        )  # fmt: skip
        child.starts += 1
        child.due_s = 0.0

    def kill9(self, name: str) -> None:
        """kill -9, and it stays away until it is started."""
        self._end(name, signal.SIGKILL)

    def stop(self, name: str) -> None:
        """SIGTERM, and it stays away until it is started."""
        self._end(name, signal.SIGTERM)

    def _end(self, name: str, number: signal.Signals) -> None:
        with self._lock:
            child = self.children[name]
            self._note(child)
            child.wanted = False
            process = child.process
            if process is None or process.poll() is not None:
                return
            if child.frozen and number != signal.SIGKILL:
                self.cont(name)
            process.send_signal(number)
        try:
            process.wait(STOP_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            self.ended.append(Ended(name, 0, f"did not stop within {STOP_TIMEOUT_S:g} s of {number.name}"))
            process.kill()
            process.wait()
        child.frozen = False

    def freeze(self, name: str) -> None:
        """SIGSTOP; returns when it stands. Raises TimeoutError where it does not run."""
        self._signal(name, signal.SIGSTOP, frozen=True)
        until(lambda: self.children[name].stands, f"{name} to stand still", STOP_TIMEOUT_S)

    def cont(self, name: str) -> None:
        """SIGCONT."""
        self._signal(name, signal.SIGCONT, frozen=False)

    def _signal(self, name: str, number: signal.Signals, *, frozen: bool) -> None:
        child = self.children[name]
        if child.process is not None and child.runs:
            child.process.send_signal(number)
            child.frozen = frozen

    def running(self) -> list[str]:
        """Who is to be there and is."""
        return [c.name for c in self.children.values() if c.wanted and c.runs and not c.frozen]

    def crashes(self) -> list[str]:
        """Those that ended for a reason that no part promises."""
        return [f"{e.name} ended with status {e.status}: {e.said}" for e in self.ended if not e.foreseen]

    def close(self) -> None:
        """Ends all, side by side."""
        self._stop.set()
        self._thread.join(STOP_TIMEOUT_S)
        left = [c for c in self.children.values() if c.runs]
        for child in left:
            self.cont(child.name)
            assert child.process is not None
            child.process.terminate()
        deadline = time.monotonic() + STOP_TIMEOUT_S
        for child in left:
            assert child.process is not None
            try:
                child.process.wait(max(0.1, deadline - time.monotonic()))
            except subprocess.TimeoutExpired:
                child.process.kill()
                child.process.wait()
        for child in self.children.values():
            self._close_output(child)

    def _watch(self) -> None:
        while not self._stop.wait(LOOK_S):
            with self._lock:
                for child in self.children.values():
                    self._look(child)

    def _look(self, child: Child) -> None:
        self._note(child)
        if child.wanted and child.due_s and time.monotonic() >= child.due_s:
            self._start(child)

    def _note(self, child: Child) -> None:
        """Tells of a death that nobody wanted, once; whoever starts it or sends it away may come first to see it."""
        if not child.wanted or child.due_s or child.process is None or child.runs:
            return
        child.due_s = time.monotonic() + RESTART_S
        ended = Ended(child.name, child.process.returncode, child.said())
        self.ended.append(ended)
        self.say(f"{child.name} ended with status {ended.status}: {ended.last_words}")

    def _close_output(self, child: Child) -> None:
        if child.output is not None:
            child.output.close()
            child.output = None
