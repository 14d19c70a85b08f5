"""Host memory as values: of a rank's process tree, and of a node. Text of /proc in, values out."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple, Optional

from tidegauge.core.ids import ProcessId

KIB = 1024
TOLD_GROWTH_BYTES = 64 << 20
"""Growth of one process that is told: less is how interpreters begin."""


class HostProcess(NamedTuple):
    """One process in the process tree of a rank."""

    process: ProcessId
    name: str
    """``DataLoader worker``, else the command's name (``comm`` of proc(5)), printable: its own word, no evidence."""
    held_bytes: int
    """Anonymous and shared memory; of what several processes share, its part (as in PSS)."""
    grown_bytes: int
    """Since it was first measured, without its first two minutes once they have passed; may be negative."""


def grown_most(processes: Sequence[HostProcess]) -> Optional[HostProcess]:
    """The process that grew most; ``None`` where none grew by enough to be told."""
    most = max(processes, key=lambda process: process.grown_bytes, default=None)
    return most if most is not None and most.grown_bytes >= TOLD_GROWTH_BYTES else None


@dataclass(frozen=True)
class HostMemory:
    """Memory held by a rank's process and its descendants."""

    held_bytes: int
    """Anonymous and shared memory, each page once: mapped files are left out, the kernel can drop those."""
    free_bytes: Optional[int] = None
    """By how much it may grow before the kernel kills a process: what the nearest memory cgroup with a limit and the
    node have left; ``None``: not known."""
    processes: tuple[HostProcess, ...] = ()
    """The largest, at most ``SHOWN_PROCESSES``."""


SHOWN_PROCESSES = 4
"""Of a rank, beside its figure: every report of a node carries them."""


class NodeMemory(NamedTuple):
    """Memory of one node now, in bytes; ``None`` is a figure that could not be had."""

    total_bytes: Optional[int] = None
    """``MemTotal`` of /proc/meminfo."""
    available_bytes: Optional[int] = None
    """``MemAvailable``: what processes can still have without swapping."""
    shm_total_bytes: Optional[int] = None
    """Size of /dev/shm."""
    shm_used_bytes: Optional[int] = None


def kib_field(text: str, field: str) -> Optional[int]:
    """Bytes of a line such as ``MemTotal:  24684092 kB`` in meminfo, status or smaps_rollup; ``None`` without it."""
    for line in text.split("\n"):
        if line.startswith(field + ":"):
            words = line.split()
            return int(words[1]) * KIB if len(words) == 3 and words[1].isdigit() else None
    return None


def proportional_bytes(rollup: str) -> Optional[int]:
    """``Pss_Anon`` and ``Pss_Shmem`` of /proc/PID/smaps_rollup (proc_pid_smaps(5)): what a process holds that the
    kernel cannot drop, each page divided by the number of processes that map it."""
    anonymous, shared = kib_field(rollup, "Pss_Anon"), kib_field(rollup, "Pss_Shmem")
    return None if anonymous is None or shared is None else anonymous + shared
