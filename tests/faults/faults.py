"""The faults, by name: how each is done and undone. Tests and the chaos run take them from here."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from . import inputs
from .flow import LIMITS
from .rig import Rig

Kind = Literal["kill", "freeze", "broker", "clickhouse", "registry", "input", "producer"]
HALF_DONE_S = 30.0
# A group member is given up after 6 s, a worker's attempt after LIMITS.unresponsive_s.
PAST_SESSION_S = 9.0
STORMS = 3
STORM_S = 2.0
SLOW_BYTES_PER_S = 60_000.0
PARTS = frozenset(
    {"controller", "assembler", "worker", "gateway", "sink", "trainer", "clickhouse", "registry", "broker"}
)


def nothing(rig: Rig) -> None:
    """Undone by itself."""
    del rig


@dataclass(frozen=True, slots=True)
class Fault:
    """What is done to a running rig, for how long, and how it is undone."""

    name: str
    kind: Kind
    harm: Callable[[Rig], None]
    mend: Callable[[Rig], None] = nothing
    hold_s: float = 3.0  # seconds between the two
    full_s: float | None = None  # where nobody is in a hurry
    nodes: int = 1  # brokers that it needs
    touches: str = ""  # further parts that it starts, ends or cuts off, beside those in its name

    @property
    def parts(self) -> frozenset[str]:
        """What no other fault may touch at the same time."""
        return frozenset(self.name.split("_")) & PARTS | frozenset(self.touches.split())

    def run(self, rig: Rig, *, full: bool = False) -> None:
        """Does it, waits, undoes it."""
        try:
            self.harm(rig)
            time.sleep(self.full_s if full and self.full_s is not None else self.hold_s)
        finally:
            self.mend(rig)


def start(name: str) -> Callable[[Rig], None]:
    """It is there again."""
    return lambda rig: rig.parts.start(name)


def kill(name: str) -> Callable[[Rig], None]:
    """kill -9."""
    return lambda rig: rig.parts.kill9(name)


def mid_stream(name: str) -> Callable[[Rig], None]:
    """kill -9 while an agent's call is half answered."""

    def harm(rig: Rig) -> None:
        rig.engine.mid_stream.clear()
        rig.engine.mid_stream.wait(HALF_DONE_S)
        rig.parts.kill9(name)

    return harm


def between_insert_and_commit(rig: Rig) -> None:
    """The sink dies after ClickHouse stored its rows and before it heard of that."""
    rig.clickhouse.hold_answers()
    rig.clickhouse.inserted.wait(HALF_DONE_S)
    rig.parts.kill9("sink-a")
    rig.clickhouse.open()


def replaced(killed: str, by: str) -> Callable[[Rig], None]:
    """One is killed; another, which stands by or joins, has its work."""

    def harm(rig: Rig) -> None:
        rig.parts.start(by)
        rig.parts.kill9(killed)

    return harm


def back(name: str, instead_of: str) -> Callable[[Rig], None]:
    """The first one is there again and the other leaves."""

    def mend(rig: Rig) -> None:
        rig.parts.start(name)
        rig.parts.stop(instead_of)

    return mend


def frozen(name: str, by: str | None = None) -> Callable[[Rig], None]:
    """SIGSTOP; another one is there to be given its work."""

    def harm(rig: Rig) -> None:
        if by is not None:
            rig.parts.start(by)
        rig.parts.freeze(name)

    return harm


def thawed(name: str, by: str | None = None) -> Callable[[Rig], None]:
    """SIGCONT, and the other one leaves."""

    def mend(rig: Rig) -> None:
        rig.parts.cont(name)
        if by is not None:
            rig.parts.stop(by)

    return mend


def registry_away_at_start(rig: Rig) -> None:
    """Processes start and find no registry."""
    rig.registry.shut()
    for name in ("controller-a", "assembler-a", "gateway", "worker-a", "sink-a"):
        rig.parts.kill9(name)
        rig.parts.start(name)


def registry_away_for_a_new_schema(rig: Rig) -> None:
    """Records of a schema that nobody has looked up, while nobody can."""
    schema_id = inputs.newer(rig.settings)
    done = [r for r in list(rig.fed.tasks) if r in rig.flow.watch.finished]
    rig.registry.shut()
    inputs.late_rewards(rig.settings, schema_id, done[:20])


def storm(rig: Rig) -> None:
    """Members come and go."""
    for _ in range(STORMS):
        for name in ("assembler-c", "assembler-d", "sink-b"):
            rig.parts.start(name)
        time.sleep(STORM_S)
        rig.parts.kill9("assembler-c")
        for name in ("assembler-d", "sink-b"):
            rig.parts.stop(name)


