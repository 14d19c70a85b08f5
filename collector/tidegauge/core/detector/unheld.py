"""GPU memory that nobody holds: in use, with no process that it could belong to. Judged over time. Pure.

What a driver lists of a process leaves out managed memory (``cudaMallocManaged``: of 2 GiB nothing is listed), and some
9 MiB of a GPU that is in use (H200, driver 580.159, 2026-12-01; ``bench/gpu_unheld.py``). So where a process lives on a
GPU, what no list explains may be that one's: such a reading neither begins a case nor ends one.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final, NamedTuple, Optional

from tidegauge.core.ids import DeviceUuid

MIN_UNHELD_BYTES: Final = 1 << 30
"""Less is not told of: whatever drivers keep beyond their reserve is far below it, and no job fails for want of it."""
UNHELD_FOR_S: Final = 600.0
"""Until people are told. A process that was killed gives its memory back within seconds; a core dump of a large one, or
a driver that waits for a GPU which hangs, takes minutes."""


def is_unheld(for_s: Optional[float]) -> bool:
    """Whether people are told; ``for_s`` as of ``UnheldMemory``."""
    return for_s is not None and for_s >= UNHELD_FOR_S


class MemoryInUse(NamedTuple):
    """One GPU, or MIG instance, at one moment."""

    uuid: DeviceUuid
    used_bytes: int
    """Without the driver's reserve."""
    listed_bytes: int
    """What the driver lists of processes that live."""
    has_processes: bool
    """Whether any process that lives is on it, of whatever kind."""


class UnheldMemory(NamedTuple):
    """What nobody holds of a GPU."""

    size_bytes: int
    """At least, where processes came later. Below ``MIN_UNHELD_BYTES`` without a meaning."""
    for_s: Optional[float]
    """For how long it has been ``MIN_UNHELD_BYTES`` or more; ``None``: it is not."""


@dataclass
class _Case:
    since_s: float
    seen_s: float
    size_bytes: int


class UnheldMemoryWatch:
    """Follows the GPUs of one node."""

    def __init__(self) -> None:
        self._cases: dict[DeviceUuid, _Case] = {}

    def look(self, gpus: Iterable[MemoryInUse], now_s: float) -> Mapping[DeviceUuid, UnheldMemory]:
        """What nobody holds of each; GPUs of which that cannot be told are left out. ``gpus``: those that could be
        read, on a monotonic clock."""
        found = {gpu.uuid: self._look_at(gpu, now_s) for gpu in gpus}
        for uuid in [uuid for uuid, case in self._cases.items() if now_s - case.seen_s > UNHELD_FOR_S]:
            del self._cases[uuid]
        return {uuid: one for uuid, one in found.items() if one is not None}

    def _look_at(self, gpu: MemoryInUse, now_s: float) -> UnheldMemory | None:
        left_bytes = max(0, gpu.used_bytes - gpu.listed_bytes)
        if left_bytes < MIN_UNHELD_BYTES:
            self._cases.pop(gpu.uuid, None)
            return UnheldMemory(left_bytes, None)
        case = self._cases.get(gpu.uuid)
        if case is None:
            if gpu.has_processes:
                return None
            case = self._cases[gpu.uuid] = _Case(now_s, now_s, left_bytes)
        case.seen_s = now_s
        case.size_bytes = min(case.size_bytes, left_bytes) if gpu.has_processes else left_bytes
        return UnheldMemory(case.size_bytes, now_s - case.since_s)
