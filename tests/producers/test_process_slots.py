import os
import signal
import subprocess
import sys
import threading
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

import pytest
import slot_agents
from sdk import Bench, bench
from waiting import gone, until

from spanloop.producers import rollout
from spanloop.producers.agent import spec_of
from spanloop.producers.process_slots import ProcessSlots
from spanloop.producers.slot_child import told
from spanloop.schemas.errors import ConfigError, Unavailable

FILE = Path(slot_agents.__file__)


@contextmanager
def processes(name: str = "agent", *, slots: int = 1, recycle: int = 0) -> Generator[Bench]:
    places = ProcessSlots(f"{FILE}:{name}", slots, recycle=recycle)
    places.wait_ready(threading.Event())
    with bench(None, slots=slots, places=places) as b:
        yield b


def messages(b: Bench, n: int) -> list[str]:
    """What the agent of attempt n said."""
    spans = [s for batch in b.sender.batches if batch.attempt_id == f"at-{n}" for s in batch.spans]
    return [str(s.attributes) for s in sorted(spans, key=lambda s: s.sequence) if s.name == "spanloop.message"]


def pid_of(b: Bench, n: int) -> int:
    until(lambda: messages(b, n))
    return int(messages(b, n)[0].split('"')[3 if "body" in messages(b, n)[0].split('"')[1] else 7].split()[0])


def test_an_agent_in_a_process_of_its_own_leaves_the_same_records() -> None:
    with processes() as b:
        b.accept(1)
        end = b.end(1)
        assert (end.status, end.span_count, end.reward_count, end.final) == ("succeeded", 2, 2, True)
        message, root = b.sender.spans
        assert "ro-1 ro-1/at-1" in message.attributes
        assert (root.name, root.parent_span_id, message.parent_span_id) == ("agent", None, root.span_id)
        assert pid_of(b, 1) != os.getpid()
        assert [(r.name, r.value) for r in b.sender.rewards] == [("style", 0.5), ("reward", 1.0)]
        sequences = [e.sequence for e in (message, *b.sender.rewards, root)]
        assert sequences == sorted(set(sequences))


@pytest.mark.parametrize(
    ("how", "reason"),
    [
        ("exit 3", "exited with status 3"),
        (f"signal {int(signal.SIGSEGV)}", "was killed by signal 11 (SIGSEGV)"),
        (f"signal {int(signal.SIGKILL)}", "was killed by signal 9 (SIGKILL; was it out of memory?)"),
    ],
)
def test_an_agent_that_takes_its_process_down_costs_its_attempt_and_nothing_it_had_said(how: str, reason: str) -> None:
    with processes() as b:
        b.accept(1, task_input=how)
        end = b.end(1)
        assert (end.status, end.failure_class, end.error_type) == ("failed", "infra", "process_died")
        assert end.reason == f"the agent's process {reason} in the middle of the attempt"
        assert len(messages(b, 1)) == 1
        b.accept(2)
        until(lambda: b.attempts.tick() or b.sender.end_of("at-2"))
        assert b.end(2).status == "succeeded"
        assert pid_of(b, 2) != pid_of(b, 1)


def test_an_exception_reaches_the_root_span() -> None:
    with processes() as b:
        b.accept(1, task_input="raise")
        assert (b.end(1).status, b.end(1).failure_class, b.end(1).reason) == ("failed", "agent", "ValueError: boo")
        assert "exception.stacktrace" in b.sender.spans[-1].attributes


def test_what_is_no_number_is_the_agents_failure_and_costs_no_process() -> None:
    with processes() as b:
        b.accept(1, task_input="huge")
        end = b.end(1)
        assert (end.status, end.failure_class, end.error_type) == ("failed", "agent", "TypeError")
        b.accept(2)
        assert b.end(2).status == "succeeded"
        assert pid_of(b, 1) == pid_of(b, 2)


def test_a_process_that_does_not_take_its_order_is_ended_and_the_worker_goes_on() -> None:
    with processes() as b:
        b.accept(1)
        b.end(1)
        os.kill(pid_of(b, 1), signal.SIGSTOP)
        b.accept(2, task_input="x" * (1 << 20))  # more than a socket holds
        assert b.end(2).status == "returned"
        b.accept(3)
        until(lambda: b.attempts.tick() or b.sender.end_of("at-3"))
        assert b.end(3).status == "succeeded"


