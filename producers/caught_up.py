"""As of when a worker has read all of its assignments: whatever it reads later is younger than that."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Protocol

from ..infra.clock import Clock
from ..infra.kafka import Position
from ..schemas.errors import Unavailable

log = logging.getLogger(__name__)

# Where a clock is wrong, an assignment is taken to be older than it is by no more than this and an answer.
ASK_EVERY_S = 1.0
# An answer takes a round trip, behind the fetch that is under way. The worker waits for it, also where none comes.
ANSWER_S = 0.5


class Log(Protocol):
    """The part of infra.kafka.Reader that is used here."""

    def watermarks(self, position: Position, timeout_s: float = ...) -> tuple[int, int]: ...
    def reached(self, ends: Mapping[Position, int]) -> bool: ...


class CaughtUp:
    """Asks for the end of a partition now and then, and sees when it has been read.

    An empty poll says nothing of it: it is empty as well after the process was stopped, while the way to the broker is
    cut, and where a fetch takes longer than the poll.
    """

    def __init__(self, reader: Log, position: Position, clock: Clock) -> None:
        """Nothing that was written until now matters."""
        self._reader = reader
        self._position = position
        self._clock = clock
        self._end: int | None = None  # as of `_asked_s`, not known to have been read
        self._asked_s = self._as_of_s = clock.steady_s()

    def as_of_s(self) -> float:
        """Steady time before which nothing was written that is still to come. For when all that came is dealt with."""
        if self._end is None and self._clock.steady_s() - self._asked_s >= ASK_EVERY_S:
            self._ask()
        if self._end is not None and self._reader.reached({self._position: self._end}):
            self._as_of_s, self._end = self._asked_s, None
        return self._as_of_s

    def _ask(self) -> None:
        self._asked_s = self._clock.steady_s()  # before: the end is that of a later moment
        try:
            self._end = self._reader.watermarks(self._position, ANSWER_S)[1]
        except Unavailable as error:
            log.debug("the end of the assignments is not known: %s", error)
