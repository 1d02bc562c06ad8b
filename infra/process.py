"""What each process of ours does alike: it ends by signals, tells errors made on purpose, and has an event loop."""

from __future__ import annotations

import asyncio
import atexit
import contextlib
import faulthandler
import gc
import logging
import os
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable
from typing import Protocol

from ..schemas.errors import SpanloopError
from . import logs
from .kafka_config import wait_for_broker
from .settings import Settings

log = logging.getLogger(__name__)

# A process that finds no broker says so within ten seconds, its start and its imports included.
BROKER_PATIENCE_S = 5.0
# New objects until the young are looked through, such rounds until the middle-aged are, such until all are.
GC_THRESHOLDS = (50_000, 20, 50)
LEAVE_S = 5.0  # what a process gets to leave in once its parent is gone
STOPPED_S = 4.7  # what a part gets once it is told to stop
LOOK_S, TELL_S = 0.1, 0.3
BEHIND_S = 2.0  # behind those last words, which a busy machine may delay
FREE_S = 8.0  # what the interpreter gets to free what is left; then the process ends with status 1, however it went
OURS = "spanloop."


class Part(Protocol):
    """A long-lived part of the loop."""

    def run(self, stop: threading.Event) -> None:
        """Works until `stop` is set, then flushes and returns. Raises on trouble that it cannot bear."""
        ...


def stop_on_signal(*, second_kills: bool = True, told: Callable[[], None] = lambda: None) -> threading.Event:
    """An event that SIGTERM and SIGINT set. For the main thread.

    second_kills: a second signal ends the process at once; False where that would leave other processes behind.
    told: called before the event is set for the first time.
    """
    stop = threading.Event()

    def ask(number: int, frame: object) -> None:
        del frame
        if stop.is_set() and second_kills:
            os._exit(128 + number)
        try:
            if not stop.is_set():
                told()
        finally:
            stop.set()

    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, ask)
    return stop


def leave_with_parent() -> None:
    """Ends this process when standard input does: a pipe from its parent, which closes however the parent ends.

    It gets SIGTERM, and is ended by force where that has not done within `LEAVE_S`.
    """
    threading.Thread(target=_watch_parent, name="parent", daemon=True).start()


def _watch_parent() -> None:
    while os.read(0, 1024):
        pass
    os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(LEAVE_S)
    os._exit(1)


def run_until_signalled(part: Part, leave_s: float | None = STOPPED_S) -> None:
    """Runs one part as this process: SIGTERM and SIGINT stop it, a second one ends the process at once.

    Where something still runs `leave_s` after the stop, or after the part ended, it is named and the process is ended
    by force, as if it were killed: what a client of a broker or a thread of an agent's waits for may never come, and
    may be waited for with the interpreter's lock. None: the part takes the time it needs, and what is left behind it
    gets `STOPPED_S`.
    """
    collect_seldom()
    leaving = _Leaving(leave_s)
    # Past all threads and hooks the interpreter frees what is left, and a client may then wait for its broker.
    atexit.register(_end_without_lock, FREE_S)
    try:
        part.run(leaving.stop)
        leaving.status = 0
    finally:
        leaving.over = True
        leaving.stop.set()
        leaving.due.set()
        faulthandler.cancel_dump_traceback_later()


class _Leaving:
    """Ends this process in time once it is due to end."""

    def __init__(self, leave_s: float | None) -> None:
        if leave_s is None:
            self.stop, self.due = stop_on_signal(), threading.Event()
        else:  # before the part hears of the stop: from then on it may keep the interpreter's lock
            self.stop = self.due = stop_on_signal(told=lambda: _end_without_lock(leave_s + BEHIND_S))
        self.over = False  # the part has ended
        self.status = 1
        limit_s = STOPPED_S if leave_s is None else leave_s
        threading.Thread(target=self._watch, args=(limit_s,), name="leaving", daemon=True).start()

    def _watch(self, leave_s: float) -> None:
        self.due.wait()
        time.sleep(leave_s)
        while self.over and not _ending():  # who ran the part has more to do
            time.sleep(LOOK_S)
        teller = threading.Thread(target=_tell, args=(leave_s,), name="last words", daemon=True)
        try:
            teller.start()
            teller.join(TELL_S)  # who reads them may have gone or stand still
        finally:
            os._exit(self.status)


def _end_without_lock(after_s: float) -> None:
    """Has this process ended by a thread that needs no interpreter's lock, which somebody may keep for ever."""
    if sys.__stderr__ is not None:
        with contextlib.suppress(ValueError, OSError, RuntimeError):  # closed, or no thread can be started
            # By number: of a file it would flush what is pending, and who reads that may stand still.
            faulthandler.dump_traceback_later(after_s, exit=True, file=sys.__stderr__.fileno())


def _ending() -> bool:
    """Whether the interpreter ends: its pools' threads are waited for while the main one counts as alive."""
    return bool(getattr(threading, "_SHUTTING_DOWN", False)) or not threading.main_thread().is_alive()


def _tell(leave_s: float) -> None:
    log.warning("ended by force %g s after it was to end, in %s", leave_s, "; ".join(_still_running()))
    sys.stdout.flush()


def _still_running() -> list[str]:
    """Where each thread is that keeps this process, in our own code if it is there."""
    frames = sys._current_frames()  # pyright: ignore[reportPrivateUsage]  # documented, for debugging
    out: list[str] = []
    for thread in threading.enumerate():
        if thread.daemon or (frame := frames.get(thread.ident or 0)) is None:
            continue
        stack = [(str(f.f_globals.get("__name__")), f) for f, _ in traceback.walk_stack(frame)]
        module, at = next((found for found in stack if found[0].startswith(OURS)), stack[0])
        out.append(f"{thread.name} at {module}:{at.f_lineno} ({at.f_code.co_name})")
    return out


def collect_seldom() -> None:
    """Has the garbage collector look for cycles seldom, and never at what is there now: modules, parsed schemas.

    Records have no cycles, and parts that hold many would have them looked through again and again: a quarter of the
    assembler's time. For a process that is one part of ours.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(*GC_THRESHOLDS)


def main(make: Callable[[Settings], Part], *, broker: bool = True, leave_s: float | None = STOPPED_S) -> None:
    """The entry point of `python -m spanloop.<room>.<part>`: an error made on purpose is a message and status 1.

    `make` gets the settings of this process. `broker`: the part needs one, and without one it is said within ten
    seconds, start and imports included. `leave_s`: see `run_until_signalled`.
    """
    logs.configure(level="INFO")
    try:
        settings = Settings()
        logs.configure(settings, level="INFO")
        if broker:
            wait_for_broker(settings, BROKER_PATIENCE_S)
        run_until_signalled(make(settings), leave_s)
    except SpanloopError as error:
        sys.exit(logs.masked(f"{type(error).__name__}: {error}"))


def new_loop() -> asyncio.AbstractEventLoop:
    """uvloop's event loop where it is installed: Faust runs a sixth faster on it."""
    try:
        import uvloop
    except ImportError:  # there is none for Windows
        return asyncio.new_event_loop()
    return uvloop.new_event_loop()
