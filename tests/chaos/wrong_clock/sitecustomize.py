"""On the PYTHONPATH of a service whose wall clock is to be wrong: shifts it by the seconds that a file says, now and
whenever they change. CLOCK_MONOTONIC is left alone. See ``chaos.clocks``.
"""

import os
import time

_PATH = os.environ["CHAOS_CLOCK_OFFSET_FILE"]
_true_time_ns = time.time_ns


def _offset_s() -> int:
    with open(_PATH) as file:
        return int(file.read())


def _time_ns() -> int:
    return _true_time_ns() + _offset_s() * 10**9


def _time() -> float:
    return _time_ns() / 1e9


time.time, time.time_ns = _time, _time_ns
