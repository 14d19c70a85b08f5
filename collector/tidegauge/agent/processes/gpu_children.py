"""GPU processes that descend from a rank and are not ranks: DataLoader workers that hold CUDA memory, for example.

The kernel gives their descent, NVML their memory; a worker's name is only the job's claim.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from typing import NamedTuple

from tidegauge.agent.ports import GpuReading, ProcSource
from tidegauge.core.ids import ProcessId
from tidegauge.core.views import RankView, with_fields

MAX_STRANGERS = 512
"""Unknown processes on the GPUs that are looked at in one round: one file of /proc each, and at the first look one for
each generation above them."""
LOOK_AGAIN_S = 5.0
"""How often processes without a rank above them are looked at again: their rank may not have been known yet."""


class GpuChild(NamedTuple):
    """A GPU process that descends from a rank."""

    process: ProcessId
    rank: ProcessId
    """The nearest ancestor that is a rank; stays so when a process between them has ended."""
    is_data_worker: bool
    """By its own name (``ProcSource.looks_like_data_worker``)."""


class GpuChildren:
    """Finds the GPU children of this node's ranks. For one thread."""

    def __init__(self, procs: ProcSource) -> None:
        self._procs = procs
        self._known: dict[int, GpuChild] = {}
        """By pid, as NVML lists them."""
        self._strangers: dict[int, ProcessId] = {}
        """Processes without a rank above them."""
        self._look_again_s = float("-inf")

    @property
    def pids(self) -> frozenset[int]:
        """Pids of the children found by the last look."""
        return frozenset(self._known)

    def look(self, gpus: Sequence[GpuReading], ranks: Mapping[int, ProcessId], now_s: float) -> None:
        """Find the ranks of the processes on ``gpus``; ``ranks``: living and shown ones, by pid.

        Raises ``OSError`` where that cannot be looked at; what was known before stays.
        """
        if now_s >= self._look_again_s:
            self._look_again_s = now_s + LOOK_AGAIN_S
            self._strangers.clear()
        on_gpus = {pid for gpu in gpus for pid in gpu.process_bytes or ()} - ranks.keys()
        of_ranks = frozenset(ranks.values())
        self._known = {pid: child for pid, child in self._known.items() if pid in on_gpus and child.rank in of_ranks}
        self._strangers = {pid: process for pid, process in self._strangers.items() if pid in on_gpus}
        for pid in sorted(on_gpus)[:MAX_STRANGERS]:
            self._look_at(pid, of_ranks)

    def _look_at(self, pid: int, ranks: Collection[ProcessId]) -> None:
        process = self._procs.process_at(pid)
        known = self._known.get(pid)
        if process is None or (known is not None and known.process != process):
            self._known.pop(pid, None)
        if process is None or pid in self._known or self._strangers.get(pid) == process:
            return
        rank = next((above for above in self._procs.ancestors(process) if above in ranks), None)
        if rank is None:
            self._strangers[pid] = process
        else:
            self._known[pid] = GpuChild(process, rank, self._procs.looks_like_data_worker(process))

    def named(self, views: Sequence[RankView], gpus: Sequence[GpuReading]) -> tuple[RankView, ...]:
        """``views`` with the memory of their children, which is unknown without NVML.

        A child that is shown itself, on another card, is counted too while it claims to be the same rank and ends no
        step: a worker inherits its parent's environment, and the probe with it.
        """
        if not any(gpu.process_bytes is not None for gpu in gpus):
            return tuple(views)
        children: dict[ProcessId, list[GpuChild]] = {}
        for child in self._known.values():
            children.setdefault(child.rank, []).append(child)
        for child in self._second_rings(views):
            children.setdefault(child.rank, []).append(child)
        return tuple(_with_children(view, children.get(view.process, ()), gpus) for view in views)

    def _second_rings(self, views: Sequence[RankView]) -> list[GpuChild]:
        trains = {view.process: view.key for view in views if view.steps > 0}
        found = []
        for view in views:
            if view.steps == 0 and view.alive and view.key in trains.values():
                with suppress(OSError):
                    above = next((one for one in self._procs.ancestors(view.process) if one in trains), None)
                    if above is not None and trains[above] == view.key:
                        worker = self._procs.looks_like_data_worker(view.process)
                        found.append(GpuChild(view.process, above, worker))
        return found


def _with_children(view: RankView, children: Sequence[GpuChild], gpus: Sequence[GpuReading]) -> RankView:
    held = [
        gpu.process_bytes[child.process.pid]
        for gpu in gpus
        if gpu.process_bytes is not None
        for child in children
        if child.process.pid in gpu.process_bytes
    ]
    return with_fields(
        view,
        children_bytes=None if None in held else sum(each for each in held if each is not None),
        gpu_children=len(children),
        data_workers=sum(child.is_data_worker for child in children),
    )
