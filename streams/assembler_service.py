"""The assembler as a part of the loop: its app in an event loop of its own, which ends with it."""

from __future__ import annotations

import asyncio
import logging
import threading
from typing import Any

from ..infra.clock import Clock
from ..infra.process import new_loop
from ..infra.registry import wait_for_registry
from ..infra.settings import Settings
from .app import AssemblerApp
from .crash import meaning
from .messages import Policy
from .shell import NAME

log = logging.getLogger(__name__)

STOP_POLL_S = 0.05
LEFTOVER_S = 1.0  # what tasks that a crash left behind get to end in


class AssemblerService:
    """The assembler as a part that runs until it is told to stop, in any thread."""

    def __init__(self, settings: Settings, policy: Policy | None = None, clock: Clock | None = None) -> None:
        self._settings = settings
        self._make = lambda: AssemblerApp(settings, policy, clock)
        self.app: AssemblerApp | None = None

    def run(self, stop: threading.Event) -> None:
        """Assembles until `stop` is set. Raises what the app crashed with: DataLost, DeliveryFailed, ..."""
        if not wait_for_registry(self._settings, stop):
            return
        loop = new_loop()
        asyncio.set_event_loop(loop)
        try:
            loop.run_until_complete(self._main(stop))
        finally:
            loop.run_until_complete(_end_leftovers())
            asyncio.set_event_loop(None)
            loop.close()

    async def _main(self, stop: threading.Event) -> None:
        app = self.app = self._make()
        # a start waits for partitions, and must not keep a crash or a stop waiting
        starting = asyncio.ensure_future(app.start())
        try:
            while not (stop.is_set() or app.crashed or _failure(starting)):
                await asyncio.sleep(STOP_POLL_S)
        finally:
            try:
                await app.stop()
            except RuntimeError as error:  # Faust's consumer thread may be gone already; what crashed it is told below
                if app.crash_reason is None:
                    raise
                log.debug("stopping after a crash: %s", error)
            await asyncio.wait([starting])
        reason = app.crash_reason or _failure(starting)
        if reason is not None:
            meant = await asyncio.to_thread(meaning, app.settings, NAME, reason)
            if meant is None:
                raise reason
            raise meant from reason


def _failure(starting: asyncio.Future[Any]) -> BaseException | None:
    """What a start has failed with; a crash in another part of Faust cancels it."""
    if not starting.done():
        return None
    return asyncio.CancelledError() if starting.cancelled() else starting.exception()


async def _end_leftovers() -> None:
    """Ends what Faust leaves running when it crashes; a task that is destroyed tells of itself at any later time."""
    leftovers = asyncio.all_tasks() - {asyncio.current_task()}
    for task in leftovers:
        task.cancel()
    if leftovers:
        ended, _ = await asyncio.wait(leftovers, timeout=LEFTOVER_S)
        for task in ended:
            _failure(task)  # taken, so that nothing tells of it
