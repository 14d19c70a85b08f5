"""All families by name, and the series they make."""

from __future__ import annotations

from typing import Optional

from leakseries import benign, leaks, unseen
from leakseries.machine import Machine, Series

FAMILIES = (*benign.FAMILIES, *leaks.FAMILIES)
"""Families whose seeds below 100 the detector was tuned on."""
UNSEEN = (*unseen.BENIGN, *unseen.LEAKS)
"""Families that it was not tuned on."""
_BENIGN = {**benign.FAMILIES, **unseen.BENIGN}
_LEAKS = {**leaks.FAMILIES, **unseen.LEAKS}
STILL_GROWING = frozenset(
    {"batch_ramp", "curriculum", "epoch_metrics", "late_buffer", "long_warm_up", "replay_buffer", "unfreezing"}
)
"""Benign families that grow steadily for so long that no test of shape can tell them from a leak until they stop."""
LENGTHS = (300, 400, 500, 500, 700, 1200)
LONG = 4000


def make(family: str, seed: int, steps: Optional[int] = None, *, step_s: Optional[float] = None) -> Series:
    """One series; the same for the same arguments on every machine and Python."""
    machine = Machine(seed, name=family)
    if step_s is not None:
        machine.step_s = step_s
    if steps is None:
        steps = LONG if seed % 10 == 9 else machine.random.choice(LENGTHS)
    if family in _BENIGN:
        _BENIGN[family](machine, steps)
        return Series(family, seed, machine.rows, leak=False)
    truth = _LEAKS[family](machine, steps)
    return Series(
        family, seed, machine.rows, leak=True, signal=truth.signal, onset_step=truth.onset_step,
        bytes_per_step=truth.bytes_per_step, note=truth.note,
    )  # fmt: skip
