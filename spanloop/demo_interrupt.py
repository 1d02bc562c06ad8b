"""Ctrl-C: the moment from which everything that is still to be closed has its share of five seconds.

0 s      2.2       2.8      3.3        4.4      4.6
├─────────┼─────────┼────────┼──────────┼────────┤
writers   sink is   sink,    report,    what is left
stop      up to     export   services   is killed
          the end   stop     end
"""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable
from types import FrameType, TracebackType

# Seconds after the signal by which each has ended, by force if need be.
WRITERS_S, SINK_S, KEEPERS_S, SERVICES_S, ALL_S = 2.2, 2.8, 3.3, 4.4, 4.6
SIGNALS = (signal.SIGINT, signal.SIGTERM)
INTERRUPTED = 128 + signal.SIGINT


class Interrupt:
    """While entered, the first SIGINT or SIGTERM raises KeyboardInterrupt in the main thread; later ones do nothing.

    A thread sees to it that this process ends in time whatever the main thread is busy with. For the main thread.
    """

    def __init__(self) -> None:
        self.at_s: float | None = None  # when it came, by the steady clock; None = it has not
        self.last: Callable[[], None] = lambda: None  # what is called before the process is ended by force
        self._raised = False

    def left_s(self, share_s: float) -> float | None:
        """Seconds left until `share_s` after the signal; None = there was none, and everything has its own limit."""
        return None if self.at_s is None else max(0.0, self.at_s + share_s - time.monotonic())

    def check(self) -> None:
        """Raises KeyboardInterrupt once it came: some libraries catch whatever is raised while they are imported."""
        if self.at_s is not None:
            raise KeyboardInterrupt

    def __enter__(self) -> Interrupt:
        self._read, self._write = os.pipe()
        os.set_blocking(self._write, False)
        threading.Thread(target=self._watch, name="interrupt", daemon=True).start()
        self._waked = signal.set_wakeup_fd(self._write)
        self._before = [signal.signal(number, self._asked) for number in SIGNALS]
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self.at_s is not None:  # this process ends; further signals still do nothing
            return
        for number, before in zip(SIGNALS, self._before, strict=True):
            signal.signal(number, before)
        signal.set_wakeup_fd(self._waked)
        os.close(self._write)

    def _asked(self, number: int, frame: FrameType | None) -> None:
        del number, frame
        if not self._raised:
            self._raised = True
            self.at_s = self.at_s or time.monotonic()
            raise KeyboardInterrupt

    def _watch(self) -> None:
        while (told := os.read(self._read, 1)) and told[0] not in SIGNALS:
            pass
        if not told:  # nobody interrupted
            os.close(self._read)
            return
        self.at_s = self.at_s or time.monotonic()  # the main thread may be long in a call of C
        time.sleep(ALL_S)
        try:
            self.last()
        finally:
            os._exit(INTERRUPTED)
