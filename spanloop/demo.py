"""The main job: an agent trained through the whole loop on this machine.

    tasks -> controller -> worker + agent -> gateway -> engine
                               |                          ^
                         spans, rewards               resources
                               v                          |
                           assembler -> trajectories -> trainer

Everything meets in topics: the trainer sees only `trajectories`, the engine gets weights only through `resources`, the
agent reaches the model only through the gateway.
"""

from __future__ import annotations

import logging
import os
import random
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console
from rich.text import Text

from spanloop.demo_interrupt import INTERRUPTED, SERVICES_S, SINK_S, Interrupt
from spanloop.demo_report import finish, report, save
from spanloop.demo_view import Monitor, View, waiting
from spanloop.infra.producer import Producer
from spanloop.infra.real_kafka import free_port
from spanloop.infra.stack import EmbeddedStack
from spanloop.schemas import ids
from spanloop.schemas.errors import ConfigError, SpanloopError
from spanloop.schemas.records import Limits, Task
from spanloop.trainer.config import TrainerConfig

if TYPE_CHECKING:
    from spanloop.demo_parts import Running
    from spanloop.infra.settings import Settings

RUN = "demo"
POLICY = "policy"
AGENT = f"{Path(__file__).parent.parent / 'examples' / 'lookup_agent.py'}:lookup"
GROUP_SIZE = 8
GROUPS_PER_BATCH = 8
BATCH = GROUP_SIZE * GROUPS_PER_BATCH
MAX_STALENESS = 4
# Two batches on their way while one is trained on: the trainer seldom waits and staleness stays near 2.
CREDIT = 3 * BATCH
SLOTS = 24
KEYS = "0123456789"
# Rollouts are short; an attempt that takes longer is stuck.
LIMITS = Limits(max_attempts=2, timeout_s=60.0, unresponsive_s=15.0, claim_s=10.0)
POLL_S = 0.25
SINK_PATIENCE_S = 60.0
# What says that agents are left behind: after Ctrl-C they end with this process.
SILENT = "spanloop.producers.slots", "spanloop.producers.loop_slots"
# What libraries keep for a next time, in the home folder or the temporary one unless told otherwise.
CACHES = {"MPLCONFIGDIR": "matplotlib", "TORCHINDUCTOR_CACHE_DIR": "torchinductor"}


