"""Host memory limits: how much a process may still take from its memory cgroups and its node, and the node's figures.

The kernel kills when a cgroup reaches its limit or the node has nothing left. A cgroup's usage includes file pages,
which the kernel drops before it kills anybody: they count as free.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

from tidegauge.agent.opening.safe_files import opened
from tidegauge.core.host_memory import NodeMemory, kib_field

CGROUPS = Path("/sys/fs/cgroup")
SHM = Path("/dev/shm")
UNLIMITED_BYTES = 1 << 60
"""cgroup v1 says "no limit" by a number near 2**63."""
MAX_LEVELS = 32
MAX_FILE_BYTES = 1 << 16
"""The kernel writes some 4 KiB at most, and all of it at the first read(2)."""


def read_node_memory(proc: Path = Path("/proc"), shm: Path = SHM) -> NodeMemory:
    """Read /proc/meminfo and the file system at ``shm``; what cannot be read is ``None``."""
    text = _read(f"{proc}/meminfo") or ""
    shm_total = shm_used = None
    with suppress(OSError):
        status = os.statvfs(shm)
        shm_total = status.f_blocks * status.f_frsize
        shm_used = (status.f_blocks - status.f_bfree) * status.f_frsize
    return NodeMemory(kib_field(text, "MemTotal"), kib_field(text, "MemAvailable"), shm_total, shm_used)


class CgroupRooms:
    """Free bytes of memory cgroups; each is read once until ``forget``, as a job's ranks share all or most of them."""

    def __init__(self, root: Path = CGROUPS) -> None:
        """``root``: where cgroups are mounted, see cgroups(7)."""
        self._root = str(root)
        self._rooms: dict[str, int | None] = {}
        self._left: dict[str, int | None] = {}

    def forget(self) -> None:
        """Read everything again."""
        self._rooms.clear()
        self._left.clear()

    def left(self, cgroup: str) -> int | None:
        """Bytes until the nearest limit above a process, from its /proc/PID/cgroup; ``None`` where there is none, or
        its cgroups cannot be seen from here: those of a container whose cgroup namespace is not ours."""
        if cgroup not in self._left:
            self._left[cgroup] = self._least_room(cgroup)
        return self._left[cgroup]

    def _least_room(self, cgroup: str) -> int | None:
        left = []
        for base, path, room in _hierarchies(self._root, cgroup):
            if ".." in path.split("/"):
                return None
            at = f"{base}/{path.strip('/')}".rstrip("/")
            for _ in range(MAX_LEVELS):
                if at not in self._rooms:
                    self._rooms[at] = room(at)
                left.append(self._rooms[at])
                if at == base:
                    break
                at = at.rpartition("/")[0]
        return min((each for each in left if each is not None), default=None)


def _hierarchies(root: str, cgroup: str) -> Iterator[tuple[str, str, Callable[[str], int | None]]]:
    """Where the memory controller may be: version 1 in a hierarchy of its own, version 2 in the only one."""
    for line in cgroup.split("\n"):
        number, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        if "memory" in controllers.split(","):
            yield f"{root}/memory", path, _room_v1
        elif number == "0" and not controllers:
            yield root, path, _room_v2


def _room_v2(at: str) -> int | None:
    limit, used = _number(f"{at}/memory.max"), _number(f"{at}/memory.current")
    if limit is None or used is None:
        return None
    return _room(limit, used, _read(f"{at}/memory.stat") or "", "inactive_file", "active_file")


def _room_v1(at: str) -> int | None:
    limit, used = _number(f"{at}/memory.limit_in_bytes"), _number(f"{at}/memory.usage_in_bytes")
    if limit is None or used is None or limit >= UNLIMITED_BYTES:
        return None
    return _room(limit, used, _read(f"{at}/memory.stat") or "", "total_inactive_file", "total_active_file")


def _room(limit: int, used: int, stat: str, *dropped: str) -> int:
    fields = (line.partition(" ") for line in stat.split("\n"))
    files = sum(int(number) for name, _, number in fields if name in dropped and number.isdigit())
    return max(0, limit - max(0, used - files))


def _number(path: str) -> int | None:
    """``None`` for ``max``, and where the level has no such file: the root."""
    text = (_read(path) or "").strip()
    return int(text) if text.isdigit() else None


def _read(path: str) -> str | None:
    try:
        with opened(path, os.O_RDONLY | os.O_CLOEXEC) as fd:
            return os.read(fd, MAX_FILE_BYTES).decode(errors="replace")
    except OSError:
        return None
