"""The whole loop as real processes on a real broker, each of which can be killed, frozen, or cut off.

                             forwarders that can be shut
feeder ─▶ Kafka ◀─ controllers, assemblers, workers, gateway, trainer, sink ─▶ registry, ClickHouse
                                                    └─▶ an engine that answers slowly, in this process
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from uuid import uuid4

from waiting import until

from spanloop.infra import admin
from spanloop.infra.clickhouse import connect, migrate
from spanloop.infra.real_kafka import RealKafka, free_port
from spanloop.infra.settings import Settings

from .audit import audit
from .checked import Checked
from .diary import Diary
from .flow import RUN, Flow
from .forwarder import Forwarder
from .parts import Parts
from .reading import read
from .seen import Fed, Seen, Strike
from .slow_engine import SlowEngine

HERE = Path(__file__).parent
AGENT = f"{HERE / 'fault_agent.py'}:agent"
SLOTS = 4
CLOCK_OFF_S = 3600
GROUPS_PER_BATCH = 2
READY_S = 180.0
# A frozen worker is found out after 9 s, a dead one's claims after 6; then its attempts are run anew.
PATIENCE_S = 120.0
LOOK_S = 0.2
# What a fault waits for before it strikes or is undone; starts of processes on a busy machine are in it.
STRIKE_S = 90.0
STARTED = ("controller-a", "assembler-a", "assembler-b", "sink-a", "gateway", "worker-a", "worker-b", "trainer")


class Rig:
    """Start it, ask for groups, do harm, `settle`, `audit`. A context manager."""

    def __init__(
        self,
        kafka: RealKafka,
        settings: Settings,
        home: Path,
        *,
        rate: float,
        say: Callable[[str], None] = lambda _: None,
    ) -> None:
        """`settings`: topics made, ClickHouse known, addresses direct; `rate`: rollouts a second at most."""
        self.kafka = kafka
        self.home = home
        self.rate = rate
        self.say = say
        self.fed = Fed()
        self.registry = Forwarder(settings.registry_url)
        self.clickhouse = Forwarder(settings.clickhouse_url)
        self.engine = SlowEngine()
        self.diary = Diary(home / "diary.jsonl")
        port = free_port()
        self.settings = settings.with_(gateway_url=f"http://127.0.0.1:{port}", secret=uuid4().hex)
        through = self.settings.with_(registry_url=self.registry.url, clickhouse_url=self.clickhouse.url)
        path = os.pathsep.join(filter(None, (os.environ.get("PYTHONPATH"), str(HERE.parent))))
        environment = {**through.environment(), "FAULTS_DIARY": str(self.diary.path), "PYTHONPATH": path}
        self.parts = Parts(environment, home / "logs", say)
        self._add(port)
        self.flow = Flow(self.settings, self.fed, rate=rate)
        self.began_s = time.monotonic()

    def _add(self, port: int) -> None:
        for letter in "abcd":
            self.parts.add(f"controller-{letter}", "-m", "spanloop", "streams", "--only", "controller")
            self.parts.add(f"assembler-{letter}", "-m", "spanloop", "streams", "--only", "assembler")
            self.parts.add(f"sink-{letter}", "-m", "spanloop", "sink")
            self.parts.add(f"worker-{letter}", "-m", "spanloop", "worker", AGENT, "--slots", str(SLOTS))
        for name, seconds in (("ahead", CLOCK_OFF_S), ("behind", -CLOCK_OFF_S)):
            off = (str(HERE / "off_clock.py"), str(seconds))
            self.parts.add(f"worker-{name}", *off, "worker", AGENT, "--slots", str(SLOTS))
        upstream = ("--upstream", self.engine.url)
        self.parts.add("gateway", "-m", "spanloop", "gateway", "--port", str(port), *upstream)
        trainee = (str(self.home / "trainee"), RUN, str(GROUPS_PER_BATCH))
        self.parts.add("trainer", str(HERE / "trainee.py"), *trainee)

    def start(self) -> None:
        """Starts everything that runs from the beginning, and waits for a first group to be trained on.

        Raises TimeoutError.
        """
        for name in STARTED:
            self.parts.start(name)
        self.flow.ask(GROUPS_PER_BATCH)
        until(lambda: not self.flow.missing(), self._stuck, READY_S)

    def settle(self, patience_s: float = PATIENCE_S) -> None:
        """Waits until all that was asked for has ended and was trained on and decided.

        Raises TimeoutError naming what did not, once nothing at all has moved for so long.
        """
        missing, since = self.flow.missing(), time.monotonic()
        while missing:
            time.sleep(LOOK_S)
            now = self.flow.missing()
            if now != missing:
                missing, since = now, time.monotonic()
            elif time.monotonic() - since > patience_s:
                raise TimeoutError(f"nothing has moved for {patience_s:g} s: {self._stuck()}")

    def progress(self, rollouts: int, within_s: float = PATIENCE_S) -> None:
        """Waits until so many rollouts more have ended. Raises TimeoutError."""
        goal = self.flow.done() + rollouts
        until(lambda: self.flow.done() >= goal or not self.flow.missing(), self._stuck, within_s)

    def wait(self, condition: Callable[[], object], what: str, within_s: float = STRIKE_S) -> None:
        """Waits while rollouts flow. Raises TimeoutError."""

        def look() -> object:
            self._go_on()
            return condition()

        until(look, lambda: f"{what}; {self._stuck()}", within_s)

    def hold(self, seconds: float) -> None:
        """Rollouts flow for so long."""
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            self._go_on()
            time.sleep(min(LOOK_S, max(0.0, end - time.monotonic())))

    def _go_on(self) -> None:
        if not self.flow.left:
            self.flow.ask(GROUPS_PER_BATCH)

    def strike(self, told: str, holds: Callable[[Seen], bool]) -> None:
        """What an audit has to find, or a fault did not do what it is there for."""
        self.fed.strikes.append(Strike(told, holds))

    def audit(self) -> list[Checked]:
        """What an audit of everything so far finds."""
        seen = read(self.settings, self.fed, self.diary)
        seen.fed.crashes = self.parts.crashes()
        return audit(seen)

    def _stuck(self) -> str:
        missing = self.flow.missing()
        said = {c.name: c.said()[-1000:] for c in self.parts.children.values() if c.process is not None}
        return (
            f"{len(missing)} of {len(self.fed.tasks)} rollouts and groups not done, such as {missing[:3]}; "
            f"running: {self.parts.running()}; logs in {self.parts.logs}: {said}"
        )

    def close(self) -> None:
        """Ends everything."""
        self.flow.close()
        for forwarder in (self.registry, self.clickhouse):
            forwarder.open()
        self.parts.close()
        self.engine.close()
        for forwarder in (self.registry, self.clickhouse):
            forwarder.close()

    def __enter__(self) -> Rig:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def prepared(settings: Settings, clickhouse_url: str) -> Settings:
    """Settings of a fresh prefix with its topics and a database of its own made."""
    settings = settings.with_(clickhouse_url=clickhouse_url, clickhouse_database=f"f_{settings.prefix}")
    admin.init(settings)
    client = connect(settings)
    migrate(client, settings.clickhouse_database)
    client.close()
    return settings


def seed_of(given: int | None) -> int:
    """The seed given, or one by chance."""
    return given if given is not None else int.from_bytes(os.urandom(4), "big")
