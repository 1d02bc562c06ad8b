"""Where agents run: synchronous ones in threads, asynchronous ones on one event loop of their own.

A thread cannot be stopped: one that is given up goes on by itself, its result is ignored, and another takes its place.
"""

from __future__ import annotations

import asyncio
import contextvars
import logging
import threading
from collections.abc import Awaitable, Callable
from queue import SimpleQueue

log = logging.getLogger(__name__)

Call = Callable[[], object]
OnDone = Callable[[str, object, BaseException | None], None]  # key, result, what it raised


class ThreadSlots:
    """Runs calls in threads, as many as there are calls at once; idle threads are used again."""

    def __init__(self, on_done: OnDone) -> None:
        """`on_done` is called in the thread that ran the call."""
        self._on_done = on_done
        self._calls: SimpleQueue[tuple[str, Call] | None] = SimpleQueue()
        self._lock = threading.Lock()
        self._idle = 0
        self._threads = 0

    def start(self, key: str, call: Call) -> None:
        """Runs a call in a context of its own."""
        with self._lock:
            spawn = self._idle == 0
            if spawn:
                self._threads += 1
            else:
                self._idle -= 1
        if spawn:
            # daemon: an agent that never returns must not hold the process
            threading.Thread(target=self._run, name=f"agent-{self._threads}", daemon=True).start()
        self._calls.put((key, call))

    def close(self) -> None:
        """Ends idle threads."""
        with self._lock:
            idle, self._idle = self._idle, 0
        for _ in range(idle):
            self._calls.put(None)

    def _run(self) -> None:
        while (item := self._calls.get()) is not None:
            key, call = item
            result, raised = None, None
            try:
                result = contextvars.Context().run(call)
            except BaseException as error:  # noqa: BLE001 - an agent may raise anything, sys.exit() included
                raised = error
            with self._lock:
                self._idle += 1
            self._on_done(key, result, raised)


class LoopSlots:
    """Runs coroutines on one event loop in a thread of its own."""

    def __init__(self, on_done: OnDone) -> None:
        """`on_done` is called on the loop."""
        self._on_done = on_done
        self._loop = asyncio.new_event_loop()
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._thread = threading.Thread(target=self._loop.run_forever, name="agents", daemon=True)
        self._thread.start()

    def start(self, key: str, call: Callable[[], Awaitable[object]]) -> None:
        """Runs a coroutine in a context of its own."""
        self._loop.call_soon_threadsafe(self._spawn, key, call)

    def cancel(self, key: str) -> None:
        """Cancels it; what it still does with its cancellation is its own affair."""
        self._loop.call_soon_threadsafe(self._cancel, key)

    def close(self, timeout_s: float) -> None:
        """Cancels what runs and stops the loop; an agent that blocks it is left behind with its thread."""
        self._loop.call_soon_threadsafe(self._stop)
        self._thread.join(timeout_s)
        if not self._thread.is_alive():
            self._loop.close()

    def _spawn(self, key: str, call: Callable[[], Awaitable[object]]) -> None:
        self._tasks[key] = contextvars.Context().run(self._loop.create_task, self._run(key, call))

    def _cancel(self, key: str) -> None:
        if key in self._tasks:
            self._tasks[key].cancel()

    def _stop(self) -> None:
        for task in self._tasks.values():
            task.cancel()
        self._loop.call_soon(self._loop.stop)

    async def _run(self, key: str, call: Callable[[], Awaitable[object]]) -> None:
        result, raised = None, None
        try:
            result = await call()
        except BaseException as error:  # noqa: BLE001 - an agent may raise anything; its cancellation ends here too
            raised = error
        del self._tasks[key]
        self._on_done(key, result, raised)
