"""A slot's process as its worker holds it: start, talk, end, and say how it ended."""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import socket
import struct
import subprocess
import sys
from multiprocessing.connection import Connection
from typing import Any

from .slot_messages import Start

log = logging.getLogger(__name__)

GRACE_S = 2.0  # from SIGTERM, which lets an agent clean up, to SIGKILL
SEND_S = 2  # an idle process takes an order in microseconds, unless the last agent left a thread that lets no other run


class SlotChild:
    """Runs `slot_process` in a session of its own, so that what the agent starts can be ended with it."""

    def __init__(self, start: Start) -> None:
        """Returns before it is ready: Hello says that."""
        self.over = False  # nothing more will be received
        ours, theirs = socket.socketpair()
        ours.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, struct.pack("ll", SEND_S, 0))
        self._life, their_life = socket.socketpair()
        with theirs, their_life:
            handed = (theirs.fileno(), their_life.fileno())
            self._process = subprocess.Popen(
                [sys.executable, "-m", "spanloop.producers.slot_process", *map(str, handed)],
                stdin=subprocess.DEVNULL,
                pass_fds=handed,
                start_new_session=True,
            )
        self._connection: Connection[Any, Any] = Connection(ours.detach())
        self.send(start)

    @property
    def pid(self) -> int:
        """Its process id."""
        return self._process.pid

    def send(self, message: object) -> None:
        """Sends a message; one to a dead process is lost, and `receive` will tell.

        A process that does not take it within twice `SEND_S` is ended: its worker has others to look after.
        """
        try:
            self._connection.send(message)
        except BlockingIOError:
            log.warning("the agent's process %d does not read: it is ended", self.pid)
            self.kill()
        except OSError:
            pass

    def receive(self, timeout_s: float) -> object:
        """The next message; None = none came, or nothing more will (`over`)."""
        try:
            if self._connection.poll(timeout_s):
                return self._connection.recv()
            # A process that the agent forked may keep the connection open, so death is asked for too.
            self.over = self._process.poll() is not None and not self._connection.poll(0)
        except (EOFError, OSError):  # a message that a crash cut short is no message
            self.over = True
        except Exception:
            # Agents share the process and may have written anything; the seat's thread must go on.
            log.exception("what the agent's process %d said cannot be read: it is ended", self.pid)
            self.over = True
            self.kill()
        return None

    def leave(self) -> None:
        """Lets an idle one go."""
        with contextlib.suppress(OSError):
            self._connection.close()
        self.over = True

    def terminate(self) -> None:
        """SIGTERM to it and to all that the agent started."""
        self._signal(signal.SIGTERM)

    def kill(self) -> None:
        """SIGKILL to it and to all that the agent started."""
        self._signal(signal.SIGKILL)

    def end(self, timeout_s: float) -> str:
        """Waits for its end, by force after `timeout_s`; how it ended, as the rest of a sentence."""
        try:
            status = self._process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            self.kill()
            status = self._process.wait()
        self.kill()  # what the agent left behind
        self._connection.close()
        self._life.close()
        return told(status)

    def _signal(self, number: int) -> None:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self._process.pid, number)


def told(status: int) -> str:
    """A process's end in words: its exit status or its signal."""
    if status >= 0:
        return f"exited with status {status}"
    name = signal.Signals(-status).name if -status in set(signal.Signals) else "unknown"
    hint = "; was it out of memory?" if -status == signal.SIGKILL else ""
    return f"was killed by signal {-status} ({name}{hint})"
