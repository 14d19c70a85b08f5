"""The coordinator's process answers reports while it judges ten thousand ranks: neither Python's collector nor a long
turn in another thread may hold an answer up.

Both are settings of a process, so they are made by whoever owns it: the actor, not the classes in it.
"""

from __future__ import annotations

import gc
import sys

COLLECT_EVERY_S = 600.0
"""Between two full collections, by the keeper's clock. One takes 0.2 s at 10,000 ranks; cycles that outlive the young
generations are few: what reports replace is freed at once, by its reference counts."""
NEVER = 1_000_000
SWITCH_INTERVAL_S = 0.001
"""An answer needs the interpreter's lock a few times, and waits this long for it while a turn is under way. Python's
own 5 ms made of that 20 ms and more."""


def keep_pauses_short() -> None:
    """From now on full collections happen by ``collect`` alone. Python's own rule (when a quarter of all objects are
    new) let them happen every four seconds at 10,000 ranks, 0.17 s each: a report in twenty waited for one."""
    young, middle, _ = gc.get_threshold()
    gc.set_threshold(young, middle, NEVER)
    sys.setswitchinterval(SWITCH_INTERVAL_S)


def collect() -> None:
    """A full collection, which holds all threads up."""
    gc.collect()
