"""A long-lived part run in a thread of a test."""

from __future__ import annotations

import threading
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass, field

from spanloop.infra.process import Part


@dataclass
class Run:
    """The thread, and what the part raised."""

    thread: threading.Thread
    raised: list[BaseException] = field(default_factory=list[BaseException])


@contextmanager
def in_thread(part: Part, within_s: float) -> Generator[Run]:
    """Runs a part until the block is left; then it must leave within so many seconds, and have raised nothing."""
    stop = threading.Event()

    def run() -> None:
        try:
            part.run(stop)
        except BaseException as error:  # noqa: BLE001 - raised again below, in the test's own thread
            found.raised.append(error)

    found = Run(threading.Thread(target=run))
    found.thread.start()
    try:
        yield found
    finally:
        stop.set()
        found.thread.join(within_s)
        assert found.raised == []
        assert not found.thread.is_alive()
