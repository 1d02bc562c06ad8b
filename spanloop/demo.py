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

import random
import signal
import time
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console
from rich.text import Text

from spanloop.demo_parts import Plan, Running
from spanloop.demo_report import finish
from spanloop.demo_view import Monitor, View
from spanloop.infra.producer import Producer
from spanloop.infra.real_kafka import free_port
from spanloop.infra.settings import Settings
from spanloop.infra.stack import EmbeddedStack
from spanloop.schemas import ids
from spanloop.schemas.errors import ConfigError
from spanloop.schemas.records import Limits, Task
from spanloop.trainer import tiny
from spanloop.trainer.config import TrainerConfig

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
# Ctrl-C promises an end within five seconds; what the sink has not written by then is in the export.
INTERRUPTED_PATIENCE_S = 1.5


@dataclass(frozen=True, slots=True, kw_only=True)
class DemoConfig:
    """What the demo was asked for."""

    seed: int = 0
    rollouts: int = 3584
    warm_steps: int = 300
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

    Ctrl-C stops it cleanly, with everything flushed and the folder readable, and the status is that of SIGINT.
    """
    home = (config.home or Path("runs") / time.strftime("demo-%Y%m%d-%H%M%S")).absolute()
    check_fresh(home)
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    console = Console(markup=False, emoji=False)
    home.mkdir(parents=True, exist_ok=True)
    console.print(Text.assemble(("spanloop demo", "bold"), f", seed {config.seed}; everything stays in {home}"))
    with ExitStack() as stack:
        settings, monitor, interrupted = train(config, home, console, stack)
        finish(config, home, settings, monitor, console, interrupted=interrupted)
    return 128 + signal.SIGINT if interrupted else 0


def check_fresh(home: Path) -> None:
    """A run cannot go on once its log is gone, and a second one would write over it. Raises ConfigError."""
    for name in ("topics", "trainer"):
        if (home / name).exists():
            raise ConfigError(f"{home} holds an earlier run ({name}/): choose another home (--home) or remove this one")


def train(config: DemoConfig, home: Path, console: Console, stack: ExitStack) -> tuple[Settings, Monitor, bool]:
    """The loop, from a fresh policy to the last step. Returns the settings, what was seen, and whether it was cut."""
    with console.status("starting broker, registry and ClickHouse"):
        services = stack.enter_context(EmbeddedStack(home, kafka=config.kafka))
    with console.status(f"making a policy and warming it up on half-right demonstrations ({config.warm_steps} steps)"):
        policy = home / "policy"
        tiny.make_policy(policy, config.seed)
        tiny.warm_start(policy, config.seed, steps=config.warm_steps)
    port = free_port()
    settings = services.settings.with_(gateway_url=f"http://127.0.0.1:{port}")
    trainer = trainer_config(config, home)
    monitor = Monitor(settings, RUN)
    stack.callback(monitor.close)
    plan = Plan(
        settings=settings,
        trainer=trainer,
        agent=AGENT,
        slots=SLOTS,
        seed=config.seed,
        frozen=config.control == "frozen",
        gateway_port=port,
        home=home,
    )
    interrupted = False
    with Running(plan, processes=config.processes) as parts:
        enqueue(settings, config)
        try:
            watch(parts, monitor, console, trainer.total_steps * GROUPS_PER_BATCH)
        except KeyboardInterrupt:
            console.print("interrupted: flushing")
            interrupted = True
        parts.stop_writing()
        if not monitor.wait_for_sink(INTERRUPTED_PATIENCE_S if interrupted else SINK_PATIENCE_S):
            console.print("ClickHouse does not hold everything yet; the exported topics do", style="yellow")
    return settings, monitor, interrupted


def watch(parts: Running, monitor: Monitor, console: Console, groups: int) -> None:
    """Shows the run until the trainer has decided on so many groups. Raises PartFailed, DataLost."""
    with View(console, monitor, total=groups * GROUP_SIZE) as view:
        while monitor.groups_closed < groups:
            parts.check()
            monitor.check()
            view.update()
            time.sleep(POLL_S)


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
