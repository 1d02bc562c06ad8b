"""`off_clock.py SECONDS spanloop-command…`: a spanloop process whose wall clock is off by so much.

The shift is put into `time.time` and `time.time_ns` before anything of ours is imported, which is where every clock
of the package and of OpenTelemetry comes from; steady clocks and librdkafka's own time are as they are.
"""

from __future__ import annotations

import sys
import time


def shift(seconds: float) -> None:
    """Sets this process's wall clock off."""
    wall_s, wall_ns = time.time, time.time_ns
    time.time = lambda: wall_s() + seconds
    time.time_ns = lambda: wall_ns() + int(seconds * 1e9)


if __name__ == "__main__":
    shift(float(sys.argv[1]))
    from spanloop.cli import main

    sys.argv = ["spanloop", *sys.argv[2:]]
    main()
