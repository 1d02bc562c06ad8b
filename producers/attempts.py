"""The attempts a worker holds: waiting for a slot, running, or ended and not yet acknowledged.

    accept ─▶ waiting ─ slot, resources ─▶ running ─ done, deadline, order ─▶ closing ─ acknowledged ─▶ gone

All of them are named in heartbeats, so that none is taken for lost before its end marker is in the log.
"""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from functools import partial
from typing import cast

from ..infra.clock import Clock
from ..schemas import ids
from ..schemas.records import Assignment, Task
from . import context, outcome
from .agent import Agent, Job
from .attempt_log import AttemptLog
from .context import Scope
from .emit import make_reward
from .outcome import Outcome
from .resources import Resources
from .slots import LoopSlots, ThreadSlots
from .spool import Spool

log = logging.getLogger(__name__)

# A pinned resource was published before the assignment, so it is on its way; past this it does not exist.
RESOURCE_WAIT_S = 5.0
# From an end marker to the next assignment it takes the log, the assembler and a controller's tick.
LOOP_S = 0.25
MAX_AHEAD = 16  # assignments held ready, per slot
SMOOTHING = 0.05  # weight of the newest duration in the mean


@dataclass(eq=False, slots=True)
class Waiting:
    """An assignment without a slot yet."""

    assignment: Assignment
    task: Task
    since_s: float
    expires_s: float


@dataclass(eq=False, slots=True)
class Running:
    """An attempt whose agent is at work."""

    assignment: Assignment
    task: Task
    log: AttemptLog
    scope: Scope
    start_ns: int
    start_s: float
    deadline_s: float


@dataclass(frozen=True, slots=True)
class Links:
    """How agents reach models: the gateway's URL and the key of an attempt."""

    gateway_url: str
    key: Callable[[str, str], str]  # (rollout_id, attempt_id) -> API key


