"""What is seen of a run while it goes on: read from the topics, like anybody could."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Generator
from contextlib import contextmanager, suppress
from types import TracebackType

from rich.console import Console, Group
from rich.live import Live
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.status import Status
from rich.text import Text

from spanloop.infra.groups import GROUPS
from spanloop.infra.kafka import Reader
from spanloop.infra.lag import Lag
from spanloop.infra.registry import connect
from spanloop.infra.settings import Settings
from spanloop.schemas.errors import SpanloopError, Unavailable
from spanloop.schemas.records import Decision, Resource, Trajectory
from spanloop.schemas.serde import Decoder
from spanloop.schemas.topics import DEAD_LETTERS, DECISIONS, RESOURCES, TRAJECTORIES

WINDOW = 100
LAG_EVERY_S = 2.0
STOP_TIMEOUT_S = 5.0


class Monitor:
    """Follows a run's topics in a thread of its own."""

    def __init__(self, settings: Settings, run_id: str) -> None:
        self._run_id = run_id
        self._registry = connect(settings)
        self._decoder = Decoder(self._registry)
        self._reader = Reader(settings, "demo-monitor")
        self._reader.assign_topics([TRAJECTORIES, DECISIONS, RESOURCES, DEAD_LETTERS])
        self._lags = {name: Lag(settings, name, topics) for name, topics in GROUPS.items()}
        self._stop = threading.Event()
        self._failure: SpanloopError | None = None
        self._seen: set[str] = set()
        self.started = time.monotonic()
        self.rewards: deque[float] = deque(maxlen=WINDOW)
        self.rollouts = 0
        self.groups_closed = 0
        self.version = 0
        self.staleness = 0
        self.dead_letters = 0
        self.lag: dict[str, int] = dict.fromkeys(GROUPS, 0)
        self.max_lag: dict[str, int] = dict.fromkeys(GROUPS, 0)
        self._threads = [threading.Thread(target=work, daemon=True) for work in (self._follow, self._measure)]
        for thread in self._threads:
            thread.start()

    @property
    def reward(self) -> float | None:
        """Mean reward of the last hundred train rollouts."""
        return sum(self.rewards) / len(self.rewards) if self.rewards else None

    def check(self) -> None:
        """Raises what ended the following: the run's end would never be seen."""
        if self._failure is not None:
            raise self._failure

    def wait_for_sink(self, patience_s: float) -> bool:
        """Waits until ClickHouse holds all that was written before nobody wrote any more; False = it took too long."""
        deadline = time.monotonic() + patience_s
        while self._lags["sink"].records():
            if time.monotonic() > deadline:
                return False
            time.sleep(0.1)
        return True

    def close(self, within_s: float | None = None) -> None:
        """Stops following. What has not stopped `within_s` is left to end with this process."""
        self._stop.set()
        deadline = time.monotonic() + (STOP_TIMEOUT_S if within_s is None else within_s)
        for thread in self._threads:
            thread.join(max(0.0, deadline - time.monotonic()))
        if any(thread.is_alive() for thread in self._threads):
            return
        self._reader.close()
        self._registry.close()
        for lag in self._lags.values():
            lag.close()

    def _follow(self) -> None:
        try:
            while not self._stop.is_set():
                for m in self._reader.poll(timeout_s=0.2):
                    if m.topic == DEAD_LETTERS.name:
                        self.dead_letters += 1
                    elif m.value is not None:
                        self._take(m.topic, m.value)
        except SpanloopError as error:
            self._failure = error

    def _take(self, topic: str, value: bytes) -> None:
        if topic == TRAJECTORIES.name:
            self._trajectory(self._decoder.decode(Trajectory, value))
        elif topic == RESOURCES.name:
            self.version = max(self.version, self._decoder.decode(Resource, value).version)
        else:
            decision = self._decoder.decode(Decision, value)
            self.groups_closed += 1
            if decision.min_version is not None:
                self.staleness = max(0, self.version - 1 - decision.min_version)

    def _trajectory(self, trajectory: Trajectory) -> None:
        if trajectory.context.run_id != self._run_id or not trajectory.final or trajectory.rollout_id in self._seen:
            return
        self._seen.add(trajectory.rollout_id)
        self.rollouts += 1
        if trajectory.final_reward is not None:
            self.rewards.append(trajectory.final_reward)

    def _measure(self) -> None:
        while not self._stop.wait(LAG_EVERY_S):
            for name, lag in self._lags.items():
                try:
                    self.lag[name] = lag.records()
                except Unavailable:  # a figure for people: the next one comes soon
                    continue
                self.max_lag[name] = max(self.max_lag[name], self.lag[name])


class View:
    """The live lines: a progress bar, and the figures under it."""

    def __init__(self, console: Console, monitor: Monitor, total: int) -> None:
        self._console = console
        self._monitor = monitor
        self._progress = Progress(
            TextColumn("rollouts"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(), console=console
        )
        self._task = self._progress.add_task("rollouts", total=total)
        self._live = Live(self._lines(), console=console, refresh_per_second=4)

    def update(self) -> None:
        """Shows the newest figures."""
        self._progress.update(self._task, completed=self._monitor.rollouts)
        self._live.update(self._lines())

    def _lines(self) -> Group:
        m = self._monitor
        reward = "–" if m.reward is None else f"{m.reward:.3f}"
        rate = m.rollouts / max(1e-9, time.monotonic() - m.started)
        lag = " ".join(f"{name} {behind}" for name, behind in m.lag.items())
        figures = (
            f"reward (last {WINDOW}) {reward}   policy version {m.version}   staleness {m.staleness}   "
            f"{rate:.1f} rollouts/s   lag: {lag}"
        )
        return Group(self._progress, Text(figures))

    def __enter__(self) -> View:
        try:
            self._live.start(refresh=True)
        except BaseException:
            stop(self._console, self._live)
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.update()
        stop(self._console, self._live)
        if not self._console.is_terminal:  # there the last lines have no end
            self._console.line()


@contextmanager
def waiting(console: Console, what: str) -> Generator[None]:
    """A spinner for as long as something takes."""
    status = console.status(what)
    try:
        status.start()
        yield
    finally:
        stop(console, status)


def stop(console: Console, shown: Live | Status) -> None:
    """Leaves the terminal as it was, also where what is shown was cut short while it started."""
    with suppress(IndexError):  # it had not taken its place among what is live
        shown.stop()
    console.show_cursor(True)
