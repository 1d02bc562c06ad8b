"""The process of one slot: runs an agent on one attempt after another. `process_slots` starts it.

    worker ─ Start, then an Order per attempt ─▶ this process ─ Hello, then Begun, spans, rewards, Outcome ─▶ worker

What the agent emits is in the kernel's hands before the agent goes on. So a crash loses nothing that was emitted, and
neither a blocked event loop nor a thread that holds the interpreter keeps it from the worker, who sends it on.
"""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import fcntl
import logging
import os
import select
import signal
import socket
import sys
import threading
import traceback
from multiprocessing.connection import Connection
from typing import Any

from ..infra import logs
from ..infra.settings import Settings
from ..schemas.errors import ConfigError
from ..schemas.records import Reward, Span
from .agent import Agent, resolve
from .context import Scope
from .outcome import Outcome
from .slot_messages import Begun, Hello, Order, Refusal, Start
from .work import Work, perform, perform_async

log = logging.getLogger(__name__)


class Stopped(SystemExit):
    """SIGTERM came while the agent was at work: it gets to clean up, then the process ends."""


class Line:
    """To the worker; a `context.Sink`. Each message is written whole before the next one."""

    def __init__(self, connection: Connection[Any, Any]) -> None:
        self.closed = False  # nothing more is wanted
        self._connection = connection
        self._lock = threading.RLock()  # a signal may interrupt a message; what follows it is not sent then
        self._process = os.getpid()

    def send(self, message: object) -> None:
        """Writes a message; blocks while the worker does not read."""
        if os.getpid() != self._process:
            log.warning("a forked child of the agent emitted something: only the agent's own process can")
            return
        with self._lock, contextlib.suppress(OSError):  # the worker is gone, and this process is about to be
            if not self.closed:
                self._connection.send(message)

    def span(self, span: Span) -> None:
        self.send(span)

    def reward(self, reward: Reward) -> None:
        self.send(reward)


class Runner:
    """Runs the agent in the main thread, where SIGTERM can reach it."""

    def __init__(self, agent: Agent, line: Line) -> None:
        self._agent = agent
        self._line = line
        self._loop = asyncio.new_event_loop() if agent.is_async else None
        signal.signal(signal.SIGTERM, self._stop)

    def run(self, order: Order) -> Outcome:
        """Runs it on one attempt. Raises Stopped."""
        assignment, task = order.job.assignment, order.job.task
        scope = Scope(task.rollout_id, assignment.attempt_id, order.producer_id, self._line, root_id=order.root_id)
        work = Work(order.job, scope, order.gateway_url)
        if self._loop is None:
            return contextvars.Context().run(perform, self._agent, work)
        task_of_agent = contextvars.Context().run(self._loop.create_task, perform_async(self._agent, work))
        try:
            return self._loop.run_until_complete(task_of_agent)
        except Stopped:
            task_of_agent.cancel()
            self._loop.run_until_complete(asyncio.wait([task_of_agent]))
            raise

    def _stop(self, number: int, frame: object) -> None:
        del frame
        if not self._line.closed:
            self._line.closed = True
            raise Stopped(128 + number)


def serve(connection: Connection[Any, Any]) -> None:
    """Loads the agent and runs it on what comes, until the worker closes the connection or says stop."""
    start: Start = connection.recv()
    sys.path[:] = start.path
    line = Line(connection)
    try:
        agent = resolve(start.spec)
    except ConfigError as error:
        traceback.print_exc()
        line.send(Refusal(str(error)))
        return
    if start.trace:
        from .tracer import install

        install()
    runner = Runner(agent, line)
    line.send(Hello(agent.name))
    with contextlib.suppress(EOFError):
        while not line.closed:
            order: Order = connection.recv()
            line.send(Begun())
            line.send(runner.run(order))


def end_with_worker(life: socket.socket) -> None:
    """Nothing is ever sent on `life`: that it can be read means that the worker is gone, however it went."""
    threading.Thread(target=_watch, args=(life,), name="life", daemon=True).start()
    if hasattr(os, "O_ASYNC"):
        # The kernel's own word for it, SIGIO, ends the process even while the agent holds the interpreter.
        signal.signal(signal.SIGIO, signal.SIG_DFL)
        fcntl.fcntl(life, fcntl.F_SETOWN, os.getpid())
        fcntl.fcntl(life, fcntl.F_SETFL, fcntl.fcntl(life, fcntl.F_GETFL) | os.O_ASYNC)


def _watch(life: socket.socket) -> None:
    select.select([life], [], [])  # not recv: no SIGIO is sent for a socket that a thread waits for data on
    os._exit(1)


def main() -> None:
    """`python -m spanloop.producers.slot_process CONNECTION LIFE`: two file descriptors from the worker."""
    logs.configure(Settings())
    connection, life = int(sys.argv[1]), int(sys.argv[2])
    end_with_worker(socket.socket(fileno=life))
    serve(Connection(connection))


if __name__ == "__main__":
    main()
