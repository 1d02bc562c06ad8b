"""Agents: what a worker runs, and `rollout`, which makes one of an ordinary function.

    @rollout
    def my_agent(task, llm):            # or (task, llm, rollout), (task, prompt_template), (task, resources), async def
        ...
        return 1.0                      # the final reward; or None, or a list of spans

Parameters are filled by name. The function stays callable as it was, for debugging by hand.
"""

from __future__ import annotations

# Before any tracer: it registers what happens after a fork, and OpenTelemetry's own after-fork work waits for its lock.
import concurrent.futures.thread  # noqa: F401 # pyright: ignore[reportUnusedImport]
import functools
import importlib
import importlib.util
import inspect
import json
import sys
import traceback
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol, cast, overload, runtime_checkable

from ..schemas.errors import ConfigError
from ..schemas.records import Assignment, Task
from ..schemas.spans import Mode
from .emit import text_of, type_of
from .llm import LLM
from .operation import yields
from .prompt import PromptTemplate

PARAMETERS = ("task", "llm", "rollout", "prompt_template", "resources")


@dataclass(frozen=True, slots=True)
class AttemptInfo:
    """Which try of a rollout this is."""

    attempt_id: str
    sequence_id: int  # 1 for the first try


@dataclass(frozen=True, slots=True)
class RolloutInfo:
    """What an agent may know of its rollout; the `rollout` parameter."""

    rollout_id: str
    attempt: AttemptInfo
    run_id: str
    input: Any  # the task, decoded from JSON
    mode: Mode
    group_id: str | None = None
    sample: int = 0  # index in the group
    data_id: str | None = None
    data_source: str | None = None
    metadata: Mapping[str, str] = field(default_factory=dict[str, str])


@dataclass(frozen=True, slots=True)
class Job:
    """One attempt as a worker hands it to an agent."""

    assignment: Assignment
    task: Task
    llm: LLM
    resources: Mapping[str, object] = field(default_factory=dict[str, object])  # name -> prompt, LLM or JSON value

    def info(self) -> RolloutInfo:
        """The `rollout` parameter."""
        task = self.task
        return RolloutInfo(
            rollout_id=task.rollout_id,
            attempt=AttemptInfo(self.assignment.attempt_id, self.assignment.attempt_number),
            run_id=task.run_id,
            input=json.loads(task.input),
            mode=task.mode,
            group_id=task.group_id,
            sample=task.sample,
            data_id=task.data_id,
            data_source=task.data_source,
            metadata=task.metadata,
        )


@runtime_checkable
class Agent(Protocol):
    """What a worker runs. `run` returns the final reward, None or a list of spans, or what gives one when awaited.

    `is_async`: it runs on an event loop, with others. What else has to be awaited gets a loop of its own.
    """

    name: str
    is_async: bool

    def run(self, job: Job) -> object:
        """Works on one attempt; an exception fails it."""
        ...


class FunctionAgent:
    """A function as an agent; calling it calls the function."""

    def __init__(self, function: Callable[..., object], name: str | None = None) -> None:
        """Raises TypeError for parameters that a worker cannot fill, and for a generator."""
        self.function = function
        self.name = name or getattr(function, "__name__", "agent")
        called = type(function).__call__  # an object's own, which may be asynchronous
        self.is_async: bool = any(map(inspect.iscoroutinefunction, (function, called)))
        if yields(function) or yields(called):
            raise TypeError(f"agent {self.name} yields, which nobody takes: it must return its reward, or None")
        self._parameters = _parameters(function)
        functools.update_wrapper(self, function)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self.function(*args, **kwargs)

    def run(self, job: Job) -> object:
        return self.function(**{name: _FILL[name](job) for name in self._parameters})


_VARIADIC = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
_BY_NAME = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)


def _parameters(function: Callable[..., object]) -> tuple[str, ...]:
    signature = inspect.signature(function)
    found = signature.parameters.values()
    known = tuple(p.name for p in found if p.name in PARAMETERS and p.kind in _BY_NAME)
    unknown = [p.name for p in found if p.name not in known and p.default is p.empty and p.kind not in _VARIADIC]
    if unknown or "task" not in known:
        raise TypeError(
            f"agent {getattr(function, '__qualname__', function)!s} must take `task` and may take "
            f"{', '.join(PARAMETERS[1:])}, each by its name; got {signature}"
        )
    return known


def _prompt(job: Job) -> PromptTemplate:
    found = [r for r in job.resources.values() if isinstance(r, PromptTemplate)]
    if not found:
        raise ConfigError(
            f"the agent takes a prompt_template, but the task pins {sorted(job.assignment.pins) or 'nothing'} "
            "and none of that is a prompt; publish one and pin it (pins={'prompt': None} = its newest version)"
        )
    return found[0]


