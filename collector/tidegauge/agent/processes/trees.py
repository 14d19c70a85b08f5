"""Process trees of the ranks, from the kernel, at the cost of one list of pids.

Each process is read when its pid first appears. Its parent stays its parent, by pid and start time: a process whose
parent has ended counts to that parent's parent, as the rank that started it still pays for it.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from itertools import chain, islice
from typing import Protocol

from tidegauge.core.ids import ProcessId
from tidegauge.core.proc_stat import ProcStat
from tidegauge.osproc.processes import MAX_GENERATIONS

MAX_PROCESSES = 65_536
"""Processes of one node; higher pids are not looked at."""
MAX_TREE_PROCESSES = 256
"""Processes of one rank, the oldest: a DataLoader has some tens of workers."""
RECHECKED = 16
"""Processes that are looked at again in one scan although their pids are known: another may have taken the pid, if all
others were given out within the two seconds between two scans."""


class ProcessList(Protocol):
    """The processes of this node. ``OSError``: looking failed."""

    def pids(self) -> Sequence[int]:
        """Pids of all processes."""

    def stat(self, pid: int) -> ProcStat | None:
        """/proc/PID/stat; ``None`` if there is none."""


class ProcessTrees:
    """Tracks which process descends from which rank. For one thread."""

    def __init__(self, processes: ProcessList) -> None:
        self._processes = processes
        self._known: dict[int, ProcStat] = {}
        self._parents: dict[ProcessId, ProcessId] = {}
        """Of each known process whose parent is known."""
        self._ranks: frozenset[ProcessId] = frozenset()
        self._below: frozenset[ProcessId] = frozenset()
        """These and all that descend from them: the trees stay as they are while none of them ends or gets a child."""
        self._in_trees: Mapping[ProcessId, tuple[int, ...]] = {}
        """Pids of the last scan's trees, whose names and life are looked up each time."""
        self._turn = 0

    def scan(self, ranks: frozenset[ProcessId]) -> Mapping[ProcessId, tuple[ProcStat, ...]]:
        """The trees of ``ranks`` now: each rank's own process first, then its descendants, the oldest first. What
        descends from several belongs to the nearest."""
        pids = set(sorted(self._processes.pids())[:MAX_PROCESSES])
        ended = self._known.keys() - pids
        new = sorted(pids - self._known.keys())
        fresh: dict[int, ProcStat] = {}
        for pid in (*new, *self._to_recheck()):
            with suppress(OSError):
                stat, before = self._processes.stat(pid), self._known.get(pid)
                living = None if stat is None or stat.ended else stat
                if before is not None and (living is None or living.process != before.process):
                    ended.add(pid)
                if living is not None:
                    fresh[pid] = living
        changed = self._ranks != ranks or not self._below.isdisjoint(self._known[pid].process for pid in ended)
        self._let_go(ended)
        for pid, stat in fresh.items():
            first = stat.process not in self._parents
            self._known[pid] = stat
            changed = changed or (stat.process in ranks and stat.process not in self._below)
            parent = self._known.get(stat.parent_pid) or fresh.get(stat.parent_pid)
            # A parent is older than its child: a younger one took the pid of a parent that ended.
            if first and parent is not None and parent.process.start_ticks <= stat.process.start_ticks:
                self._parents[stat.process] = parent.process
                changed = changed or parent.process in self._below
        if changed:
            self._find_trees(ranks)
        return {rank: tuple(map(self._known.__getitem__, tree)) for rank, tree in self._in_trees.items()}

    def _to_recheck(self) -> set[int]:
        begin = self._turn % max(1, len(self._known))
        self._turn = begin + RECHECKED
        rechecked = islice(self._known, begin, begin + RECHECKED)
        return {*rechecked, *chain.from_iterable(self._in_trees.values())} & self._known.keys()

    def _let_go(self, ended: Collection[int]) -> None:
        """Forget processes; their children count to their nearest living ancestor."""
        above = {}
        for pid in ended:
            process = self._known.pop(pid).process
            above[process] = self._parents.pop(process, None)
        if not above:
            return
        for child, parent in list(self._parents.items()):
            if parent not in above:
                continue
            heir: ProcessId | None = parent
            while heir is not None and heir in above:
                heir = above[heir]
            if heir is None:
                del self._parents[child]
            else:
                self._parents[child] = heir

    def _find_trees(self, ranks: frozenset[ProcessId]) -> None:
        found: dict[ProcessId, list[ProcessId]] = {rank: [] for rank in ranks}
        of_parents: dict[ProcessId, ProcessId | None] = {}
        for stat in self._known.values():
            rank = self._rank_of(stat.process, ranks, of_parents)
            if rank is not None:
                found[rank].append(stat.process)
        self._ranks, self._below = ranks, frozenset(chain.from_iterable(found.values()))
        for rank, tree in found.items():
            tree.sort(key=lambda process: (process != rank, process.start_ticks, process.pid))
        self._in_trees = {
            rank: tuple(process.pid for process in tree[:MAX_TREE_PROCESSES]) for rank, tree in found.items()
        }

    def _rank_of(
        self, process: ProcessId, ranks: frozenset[ProcessId], of_parents: dict[ProcessId, ProcessId | None]
    ) -> ProcessId | None:
        """The nearest rank above a process. ``of_parents``: that of each parent, found once for all its children."""
        if process in ranks:
            return process
        parent = self._parents.get(process)
        if parent is not None and parent not in of_parents:
            at: ProcessId | None = parent
            for _ in range(MAX_GENERATIONS):
                if at is None or at in ranks:
                    break
                at = self._parents.get(at)
            of_parents[parent] = at if at in ranks else None
        return None if parent is None else of_parents[parent]
