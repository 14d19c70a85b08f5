"""Recorded memory, played for as long as it is wanted: a leak goes on leaking, everything else is repeated.

The recordings are those of the detector's tests (tests/data/series*): from real GPUs and from the fake-GPU rig.
"""

from __future__ import annotations

import random
import statistics
import sys
from collections.abc import Sequence
from functools import cache
from pathlib import Path

from fleet.ring_files import Memory

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "tests")]

from leakseries.machine import Row, Series  # noqa: E402
from leakseries.recorded import loop_recordings, recorded_series, rig_series  # noqa: E402

MIN_ROWS = 100
"""A shorter recording is not played: it says too little about how its loop goes on."""


class Replay:
    """One rank's memory, step by step, without an end. Has no state: one replay serves any number of ranks."""

    def __init__(self, name: str, rows: Sequence[Row], *, leak: bool, onset_step: int | None = None) -> None:
        """``leak``: each round goes on from the level at which the one before ended; ``onset_step``: its begin."""
        self.name = name
        self.leak = leak
        self._rows = [Memory(row.allocated, row.reserved, max(row.allocated, row.peak_allocated)) for row in rows]
        self._begin = _first_of_round(rows, leak=leak, onset_step=onset_step)
        part = self._rows[self._begin :]
        self._gain = tuple(_gain([memory[at] for memory in part]) if leak else 0 for at in range(2))

    def at(self, index: int) -> Memory:
        """The memory at the end of step ``index``, from 0."""
        if index < len(self._rows):
            return self._rows[index]
        lap, at = divmod(index - self._begin, len(self._rows) - self._begin)
        memory = self._rows[self._begin + at]
        if not self.leak:
            return memory
        allocated, reserved = (gain * lap for gain in self._gain)
        reserved = max(allocated, reserved)
        return Memory(memory[0] + allocated, memory[1] + reserved, memory[2] + allocated)


def _first_of_round(rows: Sequence[Row], *, leak: bool, onset_step: int | None) -> int:
    """What comes before is the start of a job and played once: a quarter, or all before a leak begins."""
    quarter = len(rows) // 4
    if not leak or onset_step is None:
        return quarter
    onset = next((at for at, row in enumerate(rows) if row.step >= onset_step), quarter)
    return max(min(quarter, len(rows) // 2), min(onset, len(rows) // 2))


def _gain(values: Sequence[int]) -> int:
    """By how much the values rise from their first to their last tenth, and on to where the next round begins."""
    tenth = max(1, len(values) // 10)
    rise = statistics.median(values[-tenth:]) - statistics.median(values[:tenth])
    return max(0, round(rise / 0.9))


@cache
def replays() -> tuple[Replay, ...]:
    """Every recording that can be seen in a ring: what leaks outside PyTorch's allocator is NVML's to tell."""
    recordings = [*recorded_series(), *rig_series(), *loop_recordings()]
    return tuple(_replay(one) for one in recordings if len(one.rows) >= MIN_ROWS and one.signal != "nontorch")


def _replay(recording: Series) -> Replay:
    name = f"{recording.family}_{recording.seed}"
    return Replay(name, recording.rows, leak=recording.leak, onset_step=recording.onset_step)


def choose(count: int, *, leak_share: float = 0.05, seed: int = 1) -> list[Replay]:
    """``count`` replays, this share of them leaks, the same for the same ``seed``."""
    chance = random.Random(seed)
    leaks, others = ([one for one in replays() if one.leak is leak] for leak in (True, False))
    return [chance.choice(leaks if chance.random() < leak_share else others) for _ in range(count)]
