"""In every process of the rig (``build.py`` puts it there): before the interpreter ends, other threads come to rest.

PyTorch's threads let go of Python objects after ``backward()`` or a collective has returned, and abort the process if
the interpreter has begun to end by then (pytorch#190489; Python below 3.14): one of a hundred jobs that end right after
such a call, on a busy machine. No test is to depend on that.
"""

from __future__ import annotations

import atexit
import os
import sys
import threading
import time
from contextlib import suppress

LOOK_EVERY_S = 0.002
MAX_LOOKS = 1000
"""For a thread that never rests. Not a time: a machine that stands still for seconds lets nobody come to rest."""
LOOKS = 3
"""In a row without a thread at work: who waits for the interpreter's lock gets it in between."""


def settle() -> None:
    if "torch" not in sys.modules:
        return
    at_rest = 0
    for _ in range(MAX_LOOKS):
        time.sleep(LOOK_EVERY_S)
        at_rest = 0 if _others_work() else at_rest + 1
        if at_rest == LOOKS:
            return


def _others_work() -> bool:
    own = str(threading.get_native_id())
    for thread in os.listdir("/proc/self/task"):
        with suppress(OSError):
            if thread != own and _state(thread) in ("R", "D"):
                return True
    return False


def _state(thread: str) -> str:
    with open(f"/proc/self/task/{thread}/stat") as stat:
        return stat.read().rpartition(")")[2].split()[0]


atexit.register(settle)  # at the start of the interpreter, so that it is called last
