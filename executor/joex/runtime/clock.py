"""The clock by which an executor judges its lease."""

import sys
import time

if sys.platform == "win32":
    clock = time.monotonic
else:
    _CLOCK = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)

    def clock() -> float:
        """Seconds of a clock that is never set, and (where the system has one) runs while the machine is suspended."""
        return time.clock_gettime(_CLOCK)
