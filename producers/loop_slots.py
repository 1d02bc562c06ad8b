"""Where asynchronous agents run: on one event loop in a thread of its own.

An agent that blocks the loop holds up all others on it, and cannot be stopped: once it does not let a cancellation
through, new attempts run on another loop, and the blocked one is left alone.
"""

from __future__ import annotations

import asyncio
import contextvars
import logging
import threading
import time

from .agent import Agent
from .slots import LocalSlots, OnDone
from .work import Work, perform_async

log = logging.getLogger(__name__)

BLOCKED_S = 2.0  # a loop that has not taken a cancellation for so long is blocked


class AgentLoop:
    """An event loop in a thread."""

    def __init__(self) -> None:
        self.loop = asyncio.new_event_loop()
        self.tasks: dict[str, asyncio.Task[None]] = {}
        self.thread = threading.Thread(target=self.loop.run_forever, name="agents", daemon=True)
        self.thread.start()

    def close(self, timeout_s: float) -> bool:
        """Cancels what runs and stops; False where an agent blocks it."""
        self.loop.call_soon_threadsafe(self._stop)
        self.thread.join(timeout_s)
        if self.thread.is_alive():
            return False
        self.loop.close()
        return True

    def _stop(self) -> None:
        for task in self.tasks.values():
            task.cancel()
        self.loop.call_soon(self.loop.stop)


class LoopSlots(LocalSlots):
    """Runs coroutines; `Slots`."""

    def __init__(self, agent: Agent) -> None:
        super().__init__(agent)
        self._lock = threading.Lock()
        self._current = AgentLoop()
        self._left: list[AgentLoop] = []
        # cancellations that the loop has not taken yet, since when
        self._asked: dict[str, tuple[AgentLoop, float]] = {}
        self._at: dict[str, AgentLoop] = {}

    @property
    def lost(self) -> int:
        """Loops left alone because an agent blocks them."""
        return len(self._left)

    def start(self, work: Work, on_done: OnDone) -> None:
        with self._lock:
            at = self._at[work.attempt_id] = self._current
        at.loop.call_soon_threadsafe(self._spawn, at, work, on_done)

    def stop(self, attempt_id: str, why: str) -> None:
        """Cancels it; what it still does with its cancellation is its own affair."""
        with self._lock:
            at = self._at.pop(attempt_id, None)
            if at is None:
                return
            self._asked[attempt_id] = at, time.monotonic()
        log.info("attempt %s: %s; its task is cancelled", attempt_id, why)
        at.loop.call_soon_threadsafe(self._cancel, at, attempt_id)

    def tick(self) -> None:
        now = time.monotonic()
        with self._lock:
            late = [key for key, (_, since) in self._asked.items() if now >= since + BLOCKED_S]
            blocked = {id(at): at for at, _ in (self._asked.pop(key) for key in late)}.values()
            if self._current not in blocked:
                return
            self._left.append(self._current)
            self._current = AgentLoop()
        log.warning(
            "attempts %s: an agent blocks the event loop and cannot be stopped: the loop is left alone with all that "
            "runs on it and replaced (%d are lost so). With isolation process the agent would have been ended",
            ", ".join(late),
            self.lost,
        )

    def close(self, timeout_s: float) -> None:
        deadline = time.monotonic() + timeout_s
        for at in (self._current, *self._left):
            if not at.close(max(0.0, deadline - time.monotonic())):
                log.warning("an agent blocks its event loop and is left behind with it")

    # --- on a loop

    def _spawn(self, at: AgentLoop, work: Work, on_done: OnDone) -> None:
        at.tasks[work.attempt_id] = contextvars.Context().run(at.loop.create_task, self._run(at, work, on_done))

    def _cancel(self, at: AgentLoop, attempt_id: str) -> None:
        with self._lock:
            self._asked.pop(attempt_id, None)
        if attempt_id in at.tasks:
            at.tasks[attempt_id].cancel()

    async def _run(self, at: AgentLoop, work: Work, on_done: OnDone) -> None:
        ended = await perform_async(self._agent, work)
        del at.tasks[work.attempt_id]
        with self._lock:
            self._at.pop(work.attempt_id, None)
        on_done(work.attempt_id, ended)
