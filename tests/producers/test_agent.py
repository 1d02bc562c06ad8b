import asyncio
import contextlib
import functools
import json
import os
import signal
import subprocess
import sys
from collections.abc import AsyncGenerator, Awaitable, Generator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import pytest
from sdk import bench
from waiting import LIMIT_S

from spanloop.producers import (
    LLM,
    Agent,
    FunctionAgent,
    Job,
    PromptTemplate,
    RolloutInfo,
    emit_message,
    llm_rollout,
    operation,
    rollout,
)
from spanloop.producers.agent import prompt_rollout, resolve
from spanloop.schemas.errors import ConfigError
from spanloop.schemas.records import Assignment, Task

TASK = Task("ro-1", "run-1", input='{"key": "7"}', mode="val", sample=2, data_id="row-3", metadata={"a": "b"})
LLM_7 = LLM("http://g/v1", "policy", "k")
PROMPT = PromptTemplate("Q: {question}", 4)
JOB = Job(Assignment("wo-1", "at-1", attempt_number=2, task=TASK), TASK, LLM_7, {"prompt": PROMPT, "limit": 3})


def test_parameters_are_filled_by_name() -> None:
    @rollout
    def agent(
        task: object, resources: Any, rollout: RolloutInfo, prompt_template: Any, llm: Any, extra: int = 1
    ) -> Any:
        return [task, resources, rollout, prompt_template, llm, extra]

    task, resources, info, prompt, llm, extra = cast("list[Any]", agent.run(JOB))
    assert task == {"key": "7"}
    assert resources == {"llm": LLM_7, "prompt": PROMPT, "limit": 3}
    assert (info.rollout_id, info.attempt.attempt_id, info.attempt.sequence_id) == ("ro-1", "at-1", 2)
    assert (info.mode, info.sample, info.data_id, info.metadata) == ("val", 2, "row-3", {"a": "b"})
    assert (prompt, llm, extra) == (PROMPT, LLM_7, 1)


@pytest.mark.parametrize("decorator", [rollout, rollout(), rollout(name="named"), llm_rollout, llm_rollout()])
def test_a_decorated_function_is_an_agent_that_can_be_called_by_hand(decorator: Any) -> None:
    def answer(task: int, llm: object = None) -> float:
        """Answers."""
        return task * (0.5 if llm is None else 1.0)

    agent = decorator(answer)
    assert isinstance(agent, Agent)
    assert isinstance(agent, FunctionAgent)
    assert agent(4) == 2.0
    assert agent.__doc__ == "Answers."
    assert not agent.is_async


def test_a_coroutine_function_is_an_asynchronous_agent() -> None:
    @prompt_rollout
    async def agent(task: dict[str, str], prompt_template: PromptTemplate) -> str:
        return prompt_template.format(question=task["key"])

    assert agent.is_async
    assert asyncio.run(agent.run(JOB)) == "Q: 7"


@pytest.mark.parametrize("parameters", ["", "llm", "task, database", "task, *, database", "task, /", "*task", "**task"])
def test_a_parameter_that_nobody_fills_is_refused_at_once(parameters: str) -> None:
    found: dict[str, Any] = {}
    exec(f"def agent({parameters}): pass", found)
    with pytest.raises(TypeError, match="must take `task` and may take llm, rollout, prompt_template, resources"):
        rollout(found["agent"])


def test_parameters_by_name_only_and_variadic_ones_are_fine() -> None:
    def agent(*rest: object, task: dict[str, str], **more: object) -> object:
        return task, rest, more

    assert rollout(agent).run(JOB) == ({"key": "7"}, (), {})


def test_a_generator_is_refused_at_once() -> None:
    def agent(task: object) -> Generator[float]:
        del task
        yield 1.0

    async def asynchronous(task: object) -> AsyncGenerator[float]:
        del task
        yield 1.0

    for each in (agent, asynchronous, operation(agent), operation("named")(asynchronous)):
        for called in (each, functools.partial(each)):
            with pytest.raises(TypeError, match="must return its reward"):
                rollout(called)


def test_a_function_around_a_generator_is_an_agent() -> None:
    def steps(task: float) -> Generator[float]:
        yield task

    def summed(function: Any) -> Any:
        def call(task: float) -> float:
            return sum(function(task))

        return functools.update_wrapper(call, function)

    assert operation(rollout(operation(summed(operation(steps)))))(4) == 4


def test_an_object_whose_call_is_asynchronous_is_an_asynchronous_agent() -> None:
    class Mine:
        async def __call__(self, task: dict[str, str]) -> str:
            return task["key"]

    agent = rollout(Mine())
    assert agent.is_async
    assert asyncio.run(cast("Any", agent.run(JOB))) == "7"


def test_an_agent_without_its_prompt_says_what_to_pin() -> None:
    @rollout
    def agent(task: object, prompt_template: Any) -> None:
        del task, prompt_template

    with pytest.raises(ConfigError, match="none of that is a prompt; publish one and pin it"):
        agent.run(Job(JOB.assignment, TASK, LLM_7))


