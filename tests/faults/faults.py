"""The faults, by name: how each is done and undone. Tests and the chaos run take them from here."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from . import feeding, harms
from .harms import Harm, back, frozen, kill, replaced, start, thawed
from .rig import Rig

Kind = Literal["kill", "freeze", "broker", "clickhouse", "registry", "input", "producer"]
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
    harm: Harm
    mend: Harm = nothing
    hold_s: float = 3.0  # seconds between the two
    full_s: float | None = None  # where nobody is in a hurry
    full_harm: Harm | None = None  # the same
    nodes: int = 1  # brokers that it needs
    touches: str = ""  # further parts that it starts, ends or cuts off, beside those in its name

    @property
    def parts(self) -> frozenset[str]:
        """What no other fault may touch at the same time."""
        return frozenset(self.name.split("_")) & PARTS | frozenset(self.touches.split())

    def run(self, rig: Rig, *, full: bool = False) -> None:
        """Does it, waits, undoes it."""
        try:
            (self.full_harm if full and self.full_harm is not None else self.harm)(rig)
            rig.hold(self.full_s if full and self.full_s is not None else self.hold_s)
        finally:
            self.mend(rig)


FAULTS: tuple[Fault, ...] = (
    Fault("controller_killed", "kill", kill("controller-a"), start("controller-a")),
    Fault("controller_replaced", "kill", replaced("controller-a", "controller-b"), back("controller-a", "controller-b"),
          hold_s=2.0),
    Fault("assembler_replaced", "kill", replaced("assembler-a", "assembler-c"), back("assembler-a", "assembler-c"),
          hold_s=2.0),
    Fault("worker_killed", "kill", harms.worker_killed, start("worker-a")),
    Fault("gateway_killed", "kill", harms.gateway_killed, start("gateway")),
    Fault("sink_killed", "kill", harms.sink_killed, start("sink-a"), touches="clickhouse"),
    Fault("trainer_killed", "kill", kill("trainer"), start("trainer")),
    Fault("worker_frozen", "freeze", harms.worker_frozen, thawed("worker-a"), hold_s=2.0),
    Fault("controller_frozen", "freeze", frozen("controller-a", "controller-b"), thawed("controller-a", "controller-b"),
          hold_s=2.0),
    Fault("assembler_frozen", "freeze", frozen("assembler-a"), thawed("assembler-a"), hold_s=2.0),
    Fault("sink_frozen", "freeze", frozen("sink-a", "sink-b"), thawed("sink-a", "sink-b"), hold_s=2.0),
    Fault("broker_restarted", "broker", lambda rig: rig.kafka.stop(), lambda rig: rig.kafka.start(), hold_s=1.0),
    Fault("broker_killed", "broker", lambda rig: rig.kafka.kill(), lambda rig: rig.kafka.start(), hold_s=1.0),
    Fault("broker_frozen", "broker", lambda rig: rig.kafka.pause(), lambda rig: rig.kafka.resume(), hold_s=8.0),
    Fault("one_of_three_brokers_killed", "broker", lambda rig: rig.kafka.kill(2), lambda rig: rig.kafka.start(2),
          hold_s=10.0, nodes=3, touches="broker"),
    Fault("clickhouse_away", "clickhouse", lambda rig: rig.clickhouse.shut(), harms.clickhouse_back,
          hold_s=10.0, full_s=60.0),
    Fault("slow_disk", "clickhouse", lambda rig: rig.clickhouse.throttle(SLOW_BYTES_PER_S),
          harms.fast_disk, hold_s=10.0, touches="clickhouse"),
    Fault("registry_away_at_start", "registry", harms.registry_away_at_start, harms.registry_back,
          hold_s=2.0, touches="controller assembler gateway worker sink"),
    Fault("registry_away", "registry", harms.registry_away_for_a_new_schema, harms.registry_back),
    Fault("poison", "input", feeding.poison, hold_s=1.0,
          full_harm=feeding.poison_among_thousands),
    Fault("outsized", "input", feeding.outsized, hold_s=1.0),
    Fault("duplicate_producers", "producer", feeding.twice, feeding.once, hold_s=5.0),
    Fault("clocks_off", "producer", harms.wrong_clocks, harms.right_clocks, hold_s=12.0, touches="worker"),
    Fault("rebalance_storm", "kill", harms.storm, hold_s=1.0, touches="assembler sink"),
)  # fmt: skip
BY_NAME = {fault.name: fault for fault in FAULTS}