@pytest.mark.parametrize("how", ["sleep", "stubborn", "hold 60"])
def test_a_runaway_agent_is_ended_at_its_deadline_by_force_if_need_be(how: str) -> None:
    with processes() as b:
        b.accept(1, task_input=how)
        pid = pid_of(b, 1)
        b.clock.advance(10.1)
        b.attempts.tick()
        assert (b.end(1).status, b.end(1).failure_class) == ("timeout", "agent")
        until(lambda: b.attempts.tick() or gone(pid))
        b.accept(2)
        until(lambda: b.attempts.tick() or b.sender.end_of("at-2"))
        assert b.end(2).status == "succeeded"
    assert len(messages(b, 1)) == 1


def test_a_cancelled_agent_is_ended() -> None:
    with processes("asynchronous") as b:
        b.accept(1, task_input="sleep")
        pid = pid_of(b, 1)
        b.attempts.cancel("at-1", "by hand")
        assert b.end(1).status == "cancelled"
        until(lambda: gone(pid))


def test_what_an_agent_started_ends_with_it() -> None:
    with processes() as b:
        b.accept(1, task_input="leave")
        assert b.end(1).failure_class == "infra"
        left = int(messages(b, 1)[1].split("left ")[1].split('"')[0])
        until(lambda: gone(left))


def test_a_process_is_replaced_after_so_many_attempts() -> None:
    with processes(recycle=2) as b:
        for n in range(4):
            b.accept(n)
            until(lambda n=n: b.attempts.tick() or b.sender.end_of(f"at-{n}"))
        pids = [pid_of(b, n) for n in range(4)]
    assert pids[0] == pids[1] != pids[2] == pids[3]


def test_an_idle_process_that_dies_costs_nothing() -> None:
    with processes() as b:
        b.accept(1)
        b.end(1)
        os.kill(pid_of(b, 1), signal.SIGKILL)
        b.accept(2)
        until(lambda: b.attempts.tick() or b.sender.end_of("at-2"))
        assert b.end(2).status in ("succeeded", "returned")  # returned where the order was on its way: given out anew


def test_an_agent_that_cannot_be_loaded_is_an_error_that_says_why(tmp_path: Path) -> None:
    raises, dies = tmp_path / "raises.py", tmp_path / "dies.py"
    raises.write_text("raise RuntimeError('no licence')")
    dies.write_text("import os\nos._exit(7)")
    for spec, error, says in (
        (f"{FILE}:absent", ConfigError, "absent"),
        (f"{raises}:agent", ConfigError, "no licence"),
        (f"{dies}:agent", Unavailable, "exited with status 7 before it was ready, 3 times in a row"),
    ):
        places = ProcessSlots(spec, 1)
        with pytest.raises(error, match=says):
            places.wait_ready(threading.Event())
        places.close(1.0)


ORPHAN = """
import sys, threading, time
from spanloop.producers.agent import Job
from spanloop.producers.context import Scope
from spanloop.producers.llm import LLM
from spanloop.producers.process_slots import ProcessSlots
from spanloop.producers.recording import Recorded
from spanloop.producers.work import Work
from spanloop.schemas.records import Assignment, Task
slots = ProcessSlots(sys.argv[1], 1)
slots.wait_ready(threading.Event())
slots.claim("at-1")
task, seen = Task("ro-1", "run-1", input='"hold 60"'), Recorded("ro-1", "at-1")
job = Job(Assignment("wo-1", "at-1", task=task), task, LLM("http://g"))
slots.start(Work(job, Scope("ro-1", "at-1", "p", seen), ""), print)
while not seen.spans:
    time.sleep(0.01)
print(seen.spans[0].attributes, flush=True)
time.sleep(3600)
"""


def test_no_process_outlives_a_worker_that_is_killed_even_while_the_agent_holds_the_interpreter() -> None:
    worker = subprocess.Popen([sys.executable, "-c", ORPHAN, f"{FILE}:agent"], stdout=subprocess.PIPE, text=True)
    assert worker.stdout is not None
    with worker.stdout as out:
        pid = int("".join(c if c.isdigit() else " " for c in out.readline()).split()[0])
        assert not gone(pid)
        worker.kill()
        worker.wait()
    until(lambda: gone(pid))


def test_an_agent_is_named_so_that_another_process_finds_it() -> None:
    assert spec_of(slot_agents.agent) == "slot_agents:agent"

    @rollout
    def inner(task: object) -> None:
        del task

    with pytest.raises(ConfigError, match="top of a module"):
        spec_of(inner)


@pytest.mark.parametrize(("status", "words"), [(0, "exited with status 0"), (-15, "was killed by signal 15 (SIGTERM)")])
def test_an_end_is_told_in_words(status: int, words: str) -> None:
    assert told(status) == words
