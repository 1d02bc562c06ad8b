"""Slots: where agents run. Here synchronous ones, in threads of the worker's own process.

A thread cannot be stopped: one that is given up goes on by itself, its result is ignored, and another takes its place.
`loop_slots` runs asynchronous agents, `process_slots` runs either in processes, which can be ended.
"""

from __future__ import annotations

import contextvars
import logging
import threading
from collections.abc import Callable
from queue import SimpleQueue
from typing import Protocol

from .agent import Agent
from .outcome import Outcome
from .work import Work, perform

log = logging.getLogger(__name__)

OnDone = Callable[[str, Outcome], None]  # attempt id, how it ended


class Slots(Protocol):
    """Runs agents. Thread-safe."""

    name: str
    """The agent's name."""

    def wait_ready(self, stop: threading.Event) -> None:
        """Waits until agents can be run, or `stop`. Raises where they never can."""
        ...

    def claim(self, attempt_id: str) -> bool:
        """Takes a slot for an attempt; False while none is ready."""
        ...

    def start(self, work: Work, on_done: OnDone) -> None:
        """Runs the agent in the slot claimed; `on_done` is called in another thread, unless it is stopped before."""
        ...

    def stop(self, attempt_id: str, why: str) -> None:
        """Gives an attempt's slot back, and stops its agent as far as that can be done; returns at once."""
        ...

    def tick(self) -> None:
        """Does what is due. Raises where no agent can be run any more."""
        ...

    def close(self, timeout_s: float) -> None:
        """Ends what agents ran in, as far as agents let go."""
        ...


class LocalSlots:
    """What slots in this process have in common: there is always one more."""

    def __init__(self, agent: Agent) -> None:
        self.name = agent.name
        self._agent = agent

    def wait_ready(self, stop: threading.Event) -> None:
        """See Slots."""
        del stop

    def claim(self, attempt_id: str) -> bool:
        """See Slots."""
        del attempt_id
        return True


class ThreadSlots(LocalSlots):
    """Runs agents in threads, as many as there are attempts at once; idle threads are used again."""

    def __init__(self, agent: Agent) -> None:
        super().__init__(agent)
        self._calls: SimpleQueue[tuple[Work, OnDone] | None] = SimpleQueue()
        self._lock = threading.Lock()
        self._idle = 0
        self._threads = 0
        self._at_work: set[str] = set()
        self._given_up: set[str] = set()

    @property
    def lost(self) -> int:
        """Threads given up whose agents are still at work."""
        return len(self._given_up)

    def start(self, work: Work, on_done: OnDone) -> None:
        with self._lock:
            self._at_work.add(work.attempt_id)
            spawn = self._idle == 0
            if spawn:
                self._threads += 1
            else:
                self._idle -= 1
        if spawn:
            # daemon: an agent that never returns must not hold the process
            threading.Thread(target=self._run, name=f"agent-{self._threads}", daemon=True).start()
        self._calls.put((work, on_done))

    def stop(self, attempt_id: str, why: str) -> None:
        with self._lock:
            if attempt_id not in self._at_work:
                return
            self._given_up.add(attempt_id)
        log.warning(
            "attempt %s: %s. A thread cannot be killed: its agent goes on by itself and its slot is replaced "
            "(%d threads are lost so now). With isolation process it would have been ended",
            attempt_id,
            why,
            self.lost,
        )

    def tick(self) -> None:
        pass

    def close(self, timeout_s: float) -> None:
        del timeout_s
        with self._lock:
            idle, self._idle = self._idle, 0
        for _ in range(idle):
            self._calls.put(None)

    def _run(self) -> None:
        while (item := self._calls.get()) is not None:
            work, on_done = item
            ended = contextvars.Context().run(perform, self._agent, work)
            with self._lock:
                self._idle += 1
                self._at_work.discard(work.attempt_id)
                self._given_up.discard(work.attempt_id)
            on_done(work.attempt_id, ended)


def local_slots(agent: Agent) -> Slots:
    """Slots in this process: threads, or an event loop where the agent is asynchronous."""
    if agent.is_async:
        from .loop_slots import LoopSlots

        return LoopSlots(agent)
    return ThreadSlots(agent)