class Attempts:
    """Runs an agent on accepted assignments, `slots` at once. Thread-safe."""

    def __init__(
        self,
        agent: Agent,
        spool: Spool,
        resources: Resources,
        links: Links,
        *,
        slots: int,
        clock: Clock,
        changed: Callable[[], None],
    ) -> None:
        """`changed` is called whenever a heartbeat would say something else."""
        self._agent = agent
        self._spool = spool
        self._resources = resources
        self._links = links
        self._slots = slots
        self._clock = clock
        self._changed = changed
        self._lock = threading.Lock()
        self._waiting: deque[Waiting] = deque()
        self._running: dict[str, Running] = {}
        self._closing: dict[str, None] = {}
        self._threads = ThreadSlots(self._done)
        self._loop = LoopSlots(self._done) if agent.is_async else None
        self._mean_s: float | None = None  # how long attempts take
        self.abandoned = 0  # threads left alone at a deadline or an order

    def accept(self, assignment: Assignment, task: Task, age_s: float) -> None:
        """Takes an assignment that is `age_s` old."""
        now = self._clock.steady_s()
        with self._lock:
            self._waiting.append(Waiting(assignment, task, now, now + assignment.claim_s - age_s))
        self.tick()
        self._changed()

    def cancel(self, attempt_id: str, reason: str) -> None:
        """Stops an attempt; one that is not here is ignored."""
        with self._lock:
            found = next((w for w in self._waiting if w.assignment.attempt_id == attempt_id), None)
            if found is not None:
                self._waiting.remove(found)
        if found is not None:
            self._end_unbegun(found, outcome.of_order("cancelled", reason))
        else:
            self._stop(attempt_id, outcome.of_order("cancelled", reason))

    def tick(self) -> None:
        """Starts what can start and ends what is past its deadline."""
        now = self._clock.steady_s()
        with self._lock:
            late = [key for key, r in self._running.items() if now >= r.deadline_s]
        for key in late:
            self._stop(key, outcome.of_order("timeout", "the agent was not done within timeout_s"))
        while (waiting := self._take(now)) is not None:
            self._start(waiting)

    def named(self) -> list[str]:
        """Attempt ids for the heartbeat."""
        with self._lock:
            return [*(w.assignment.attempt_id for w in self._waiting), *self._running, *self._closing]

    def ahead(self) -> int:
        """How many assignments to hold ready so that slots stay busy while the controller answers.

        What the slots get done in that time: many for short attempts, none for long ones, which would only keep others
        from another worker's free slot.
        """
        with self._lock:
            mean_s = self._mean_s
        return 0 if mean_s is None else int(self._slots * min(MAX_AHEAD, LOOP_S / max(mean_s, 1e-6)))

    def idle(self) -> bool:
        """True if no agent is at work."""
        with self._lock:
            return not self._running

    def hand_back(self, reason: str) -> None:
        """Ends all that is left as `returned`."""
        returned = outcome.of_order("returned", reason)
        with self._lock:
            waiting, self._waiting = list(self._waiting), deque()
            running = list(self._running)
        for each in waiting:
            self._end_unbegun(each, returned)
        for key in running:
            self._stop(key, returned)

    def drop_waiting(self, reason: str) -> None:
        """Hands back what has not begun, so that others can have it."""
        with self._lock:
            waiting, self._waiting = list(self._waiting), deque()
        for each in waiting:
            self._end_unbegun(each, outcome.of_order("returned", reason))

    def close(self, timeout_s: float) -> None:
        """Ends the threads that agents ran in, as far as agents let them go."""
        self._threads.close()
        if self._loop is not None:
            self._loop.close(timeout_s)

    # --- starting

    def _take(self, now: float) -> Waiting | None:
        """The next assignment to start, if there is a slot for it."""
        with self._lock:
            for _ in range(len(self._waiting)):
                if len(self._running) >= self._slots:
                    return None
                waiting = self._waiting.popleft()
                if now >= waiting.expires_s:
                    log.info("attempt %s: its claim has expired here", waiting.assignment.attempt_id)
                elif self._resources.missing(waiting.assignment.pins) and now < waiting.since_s + RESOURCE_WAIT_S:
                    self._waiting.append(waiting)
                else:
                    self._running[waiting.assignment.attempt_id] = self._begin(waiting)
                    return waiting
        return None

    def _begin(self, waiting: Waiting) -> Running:
        assignment, task = waiting.assignment, waiting.task
        attempt_log = self._spool.open(task.rollout_id, assignment.attempt_id)
        scope = Scope(
            task.rollout_id, assignment.attempt_id, self._spool.producer_id, attempt_log, root_id=ids.span_id()
        )
        now_ns, now_s = self._clock.now_ns(), self._clock.steady_s()
        return Running(assignment, task, attempt_log, scope, now_ns, now_s, now_s + task.limits.timeout_s)

    def _start(self, waiting: Waiting) -> None:
        key = waiting.assignment.attempt_id
        missing = self._resources.missing(waiting.assignment.pins)
        try:
            job = self._job(waiting)
        except ValueError as error:
            self._finish(key, Outcome("failed", None, f"a pinned resource is no JSON: {error}", "resource", "infra"))
            return
        if missing:
            self._finish(key, Outcome("failed", None, f"no resource {', '.join(missing)}", "resource", "infra"))
            return
        with self._lock:
            running = self._running.get(key)
        if running is None:  # cancelled meanwhile
            return
        if self._loop is not None:
            self._loop.start(key, partial(self._run_async, job, running.scope))
        else:
            self._threads.start(key, partial(self._run, job, running.scope))

    def _job(self, waiting: Waiting) -> Job:
        assignment, task = waiting.assignment, waiting.task
        key = self._links.key(task.rollout_id, assignment.attempt_id)
        llm = self._resources.llm(assignment, self._links.gateway_url, key)
        return Job(assignment, task, llm, self._resources.for_agent(assignment, llm))

    def _run(self, job: Job, scope: Scope) -> object:
        with context.attempt(scope):
            return self._agent.run(job)

    async def _run_async(self, job: Job, scope: Scope) -> object:
        with context.attempt(scope):
            return await cast("Awaitable[object]", self._agent.run(job))

    # --- ending

    def _done(self, key: str, result: object, error: BaseException | None) -> None:
        """The agent is done; in its thread."""
        with self._lock:
            running = self._running.get(key)
        if running is not None:
            self._finish(key, outcome.judge(running.scope, result, error, self._links.gateway_url))
        self.tick()

    def _stop(self, key: str, ended: Outcome) -> None:
        """Ends a running attempt whose agent is still at work."""
        if self._finish(key, ended):
            if self._loop is not None:
                self._loop.cancel(key)
            else:
                self.abandoned += 1
                log.warning("attempt %s: %s; its thread cannot be stopped and is left alone", key, ended.reason)

    def _finish(self, key: str, ended: Outcome) -> bool:
        """Writes the final reward, the root span and the end marker; False if the attempt has ended already."""
        with self._lock:
            running = self._running.pop(key, None)
            if running is None:
                return False
            self._closing[key] = None
            took_s = self._clock.steady_s() - running.start_s
            self._mean_s = took_s if self._mean_s is None else self._mean_s + SMOOTHING * (took_s - self._mean_s)
        now = self._clock.now_ns()
        if ended.reward is not None:
            running.log.reward(make_reward(running.scope, ended.reward))
        running.log.span(outcome.root_span(running.scope, self._agent.name, ended, running.start_ns, now))
        end = outcome.end_marker(running.assignment, running.task, ended, self._spool.producer_id, now)
        running.log.end(end, partial(self._acknowledged, key))
        self._changed()
        return True

    def _end_unbegun(self, waiting: Waiting, ended: Outcome) -> None:
        key = waiting.assignment.attempt_id
        with self._lock:
            self._closing[key] = None
        end = outcome.end_marker(waiting.assignment, waiting.task, ended, self._spool.producer_id, self._clock.now_ns())
        self._spool.open(waiting.task.rollout_id, key, begin=False).end(end, partial(self._acknowledged, key))

    def _acknowledged(self, key: str, delivered: bool) -> None:
        if not delivered:
            log.error("attempt %s: its end marker was not delivered; the controller will time it out", key)
        with self._lock:
            self._closing.pop(key, None)
        self._changed()
