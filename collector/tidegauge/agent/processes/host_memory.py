"""Host memory of every rank's process tree: DataLoader workers and other children count to the rank.

A process counts with its proportional part of anonymous and shared memory (``smaps_rollup``), so that pages shared by
forked workers count once. The kernel walks page tables for that (4 ms per GiB of small pages), so it is read
seldom, in a thread of its own, within a bounded share of a core; between two such readings, anonymous memory
(``statm``, a microsecond) gives the increase.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Collection, Iterable
from contextlib import suppress
from dataclasses import dataclass
from typing import Protocol

from tidegauge.agent.ports import ProcessUsage, SourceHealth
from tidegauge.agent.processes.host_limits import CgroupRooms, read_node_memory
from tidegauge.agent.processes.procfs import DATA_WORKER, ProcFs
from tidegauge.agent.processes.trees import ProcessList, ProcessTrees
from tidegauge.core.host_memory import SHOWN_PROCESSES, HostMemory, HostProcess, NodeMemory
from tidegauge.core.ids import ProcessId
from tidegauge.core.proc_stat import ProcStat
from tidegauge.core.text import one_line

_log = logging.getLogger(__name__)

SCAN_EVERY_S = 2.0
"""How often new children are looked for, and limits read; with a thousand ranks more rarely, see ``CPU_SHARE``."""
READ_EVERY_S = 10.0
"""Between two readings of a tree whose processes are the same: copy-on-write and shared memory show then."""
SETTLING_LOOKS = 3
"""Looks after which a tree that changes at each of them is read all the same. While a DataLoader starts workers, a
reading would be too small: they share its pages already, and are not in the list yet."""
SETTLED_S = 120.0
"""From its first reading: so long an interpreter imports, a worker that is spawned torch too, and forks copy what they
share. Growth is counted from there on, in younger processes from the first reading."""
MAX_ENDING_S = 60.0
"""How long readings do not count while a process ends: the kernel needs a second for 50 GiB."""
CPU_SHARE = 0.01
"""Of a core, for readings of trees, and as much for looking for children. A rank of 400 MiB takes a millisecond or
two, one of 20 GiB and eight workers that share it some 0.7 s; then trees are read less often."""
CPU_BURST_S = 0.25
"""Unused share that is kept: the start of a job has many new trees at once."""


class ProcessMemory(ProcessList, Protocol):
    """Memory figures of this node's processes. ``OSError``: looking failed."""

    def usage(self, process: ProcessId) -> ProcessUsage | None:
        """Cheap figures; ``None`` once it has ended."""

    def proportional_bytes(self, process: ProcessId) -> int | None:
        """Its part of anonymous and shared memory; ``None`` if it ended or that may not be read."""

    def cgroup(self, process: ProcessId) -> str:
        """/proc/PID/cgroup; empty if it ended."""


class HostMemorySource(Protocol):
    """Host memory of this node and its ranks. Never blocks; answers arrive later."""

    def watch(self, ranks: Collection[ProcessId]) -> None:
        """Set the ranks to measure; a rank below another one counts by itself."""

    def of(self, rank: ProcessId, own_bytes: int | None) -> HostMemory | None:
        """``None`` before its tree was measured. ``own_bytes``: anonymous memory of its own process now."""

    def node(self) -> NodeMemory | None:
        """``None`` before it was read."""

    def health(self) -> SourceHealth | None:
        """The last reading's result; ``None`` before it, and where none is made."""

    def close(self) -> None:
        """End the readings."""


class NoHostMemory:
    """The ``HostMemorySource`` of an agent that reads no processes but the ranks' own."""

    def watch(self, ranks: Collection[ProcessId]) -> None:
        pass

    def of(self, rank: ProcessId, own_bytes: int | None) -> None:  # noqa: ARG002 - the port's
        return None

    def node(self) -> None:
        return None

    def health(self) -> SourceHealth | None:
        return None

    def close(self) -> None:
        pass


@dataclass
class _Member:
    """A process of a tree, at the tree's last reading and at the last look at it."""

    process: ProcessId
    name: str
    held_bytes: int
    """At the reading: its part of anonymous and shared memory."""
    anonymous_bytes: int
    """At the reading, by ``statm``: all of it, whoever shares it."""
    first_bytes: int
    """When it was first measured, and once it has settled, then."""
    last_bytes: int
    """At the last look; of an ended process until the tree is read again."""
    first_s: float
    settled: bool
    """It was first measured ``SETTLED_S`` before the reading, or earlier."""