def twice(rig: Rig) -> None:
    """Two producers send every task, and what was said lately is said again."""
    rig.flow.twice = True
    inputs.repeat(rig.settings)


def once(rig: Rig) -> None:
    """Only one does."""
    inputs.repeat(rig.settings)
    rig.flow.twice = False


def wrong_clocks(rig: Rig) -> None:
    """Two workers an hour ahead and an hour behind do all the work."""
    for name in ("worker-ahead", "worker-behind"):
        rig.parts.start(name)
    rig.parts.stop("worker-a")
    rig.parts.stop("worker-b")


def right_clocks(rig: Rig) -> None:
    """They leave."""
    for name in ("worker-a", "worker-b"):
        rig.parts.start(name)
    for name in ("worker-ahead", "worker-behind"):
        rig.parts.stop(name)


FAULTS: tuple[Fault, ...] = (
    Fault("controller_killed", "kill", kill("controller-a"), start("controller-a")),
    Fault("controller_replaced", "kill", replaced("controller-a", "controller-b"), back("controller-a", "controller-b"),
          hold_s=PAST_SESSION_S),
    Fault("assembler_replaced", "kill", replaced("assembler-a", "assembler-c"), back("assembler-a", "assembler-c"),
          hold_s=PAST_SESSION_S),
    Fault("worker_killed", "kill", mid_stream("worker-a"), start("worker-a")),
    Fault("gateway_killed", "kill", mid_stream("gateway"), start("gateway")),
    Fault("sink_killed", "kill", between_insert_and_commit, start("sink-a"), touches="clickhouse"),
    Fault("trainer_killed", "kill", kill("trainer"), start("trainer")),
    Fault("worker_frozen", "freeze", frozen("worker-a"), thawed("worker-a"), hold_s=LIMITS.unresponsive_s + 3),
    Fault("controller_frozen", "freeze", frozen("controller-a", "controller-b"), thawed("controller-a", "controller-b"),
          hold_s=PAST_SESSION_S),
    Fault("assembler_frozen", "freeze", frozen("assembler-a"), thawed("assembler-a"), hold_s=PAST_SESSION_S),
    Fault("sink_frozen", "freeze", frozen("sink-a", "sink-b"), thawed("sink-a", "sink-b"), hold_s=PAST_SESSION_S),
    Fault("broker_restarted", "broker", lambda rig: rig.kafka.stop(), lambda rig: rig.kafka.start(), hold_s=1.0),
    Fault("broker_killed", "broker", lambda rig: rig.kafka.kill(), lambda rig: rig.kafka.start(), hold_s=1.0),
    Fault("broker_frozen", "broker", lambda rig: rig.kafka.pause(), lambda rig: rig.kafka.resume(), hold_s=8.0),
    Fault("one_of_three_brokers_killed", "broker", lambda rig: rig.kafka.kill(2), lambda rig: rig.kafka.start(2),
          hold_s=10.0, nodes=3, touches="broker"),
    Fault("clickhouse_away", "clickhouse", lambda rig: rig.clickhouse.shut(), lambda rig: rig.clickhouse.open(),
          hold_s=10.0, full_s=60.0),
    Fault("slow_disk", "clickhouse", lambda rig: rig.clickhouse.throttle(SLOW_BYTES_PER_S),
          lambda rig: rig.clickhouse.open(), hold_s=10.0, touches="clickhouse"),
    Fault("registry_away_at_start", "registry", registry_away_at_start, lambda rig: rig.registry.open(), hold_s=6.0,
          touches="controller assembler gateway worker sink"),
    Fault("registry_away", "registry", registry_away_for_a_new_schema, lambda rig: rig.registry.open(), hold_s=6.0),
    # for long enough that a thousand messages and more lie in each topic that rollouts go through
    Fault("poison", "input", lambda rig: inputs.poison(rig.settings, rig.fed), hold_s=1.0, full_s=150.0),
    Fault("outsized", "input", lambda rig: inputs.outsized(rig.settings, rig.fed), hold_s=1.0),
    Fault("duplicate_producers", "producer", twice, once, hold_s=5.0),
    Fault("clocks_off", "producer", wrong_clocks, right_clocks, hold_s=12.0, touches="worker"),
    Fault("rebalance_storm", "kill", storm, hold_s=1.0, touches="assembler sink"),
)  # fmt: skip
BY_NAME = {fault.name: fault for fault in FAULTS}
