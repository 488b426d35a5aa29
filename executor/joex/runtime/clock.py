"""The clock by which an executor judges its lease."""

import time

_CLOCK = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)


def clock() -> float:
    """Seconds of a clock that is never set, and goes on while the machine is suspended (where there is such a one)."""
    return time.clock_gettime(_CLOCK)
