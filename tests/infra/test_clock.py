from __future__ import annotations

from spanloop.infra.clock import ManualClock, SystemClock


def test_a_manual_clock_moves_both_times_only_when_told() -> None:
    clock = ManualClock()
    ns, steady = clock.now_ns(), clock.steady_s()
    assert (clock.now_ns(), clock.steady_s()) == (ns, steady)
    clock.advance(1.5)
    assert clock.now_ns() - ns == 1_500_000_000
    assert abs(clock.steady_s() - steady - 1.5) < 1e-6


def test_the_system_clock_never_goes_back() -> None:
    clock = SystemClock()
    readings = [clock.steady_s() for _ in range(100)]
    assert readings == sorted(readings)
    assert clock.now_ns() > 1_700_000_000_000_000_000
