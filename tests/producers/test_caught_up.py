from collections.abc import Mapping
from dataclasses import dataclass

from spanloop.infra.clock import ManualClock
from spanloop.infra.kafka import Position
from spanloop.producers.caught_up import ANSWER_S, ASK_EVERY_S, CaughtUp
from spanloop.schemas.errors import Unavailable

AT: Position = ("assignments", 0)


@dataclass
class Log:
    """A partition and how far it has been read."""

    end: int = 5
    read: int = 5
    away: bool = False
    asked: int = 0

    def watermarks(self, position: Position, timeout_s: float = 0.0) -> tuple[int, int]:
        assert (position, timeout_s) == (AT, ANSWER_S)
        self.asked += 1
        if self.away:
            raise Unavailable("away")
        return 0, self.end

    def reached(self, ends: Mapping[Position, int]) -> bool:
        return self.read >= ends[AT]


def world() -> tuple[Log, ManualClock, CaughtUp]:
    log, clock = Log(), ManualClock()
    return log, clock, CaughtUp(log, AT, clock)


def test_it_asks_now_and_then_and_moves_on_where_all_was_read() -> None:
    log, clock, caught_up = world()
    start_s = clock.steady_s()
    for _ in range(10):
        clock.advance(ASK_EVERY_S / 4)
        assert clock.steady_s() - caught_up.as_of_s() < ASK_EVERY_S
    assert caught_up.as_of_s() > start_s
    assert log.asked == 2


def test_after_a_stop_it_stays_until_what_came_meanwhile_was_read() -> None:
    log, clock, caught_up = world()
    before_s = clock.steady_s()
    log.end = 6
    clock.advance(60)
    for _ in range(5):  # polls that come back empty
        assert caught_up.as_of_s() == before_s
        clock.advance(0.02)
    assert log.asked == 1
    log.read = 6
    assert caught_up.as_of_s() == before_s + 60  # not later: what was written since may still come


def test_while_the_broker_does_not_answer_it_stays_and_asks_again_later() -> None:
    log, clock, caught_up = world()
    before_s = clock.steady_s()
    log.away = True
    for _ in range(8):
        clock.advance(ASK_EVERY_S / 2)
        assert caught_up.as_of_s() == before_s
    assert log.asked == 4
    log.away = False
    clock.advance(ASK_EVERY_S)
    assert caught_up.as_of_s() == clock.steady_s()


def test_more_than_it_can_read_does_not_keep_it_from_moving_on() -> None:
    log, clock, caught_up = world()
    for _ in range(4):
        log.end += 10
        clock.advance(ASK_EVERY_S)
        asked_s = clock.steady_s()
        caught_up.as_of_s()
        log.end += 10
        log.read += 10
        assert caught_up.as_of_s() == asked_s
        log.read = log.end