@dataclass(frozen=True, slots=True, kw_only=True)
class DemoConfig:
    """What the demo was asked for."""

    seed: int = 0
    rollouts: int = 3584
    warm_steps: int = 900
    home: Path | None = None
    report: Path | None = None
    control: str | None = None
    processes: bool = False
    kafka: bool = False

    @property
    def steps(self) -> int:
        """Trainer steps: whole batches only."""
        return max(1, self.rollouts // BATCH)


def run_demo(config: DemoConfig) -> int:
    """Runs it, prints what came of it and writes the report; returns the exit status.

    Ctrl-C stops it within five seconds at any time, with everything flushed and the folder readable; the status is then
    that of SIGINT, and the process is to end at once. Raises ConfigError.
    """
    if config.rollouts < BATCH:
        raise ConfigError(f"--rollouts {config.rollouts}: expected at least {BATCH}, which is one batch")
    home = (config.home or Path("runs") / time.strftime("demo-%Y%m%d-%H%M%S")).absolute()
    check_fresh(home)
    console = Console(markup=False, emoji=False)
    home.mkdir(parents=True, exist_ok=True)
    console.print(Text.assemble(("spanloop demo", "bold"), f", seed {config.seed}; everything stays in {home}"))
    if (whole := config.steps * BATCH) != config.rollouts:
        console.print(f"{whole} rollouts, not {config.rollouts}: whole batches of {BATCH}")
    for variable, folder in CACHES.items():
        os.environ.setdefault(variable, str(home / "cache" / folder))
    with Interrupt() as interrupt:
        demo = Demo(config, home, console, interrupt)
        try:
            demo.run()
            demo.close()
        except BaseException:
            if interrupt.at_s is None:
                demo.close()
                raise
            demo.cut()
            return INTERRUPTED
    return 0


def check_fresh(home: Path) -> None:
    """A run cannot go on once its log is gone, and a second one would write over it. Raises ConfigError."""
    for name in ("topics", "trainer"):
        if (home / name).exists():
            raise ConfigError(f"{home} holds an earlier run ({name}/): choose another home (--home) or remove this one")


class Demo:
    """One run, from nothing to its last step."""

    def __init__(self, config: DemoConfig, home: Path, console: Console, interrupt: Interrupt) -> None:
        self._config = config
        self._home = home
        self._console = console
        self._interrupt = interrupt
        self._services: EmbeddedStack | None = None
        self._monitor: Monitor | None = None
        self._parts: Running | None = None
        self._finished = False
        interrupt.last = self._kill

    def run(self) -> None:
        """The loop, from a fresh policy to the last step, and what came of it.

        Raises PartFailed, DataLost, KeyboardInterrupt. Close it afterwards, or cut it short.
        """
        config, console = self._config, self._console
        with waiting(console, "starting broker, registry and ClickHouse"):
            self._services = EmbeddedStack(self._home, kafka=config.kafka)
        self._interrupt.check()
        steps = f"at most {config.warm_steps} steps"
        with waiting(console, f"making a policy and warming it up on half-right demonstrations ({steps})"):
            make_policy(config, self._home)
        self._interrupt.check()
        with waiting(console, "starting the parts"):
            self._start(self._services.settings)
        self._watch()
        self._flush()
        self._finish(interrupted=False)

    def cut(self) -> None:
        """What Ctrl-C leaves time for: what was written is flushed, and the report says how far it came."""
        self._console.print("interrupted: flushing")
        for name in SILENT:
            logging.getLogger(name).setLevel(logging.ERROR)
        try:
            if not self._finished:
                save(report(None, self._config, self._monitor, interrupted=True), self._config.report)
                self._flush()
                self._finish(interrupted=True)
        except (SpanloopError, OSError) as error:  # the status says it anyway
            self._console.print(f"{type(error).__name__}: {error}", style="yellow")
        self.close()

    def close(self) -> None:
        """Stops everything."""
        if self._parts is not None:
            self._parts.close()
        if self._monitor is not None:
            self._monitor.close(self._interrupt.left_s(SERVICES_S))
        if self._services is not None:
            self._services.close(self._interrupt.left_s(SERVICES_S))

    def _start(self, settings: Settings) -> None:
        from spanloop.demo_parts import Plan, Running

        config, port = self._config, free_port()
        settings = settings.with_(gateway_url=f"http://127.0.0.1:{port}")
        self._monitor = Monitor(settings, RUN)
        plan = Plan(
            settings=settings,
            trainer=trainer_config(config, self._home),
            agent=AGENT,
            slots=SLOTS,
            seed=config.seed,
            frozen=config.control == "frozen",
            gateway_port=port,
            home=self._home,
        )
        self._parts = Running(plan, self._interrupt, processes=config.processes)
        enqueue(settings, config)

    def _watch(self) -> None:
        """Shows the run until the trainer has decided on all groups. Raises PartFailed, DataLost."""
        parts, monitor, groups = self._parts, self._monitor, self._config.steps * GROUPS_PER_BATCH
        assert parts is not None
        assert monitor is not None
        with View(self._console, monitor, total=groups * GROUP_SIZE) as view:
            while monitor.groups_closed < groups:
                self._interrupt.check()
                parts.check()
                monitor.check()
                view.update()
                time.sleep(POLL_S)

    def _flush(self) -> None:
        if self._parts is None or self._monitor is None:
            return
        self._parts.stop_writing()
        left_s = self._interrupt.left_s(SINK_S)
        if not self._monitor.wait_for_sink(SINK_PATIENCE_S if left_s is None else left_s):
            self._console.print("ClickHouse does not hold everything yet; the exported topics do", style="yellow")
        self._parts.close()

    def _finish(self, *, interrupted: bool) -> None:
        settings = self._services.settings if self._services is not None else None
        finish(self._config, self._home, settings, self._monitor, self._console, interrupted=interrupted)
        self._finished = True

    def _kill(self) -> None:
        if self._parts is not None:
            self._parts.kill()
        if self._services is not None:
            self._services.kill()


def make_policy(config: DemoConfig, home: Path) -> None:
    """A policy warmed up, in the run's folder. The first use of torch, which takes seconds to import."""
    from spanloop.trainer import tiny

    policy = home / "policy"
    tiny.make_policy(policy, config.seed)
    tiny.warm_start(policy, config.seed, steps=config.warm_steps)


def trainer_config(config: DemoConfig, home: Path) -> TrainerConfig:
    """The settings that were measured to reach the goal."""
    return TrainerConfig(
        run_id=RUN,
        trainer_id=f"{RUN}-trainer",
        policy=POLICY,
        model_dir=home / "policy",
        folder=home / "trainer",
        correction="mu",
        # A trust region: with cispo this policy at this rate forgets now and then how to end an answer, for good.
        loss="ppo",
        clip=(0.8, 1.28),
        total_steps=config.steps,
        groups_per_batch=GROUPS_PER_BATCH,
        max_staleness=MAX_STALENESS,
        lr=1e-3,
        max_grad_norm=0.3,
        credit=CREDIT,
        seed=config.seed,
        advantage="shuffled" if config.control == "shuffled" else "group_mean",
    )


def enqueue(settings: Settings, config: DemoConfig) -> None:
    """Every task at once; the trainer's credit decides when each is given out."""
    choose = random.Random(config.seed)
    producer = Producer(settings, "demo-tasks")
    for _ in range(config.steps * GROUPS_PER_BATCH):
        key, group = choose.choice(KEYS), ids.group_id()
        for sample in range(GROUP_SIZE):
            producer.send(
                Task(
                    rollout_id=ids.rollout_id(),
                    run_id=RUN,
                    group_id=group,
                    sample=sample,
                    group_size=GROUP_SIZE,
                    input=f'{{"key": "{key}"}}',
                    pins={POLICY: None},
                    limits=LIMITS,
                    data_source="lookup",
                    created_ns=time.time_ns(),
                )
            )
    producer.close()
