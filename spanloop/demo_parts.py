"""Starts the demo's parts: as threads beside an engine and a gateway process, or each as a process of its own."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from types import TracebackType

from spanloop.consumers.export import ExportService
from spanloop.consumers.sink import SinkService
from spanloop.demo_interrupt import KEEPERS_S, WRITERS_S, Interrupt
from spanloop.infra.engine_process import EngineProcess
from spanloop.infra.settings import Settings
from spanloop.parts import Processes, Threads
from spanloop.producers.worker import WorkerPolicy, WorkerService
from spanloop.schemas.errors import ConfigError
from spanloop.streams.assembler_service import AssemblerService
from spanloop.streams.controller_shell import ControllerService
from spanloop.trainer.config import TrainerConfig
from spanloop.trainer.loader import LoaderService
from spanloop.trainer.loop import TrainerService
from spanloop.trainer.step import import_verl


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
    """The parts of a running demo. Those that keep what was written (sink, export) outlive those that write."""

    def __init__(self, plan: Plan, interrupt: Interrupt, *, processes: bool) -> None:
        self._left = interrupt.left_s
        logs = plan.home / "logs"
        self._export = Threads()
        self._keepers = (Threads(), Processes(plan.settings, logs))
        self._writers = (Threads(), Processes(plan.settings, logs))
        self._engine: EngineProcess | None = None
        try:
            self._export.start("export", ExportService(plan.settings, plan.home / "topics"))
            self._writers[1].start("gateway", ["gateway", "--port", str(plan.gateway_port)])
            if processes:
                self._start_processes(plan)
            else:
                self._start_threads(plan)
        except BaseException:
            self.close()
            raise

    def _start_threads(self, plan: Plan) -> None:
        settings, policy, threads = plan.settings, plan.trainer.policy, self._writers[0]
        model = plan.trainer.model_dir
        self._engine = EngineProcess(model, served_model_name=policy, frozen=plan.frozen, seed=plan.seed)
        self._keepers[0].start("sink", SinkService(settings))
        threads.start("controller", ControllerService(settings))
        threads.start("assembler", AssemblerService(settings))
        threads.start("loader", LoaderService(settings, self._engine.url, policy, verify=not plan.frozen))
        threads.start("worker", WorkerService(settings, plan.agent, WorkerPolicy(slots=plan.slots, name="demo")))
        import_verl()  # in this thread, which Ctrl-C interrupts
        threads.start("trainer", TrainerService(settings, plan.trainer))

    def _start_processes(self, plan: Plan) -> None:
        config = plan.home / "trainer.toml"
        config.write_text(as_toml(plan.trainer), "utf-8")
        processes, model = self._writers[1], plan.trainer.model_dir
        engine = ["engine", "--policy", plan.trainer.policy, "--model", str(model), "--seed", str(plan.seed)]
        self._keepers[1].start("sink", ["sink"])
        processes.start("controller", ["streams", "--only", "controller"])
        processes.start("assembler", ["streams", "--only", "assembler"])
        processes.start("trainer", ["train", str(config)], ends=True)
        processes.start("engine", [*engine, *(["--frozen"] if plan.frozen else [])])
        processes.start("worker", ["worker", plan.agent, "--slots", str(plan.slots), "--name", "demo"])

    def check(self) -> None:
        """Raises PartFailed once any part has failed."""
        for group in (*self._writers, *self._keepers, self._export):
            group.check()

    def stop_writing(self) -> None:
        """Stops what writes to topics, so that the sink can come to their end."""
        threads, processes = self._writers
        threads.stop.set()  # all leave side by side, then each is waited for
        processes.ask()
        threads.close(self._left(WRITERS_S))
        processes.close(self._left(WRITERS_S))
        if self._engine is not None:
            self._engine.close(self._left(WRITERS_S))
            self._engine = None
        self._export.stop.set()  # it reads to the end while the sink does

    def close(self) -> None:
        """Stops everything."""
        self.stop_writing()
        threads, processes = self._keepers
        threads.stop.set()
        processes.ask()
        for group in (self._export, *self._keepers):
            group.close(self._left(KEEPERS_S))

    def kill(self) -> None:
        """Ends all processes at once; threads end with this process."""
        for processes in (self._writers[1], self._keepers[1]):
            processes.kill()
        if self._engine is not None:
            self._engine.kill()

    def __enter__(self) -> Running:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def as_toml(config: TrainerConfig) -> str:
    """A trainer's configuration as the TOML file that `spanloop train` reads.

    Fields that are None are left out, for TOML has no null. Raises ConfigError where None is not the field's default.
    """
    lines: list[str] = []
    for field in dataclasses.fields(config):
        value = getattr(config, field.name)
        if value is not None:
            plain = str(value) if isinstance(value, Path) else value
            # JSON's escapes of what is beyond the basic plane are surrogate pairs, which TOML refuses
            lines.append(f"{field.name} = {json.dumps(plain, ensure_ascii=False)}\n")
        elif field.default is not None:
            raise ConfigError(f"{field.name} is None, which a TOML file cannot say; give it a value")
    return "".join(lines)