@dataclass
class _Tree:
    members: dict[ProcessId, _Member]
    read_s: float
    cgroup: str
    """/proc/PID/cgroup of the rank."""
    free_bytes: int | None = None
    changed_to: frozenset[ProcessId] = frozenset()
    """Its processes at the last look, where they were others than at the reading."""
    changed_looks: int = 0

    def has_settled(self, processes: frozenset[ProcessId]) -> bool:
        """Whether the processes, which differ from the reading's, are those of the look before; at every such look."""
        same, self.changed_to = processes == self.changed_to, processes
        self.changed_looks += 1
        return same or self.changed_looks > SETTLING_LOOKS


class HostMemoryMeter:
    """The ``HostMemorySource`` of a real machine. Thread-safe; ``start`` begins the thread that reads."""

    def __init__(
        self,
        processes: ProcessMemory,
        *,
        rooms: CgroupRooms | None = None,
        read_node: Callable[[], NodeMemory] = read_node_memory,
        monotonic_s: Callable[[], float] = time.monotonic,
        cpu_s: Callable[[], float] = time.thread_time,
    ) -> None:
        """``cpu_s``: processor time of the thread that calls ``look``."""
        self._processes = processes
        self._rooms = rooms or CgroupRooms()
        self._read_node = read_node
        self._monotonic_s = monotonic_s
        self._cpu_s = cpu_s
        self._trees_of = ProcessTrees(processes)
        self._lock = threading.Lock()
        self._closing = threading.Event()
        self._ranks: frozenset[ProcessId] = frozenset()
        self._trees: dict[ProcessId, _Tree] = {}
        self._node: NodeMemory | None = None
        self._allowance_s = CPU_BURST_S
        self._looked_s: float | None = None
        self._health: SourceHealth | None = None
        self.pause_s = SCAN_EVERY_S
        """Until the next look, after this one."""

    def watch(self, ranks: Collection[ProcessId]) -> None:
        with self._lock:
            self._ranks = frozenset(ranks)

    def of(self, rank: ProcessId, own_bytes: int | None) -> HostMemory | None:
        with self._lock:
            tree = self._trees.get(rank)
            if tree is None:
                return None
            for member in tree.members.values():
                anonymous = own_bytes if member.process == rank else self._anonymous_bytes(member.process)
                if anonymous:
                    member.last_bytes = max(0, member.held_bytes + anonymous - member.anonymous_bytes)
            members = list(tree.members.values())
            return HostMemory(
                sum(member.last_bytes for member in members), tree.free_bytes, _largest(members)
            )  # fmt: skip

    def node(self) -> NodeMemory | None:
        return self._node

    def health(self) -> SourceHealth | None:
        return self._health

    def start(self) -> None:
        """Read the node's figures at once, and from then on everything in a daemon thread. Once."""
        self._look_and_note()
        threading.Thread(target=self._run, name="tidegauge-host", daemon=True).start()

    def close(self) -> None:
        """Ends the thread after the reading that is under way, for which it does not wait."""
        self._closing.set()

    def look(self) -> None:
        """Find the processes of every rank, and read the trees whose turn it is."""
        now_s = self._monotonic_s()
        passed_s = 0.0 if self._looked_s is None else now_s - self._looked_s
        self._looked_s = now_s
        self._allowance_s = min(CPU_BURST_S, self._allowance_s + passed_s * CPU_SHARE)
        node = self._node = self._read_node()
        self._rooms.forget()
        with self._lock:
            ranks = self._ranks
        began_s, read_s = self._cpu_s(), 0.0
        trees = self._trees_of.scan(ranks) if ranks else {}
        with self._lock:
            self._trees = {rank: tree for rank, tree in self._trees.items() if trees.get(rank)}
        for rank, stats in sorted(trees.items(), key=lambda one: self._turn(*one)):
            if not stats:
                continue
            known = self._trees.get(rank)
            if known is None:
                due = True
            elif _is_other(known, stats):
                due = known.has_settled(frozenset(stat.process for stat in stats))
            else:
                due = now_s - known.read_s >= READ_EVERY_S
            if due and self._allowance_s > 0:
                read_began_s = self._cpu_s()
                fresh = self._read(rank, stats, known, now_s)
                if known is None or not _one_ends(known, fresh, stats) or now_s - known.read_s >= MAX_ENDING_S:
                    known = fresh
                read_s += self._cpu_s() - read_began_s
                self._allowance_s -= self._cpu_s() - read_began_s
            if known is not None:
                free = _least(self._rooms.left(known.cgroup), node.available_bytes)
                with self._lock:
                    known.free_bytes = free
                    self._trees[rank] = known
        self.pause_s = max(SCAN_EVERY_S, (self._cpu_s() - began_s - read_s) / CPU_SHARE)

    def _turn(self, rank: ProcessId, stats: tuple[ProcStat, ...]) -> tuple[bool, float]:
        """Sort key: new and changed trees first, then those that were read longest ago."""
        known = self._trees.get(rank)
        if known is None:
            return False, float("-inf")
        return not _is_other(known, stats), known.read_s

    def _read(self, rank: ProcessId, stats: Iterable[ProcStat], before: _Tree | None, now_s: float) -> _Tree:
        members = {}
        for stat in stats:
            known = None if before is None else before.members.get(stat.process)
            member = None
            with suppress(OSError):  # of one process; it is there at the next reading, or has ended
                member = self._measure(stat, known, now_s)
            if member is not None:
                members[stat.process] = member
        cgroup = "" if before is None else before.cgroup
        with suppress(OSError):
            cgroup = self._processes.cgroup(rank)
        return _Tree(members, now_s, cgroup)

    def _measure(self, stat: ProcStat, known: _Member | None, now_s: float) -> _Member | None:
        process = stat.process
        held = self._processes.proportional_bytes(process)
        anonymous = self._anonymous_bytes(process)
        if anonymous is None:
            return None
        if held is None:
            # May not be read: what a fork had at first is its parent's, and counted there.
            base = anonymous if stat.forked else 0
            held = anonymous - base if known is None else known.held_bytes + anonymous - known.anonymous_bytes
        first_s = now_s if known is None else known.first_s
        settled = now_s - first_s >= SETTLED_S
        first = known.first_bytes if known is not None and known.settled == settled else held
        return _Member(process, _name(stat), held, anonymous, first, held, first_s, settled)

    def _anonymous_bytes(self, process: ProcessId) -> int | None:
        """``None`` for a process that has ended or has no memory left: the kernel frees that first, and what it shared
        counts to others by then."""
        try:
            usage = self._processes.usage(process)
        except OSError:
            return None
        return (usage.anonymous_bytes or None) if usage is not None else None

    def _run(self) -> None:
        while not self._closing.wait(self.pause_s):
            self._look_and_note()

    def _look_and_note(self) -> None:
        before, began_s = self._health, self._monotonic_s()
        try:
            self.look()
            success = True
        except Exception as error:
            if before is None or before.success:
                expected = isinstance(error, OSError)
                _log.warning("host memory cannot be read; retrying: %s", error, exc_info=not expected)
            self._node, success = None, False
        self._health = SourceHealth(success, self._monotonic_s() - began_s)


def _least(*known: int | None) -> int | None:
    return min((each for each in known if each is not None), default=None)


def _is_other(tree: _Tree, stats: tuple[ProcStat, ...]) -> bool:
    return tree.members.keys() != {stat.process for stat in stats}


def _one_ends(before: _Tree, fresh: _Tree, stats: tuple[ProcStat, ...]) -> bool:
    """Whether a process lost its memory since ``before``: what it shared is on its way to the others."""
    return any(stat.process in before.members and stat.process not in fresh.members for stat in stats)


def _name(stat: ProcStat) -> str:
    return "DataLoader worker" if stat.name == DATA_WORKER else one_line(stat.name)


def _largest(members: Iterable[_Member]) -> tuple[HostProcess, ...]:
    largest = sorted(members, key=lambda member: member.last_bytes, reverse=True)[:SHOWN_PROCESSES]
    return tuple(
        HostProcess(member.process, member.name, member.last_bytes, member.last_bytes - member.first_bytes)
        for member in largest
    )


def open_host_memory(procs: ProcFs) -> HostMemorySource:
    """The memory of this machine, read from now on."""
    meter = HostMemoryMeter(procs)
    meter.start()
    return meter
