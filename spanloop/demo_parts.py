"""Starts the demo's parts: as threads beside an engine and a gateway process, or each as a process of its own."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from types import TracebackType

from spanloop.consumers.export import ExportService
from spanloop.consumers.sink import SinkService
from spanloop.infra.engine_process import EngineProcess
from spanloop.infra.settings import Settings
from spanloop.parts import Processes, Threads
from spanloop.producers.agent import resolve
from spanloop.producers.worker import WorkerService
from spanloop.streams.app import AssemblerService
from spanloop.streams.controller_shell import ControllerService
from spanloop.trainer.config import TrainerConfig
from spanloop.trainer.loader import LoaderService
from spanloop.trainer.loop import TrainerService


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What to start."""

    settings: Settings
    trainer: TrainerConfig
    agent: str
    slots: int
    seed: int
    frozen: bool
    gateway_port: int
    home: Path


class Running:
    """The parts of a running demo; closes them all, those that write before those that read."""

    def __init__(self, plan: Plan, *, processes: bool) -> None:
        self._processes = Processes(plan.settings, plan.home / "logs")
        self._threads = Threads()
        self._engine: EngineProcess | None = None
        try:
            self._processes.start("gateway", ["gateway", "--port", str(plan.gateway_port)])
            self._threads.start("export", ExportService(plan.settings, plan.home / "topics"))
            if processes:
                self._start_processes(plan)
            else:
                self._start_threads(plan)
        except BaseException:
            self.close()
            raise

    def _start_threads(self, plan: Plan) -> None:
        settings, policy = plan.settings, plan.trainer.policy
        self._engine = EngineProcess(
            plan.trainer.model_dir, served_model_name=policy, frozen=plan.frozen, seed=plan.seed
        )
        self._threads.start("sink", SinkService(settings))
        self._threads.start("controller", ControllerService(settings))
        self._threads.start("assembler", AssemblerService(settings))
        self._threads.start("trainer", TrainerService(settings, plan.trainer))
        self._threads.start("loader", LoaderService(settings, self._engine.url, policy, verify=not plan.frozen))
        self._threads.start("worker", WorkerService(settings, resolve(plan.agent), slots=plan.slots, name="demo"))

    def _start_processes(self, plan: Plan) -> None:
        config = plan.home / "trainer.toml"
        config.write_text(as_toml(plan.trainer), "utf-8")
        engine = ["engine", "--policy", plan.trainer.policy, "--model", str(plan.trainer.model_dir)]
        engine += ["--seed", str(plan.seed), *(["--frozen"] if plan.frozen else [])]
        self._processes.start("sink", ["sink"])
        self._processes.start("controller", ["streams", "--only", "controller"])
        self._processes.start("assembler", ["streams", "--only", "assembler"])
        self._processes.start("trainer", ["train", str(config)])
        self._processes.start("engine", engine)
        self._processes.start("worker", ["worker", plan.agent, "--slots", str(plan.slots), "--name", "demo"])

    def check(self) -> None:
        """Raises PartFailed once any part has ended by itself."""
        self._threads.check()
        self._processes.check()

    def close(self) -> None:
        """Stops everything within seconds."""
        self._threads.close()
        self._processes.close()
        if self._engine is not None:
            self._engine.close()

    def __enter__(self) -> Running:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def as_toml(config: TrainerConfig) -> str:
    """A trainer's configuration as the TOML file that `spanloop train` reads; fields that are None are left out."""
    values = {f.name: getattr(config, f.name) for f in dataclasses.fields(config)}
    plain = {k: str(v) if isinstance(v, Path) else v for k, v in values.items() if v is not None}
    return "".join(f"{name} = {json.dumps(value)}\n" for name, value in plain.items())
