"""The attempts a worker holds: waiting for a slot, running, or ended and not yet acknowledged.

    accept ─▶ waiting ─ slot, resources ─▶ running ─ done, deadline, order ─▶ closing ─ acknowledged ─▶ gone

All of them are named in heartbeats, so that none is taken for lost before its end marker is in the log.
"""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable, Sequence
from functools import partial

from ..infra.clock import Clock
from ..schemas import ids
from ..schemas.records import Assignment, Task
from . import outcome
from .agent import Job
from .context import Scope
from .emit import make_reward
from .held import Links, Pace, Running, Waiting
from .outcome import Outcome
from .resources import Resources
from .slots import Slots
from .spool import Spool
from .work import Work

log = logging.getLogger(__name__)

# A pinned resource was published before the assignment, so it is on its way; past this it does not exist.
RESOURCE_WAIT_S = 5.0
GIVEN_AWAY = "no heartbeat that named it was acknowledged for unresponsive_s: the controller has given it away"


class Attempts:
    """Runs an agent on accepted assignments, `count` at once. Thread-safe."""

    def __init__(
        self,
        slots: Slots,
        spool: Spool,
        resources: Resources,
        links: Links,
        *,
        count: int,
        clock: Clock,
        changed: Callable[[], None],
    ) -> None:
        """`count`: agents at work at once; `changed` is called whenever a heartbeat would say something else."""
        self._slots = slots
        self._count = count
        self._spool = spool
        self._resources = resources
        self._links = links
        self._clock = clock
        self._changed = changed
        self._lock = threading.Lock()
        self._waiting: deque[Waiting] = deque()
        self._running: dict[str, Running] = {}
        self._closing: dict[str, None] = {}
        self._pace = Pace()

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
        """Starts what can start and ends what is past its deadline or given away. Raises as slots do."""
        now = self._clock.steady_s()
        with self._lock:
            late = [key for key, r in self._running.items() if now >= r.deadline_s]
            silent = [key for key, r in self._running.items() if r.silent(now)]
        for key in late:
            self._stop(key, outcome.of_order("timeout", "the agent was not done within timeout_s"))
        for key in silent:
            self._stop(key, outcome.of_order("unresponsive", GIVEN_AWAY))
        self._slots.tick()
        self._start_waiting()

    def heard(self, named: Sequence[str], sent_s: float) -> None:
        """A heartbeat sent at `sent_s` that named these attempts was acknowledged.

        After a silence that was too long (the process was stopped, the broker was away) it comes too late: another
        worker may have them by now.
        """
        silent: list[str] = []
        with self._lock:
            for key in named:
                running = self._running.get(key)
                if running is not None and running.silent(sent_s):
                    silent.append(key)
                elif running is not None:
                    running.heard_s = max(running.heard_s, sent_s)
        for key in silent:
            self._stop(key, outcome.of_order("unresponsive", GIVEN_AWAY))

    def named(self) -> list[str]:
        """Attempt ids for the heartbeat."""
        with self._lock:
            return [*(w.assignment.attempt_id for w in self._waiting), *self._running, *self._closing]

    def ahead(self) -> int:
        """How many assignments to hold ready; see `Pace`."""
        with self._lock:
            return self._pace.ahead(self._count)

    def idle(self) -> bool:
        """True if no agent is at work."""
        with self._lock:
            return not self._running

    def refuse(self, assignment: Assignment, task: Task, reason: str) -> None:
        """Hands an assignment back at once."""
        now = self._clock.steady_s()
        self._end_unbegun(Waiting(assignment, task, now, now), outcome.of_order("returned", reason))

    def hand_back(self, reason: str) -> None:
        """Ends all that is left as `returned`."""
        self.drop_waiting(reason)
        with self._lock:
            running = list(self._running)
        for key in running:
            self._stop(key, outcome.of_order("returned", reason))

    def drop_waiting(self, reason: str) -> None:
        """Hands back what has not begun, so that others can have it."""
        with self._lock:
            waiting, self._waiting = list(self._waiting), deque()
        for each in waiting:
            self._end_unbegun(each, outcome.of_order("returned", reason))

    def close(self, timeout_s: float) -> None:
        """Ends what agents ran in, as far as agents let go."""
        self._slots.close(timeout_s)

    # --- starting

    def _start_waiting(self) -> None:
        while (waiting := self._take(self._clock.steady_s())) is not None:
            self._start(waiting)

    def _take(self, now: float) -> Waiting | None:
        """The next assignment to start, if there is a slot for it."""
        with self._lock:
            for _ in range(len(self._waiting)):
                if len(self._running) >= self._count:
                    return None
                waiting = self._waiting.popleft()
                if now >= waiting.expires_s:
                    log.info("attempt %s: its claim has expired here", waiting.assignment.attempt_id)
                elif self._resources.missing(waiting.assignment.pins) and now < waiting.since_s + RESOURCE_WAIT_S:
                    self._waiting.append(waiting)
                elif self._slots.claim(waiting.assignment.attempt_id):
                    self._running[waiting.assignment.attempt_id] = self._begin(waiting)
                    return waiting
                else:
                    self._waiting.appendleft(waiting)
                    return None
        return None

    def _begin(self, waiting: Waiting) -> Running:
        assignment, task = waiting.assignment, waiting.task
        attempt_log = self._spool.open(task.rollout_id, assignment.attempt_id)
        scope = Scope(
            task.rollout_id, assignment.attempt_id, self._spool.producer_id, attempt_log, root_id=ids.span_id()
        )
        now_ns, now_s = self._clock.now_ns(), self._clock.steady_s()
        return Running(assignment, task, attempt_log, scope, now_ns, now_s, now_s + task.limits.timeout_s, now_s)

    def _start(self, waiting: Waiting) -> None:
        key = waiting.assignment.attempt_id
        missing = self._resources.missing(waiting.assignment.pins)
        try:
            job = self._job(waiting)
        except ValueError as error:
            self._stop(key, Outcome("failed", None, f"a pinned resource is no JSON: {error}", "resource", "infra"))
            return
        if missing:
            self._stop(key, Outcome("failed", None, f"no resource {', '.join(missing)}", "resource", "infra"))
            return
        with self._lock:
            running = self._running.get(key)
        if running is not None:  # else it was cancelled meanwhile
            self._slots.start(Work(job, running.scope, self._links.gateway_url), self._done)

    def _job(self, waiting: Waiting) -> Job:
        assignment, task = waiting.assignment, waiting.task
        key = self._links.key(task.rollout_id, assignment.attempt_id)
        llm = self._resources.llm(assignment, self._links.gateway_url, key)
        return Job(assignment, task, llm, self._resources.for_agent(assignment, llm))

    # --- ending

    def _done(self, key: str, ended: Outcome) -> None:
        """The agent is done; in its thread."""
        self._finish(key, ended)
        self._start_waiting()

    def _stop(self, key: str, ended: Outcome) -> None:
        """Ends a running attempt whose agent is not done."""
        if self._finish(key, ended):
            self._slots.stop(key, ended.reason or ended.status)

    def _finish(self, key: str, ended: Outcome) -> bool:
        """Writes the final reward, the root span and the end marker; False if the attempt has ended already."""
        with self._lock:
            running = self._running.pop(key, None)
            if running is None:
                return False
            self._closing[key] = None
            self._pace.took(self._clock.steady_s() - running.start_s)
        now = self._clock.now_ns()
        if ended.reward is not None:
            running.log.reward(make_reward(running.scope, ended.reward))
        running.scope.hand_over()  # of an agent that is not done; in a process of its own it dies with them
        running.log.span(outcome.root_span(running.scope, self._slots.name, ended, running.start_ns, now))
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