def test_a_spec_names_a_module_or_a_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = "from spanloop import rollout\n@rollout\ndef one(task): return 1.0\ndef plain(task): return 2.0\nn = 3\n"
    (tmp_path / "my_agent.py").write_text(source)
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    assert resolve("my_agent:one").run(JOB) == 1.0
    assert resolve(f"{tmp_path}/my_agent.py:plain").run(JOB) == 2.0
    for wrong, message in [
        ("my_agent", "must look like"),
        ("my_agent:n", "is a int"),
        ("my_agent:two", "cannot be loaded"),
        ("no_such_module:one", "cannot be loaded"),
        (f"{tmp_path}/gone.py:one", "no file"),
    ]:
        with pytest.raises(ConfigError, match=message):
            resolve(wrong)


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("def agent(task): return (", r"SyntaxError: .*broken_agent\.py, line 1"),
        ("x = 1\n1 / 0", r"ZeroDivisionError: division by zero, at .*broken_agent\.py:2"),
        ("import sys\nsys.exit(3)", r"SystemExit: 3, at .*broken_agent\.py:2"),
        ("import no_such_library", "No module named 'no_such_library'"),
        ("def agent(job): return 1.0", r"cannot be run: agent agent must take `task`.* got \(job\)"),
        ("agent = max", "cannot be run: no signature found"),
        ("exec(compile('1 / 0', '', 'exec'))", r"ZeroDivisionError: division by zero, at .*broken_agent\.py:1"),
    ],
)
def test_a_module_that_cannot_be_loaded_says_what_and_where(tmp_path: Path, source: str, message: str) -> None:
    path = tmp_path / "broken_agent.py"
    path.write_text(source)
    with pytest.raises(ConfigError, match=rf"agent '{path}:agent' .*{message}"):
        resolve(f"{path}:agent")


def test_a_relative_module_is_refused_in_words() -> None:
    with pytest.raises(ConfigError, match=r"agent '\.\.rel:f' cannot be loaded: TypeError"):
        resolve("..rel:f")


@dataclass  # which takes its hash away
class Fixed:
    reward: float

    def __call__(self, task: object) -> float:
        del task
        return self.reward


def test_an_object_without_a_hash_may_be_an_agent_and_an_operation(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys.modules[__name__], "made", Fixed(2.0), raising=False)
    assert resolve(f"{__name__}:made").run(JOB) == 2.0
    assert operation(Fixed(3.0))(None) == 3.0


def test_modules_of_the_current_folder_and_beside_a_file_are_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    here, there = tmp_path / "here", tmp_path / "there"
    for folder in (here, there):
        folder.mkdir()
    (here / "agent_from_here.py").write_text("def one(task): return 1.0\n")
    (there / "beside_it.py").write_text("REWARD = 2.0\n")
    (there / "agent_from_there.py").write_text("import beside_it\ndef two(task): return beside_it.REWARD\n")
    monkeypatch.chdir(here)
    monkeypatch.setattr(sys, "path", [entry for entry in sys.path if entry])  # as a console script has it
    assert resolve("agent_from_here:one").run(JOB) == 1.0
    assert resolve("../there/agent_from_there.py:two").run(JOB) == 2.0


def test_importing_rollout_loads_neither_a_broker_client_nor_a_tracer() -> None:
    code = (
        "from spanloop import rollout; import sys; "
        "print([m for m in ('confluent_kafka', 'opentelemetry', 'httpx', 'pydantic', 'fastavro') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork")
def test_a_child_that_an_agent_forks_lives_also_where_the_agent_has_a_tracer() -> None:
    code = (
        "import os; from spanloop import rollout; from opentelemetry.sdk.trace import TracerProvider; "
        "from opentelemetry.sdk.resources import Resource; TracerProvider(resource=Resource({})); "
        "from concurrent.futures import ThreadPoolExecutor; child = os.fork(); child or os._exit(7); "
        "print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))"
    )
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, start_new_session=True) as parent:
        try:
            assert parent.communicate(timeout=LIMIT_S)[0].strip() == b"7"
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(parent.pid, signal.SIGKILL)


def test_a_class_of_ones_own_can_be_an_agent() -> None:
    class Mine:
        name = "mine"
        is_async = True

        def run(self, job: Job) -> Awaitable[float]:
            async def work() -> float:
                return float(job.assignment.attempt_number)

            return work()

    assert isinstance(Mine(), Agent)


def test_what_is_to_be_awaited_is_awaited_whatever_the_agent_said_of_itself() -> None:
    async def work(task: object) -> float:
        emit_message(str(task))
        await asyncio.sleep(0)
        return 1.0

    @rollout
    def plain(task: object) -> object:
        return work(task)

    class Mixed:
        name, is_async = "mixed", True

        def run(self, job: Job) -> object:
            return 1.0 if json.loads(job.task.input) else work(0)

    for agent in (plain, Mixed()):
        with bench(agent) as b:
            b.accept(1, task_input=1)
            b.accept(2, task_input=0)
            assert [b.end(n).status for n in (1, 2)] == ["succeeded"] * 2
            assert [r.value for r in b.sender.rewards] == [1.0, 1.0]
            assert all(s.parent_span_id for s in b.sender.spans if s.name == "spanloop.message")