_FILL: dict[str, Callable[[Job], object]] = {
    "task": lambda job: json.loads(job.task.input),
    "llm": lambda job: job.llm,
    "rollout": Job.info,
    "prompt_template": _prompt,
    "resources": lambda job: {"llm": job.llm, **job.resources},
}


@overload
def rollout(function: Callable[..., object], /) -> FunctionAgent: ...
@overload
def rollout(*, name: str | None = None) -> Callable[[Callable[..., object]], FunctionAgent]: ...
def rollout(function: Callable[..., object] | None = None, /, *, name: str | None = None) -> Any:
    """Makes an agent of a function: `@rollout` or `@rollout(name="…")`."""
    return FunctionAgent(function, name) if function is not None else functools.partial(FunctionAgent, name=name)


def llm_rollout(function: Callable[..., object] | None = None, /, *, strip_proxy: bool = True) -> Any:
    """`rollout` under the name that marks an agent with an `llm`; the LLM is always bound to its attempt."""
    del strip_proxy
    return rollout(function) if function is not None else rollout()


def prompt_rollout(function: Callable[..., object] | None = None, /) -> Any:
    """`rollout` under the name that marks an agent with a `prompt_template`."""
    return rollout(function) if function is not None else rollout()


def resolve(spec: str) -> Agent:
    """The agent that "package.module:name" or "path/to/file.py:name" names. Raises ConfigError saying what is wrong.

    Modules in the current folder are found, and beside a file those in its own.
    """
    module_name, _, attribute = spec.rpartition(":")
    if not module_name or not attribute:
        raise ConfigError(f"agent {spec!r} must look like package.module:name or path/to/file.py:name")
    _look_in(Path())
    try:
        module = _from_file(Path(module_name)) if module_name.endswith(".py") else importlib.import_module(module_name)
        found = functools.reduce(getattr, attribute.split("."), cast("object", module))
    except (Exception, SystemExit) as error:  # the module's code may raise anything
        raise ConfigError(f"agent {spec!r} cannot be loaded: {_told(error)}") from error
    if isinstance(found, Agent) and not inspect.isclass(found):
        return found
    if callable(found):
        try:
            return rollout(found)
        except (TypeError, ValueError) as error:
            raise ConfigError(f"agent {spec!r} cannot be run: {error}") from error
    raise ConfigError(f"agent {spec!r} is a {type(found).__name__}, expected a function or an agent")


def _told(error: BaseException) -> str:
    """What a module raised, and where."""
    if isinstance(error, (ModuleNotFoundError, FileNotFoundError)):
        return f"{text_of(error)}; is it on the Python path?"
    ours = (__file__, importlib.__file__)
    shown = [f for f in traceback.extract_tb(error.__traceback__) if f.filename[:1] not in ("", "<")]
    frames = [f for f in shown if f.filename not in ours]
    where = f", at {frames[-1].filename}:{frames[-1].lineno}" if frames else ""
    return f"{type_of(error)}: {text_of(error)}{where}"


def spec_of(agent: Agent) -> str:
    """What `resolve` finds an agent by in another process. Raises ConfigError for one that it would not find there."""
    function = agent.function if isinstance(agent, FunctionAgent) else agent
    name = getattr(function, "__qualname__", "<none>")
    module = sys.modules.get(getattr(function, "__module__", ""))
    file = getattr(module, "__file__", None)
    if module is None or "<" in name or (module.__name__ == "__main__" and file is None):
        raise ConfigError(
            f"agent {agent.name!r} cannot be found from another process: isolation process needs a function or object "
            'at the top of a module; name it ("package.module:name"), or use isolation thread'
        )
    by_name = module.__name__ != "__main__" and importlib.util.find_spec(module.__name__) is not None
    return f"{module.__name__ if by_name else file}:{name}"


def _look_in(folder: Path) -> None:
    """Lets modules of a folder be imported; a console script finds not even those of the folder it is called in."""
    if (name := str(folder.resolve())) not in sys.path:
        sys.path.append(name)


def _from_file(path: Path) -> object:
    spec = importlib.util.spec_from_file_location(path.stem, path)
    if spec is None or spec.loader is None or not path.exists():
        raise FileNotFoundError(f"no file {path}")
    _look_in(path.parent)  # for what lies beside it, as `python path` does
    module = importlib.util.module_from_spec(spec)
    sys.modules.setdefault(path.stem, module)
    spec.loader.exec_module(module)
    return module
