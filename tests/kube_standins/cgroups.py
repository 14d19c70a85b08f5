"""Cgroups of pods, named as a kubelet's cgroupfs driver does: ``…/kubepods/burstable/podUID/CONTAINER``."""

from __future__ import annotations

import fcntl
import os
import time
from contextlib import suppress
from pathlib import Path

_NODE = "tidegauge-stand-in-"
REMOVED_WITHIN_S = 20.0


def hierarchies(proc: Path = Path("/proc")) -> list[Path]:
    """This process's own cgroup in the hierarchies that a kubelet names pods in, as far as they are mounted and may be
    written to: the freezer of version 1, else version 2."""
    mounted: dict[str, Path] = {}
    for line in (proc / "self/mounts").read_text().splitlines():
        _, at, kind, options, *_ = line.split()
        if kind == "cgroup" and "freezer" in options.split(","):
            mounted["freezer"] = Path(at)
        elif kind == "cgroup2":
            mounted[""] = Path(at)
    own = {
        controllers: path
        for _, controllers, path in (line.split(":", 2) for line in (proc / "self/cgroup").read_text().splitlines())
    }
    found = [mounted[name] / own[name].lstrip("/") for name in ("freezer", "") if name in mounted and name in own]
    return [path for path in found if os.access(path, os.W_OK) and not os.statvfs(path).f_flag & os.ST_RDONLY][:1]


def node_name(pid: int) -> str:
    """The name of a node's cgroup: processes of two pid namespaces may have the same pid."""
    return f"{_NODE}{os.stat('/proc/self/ns/pid').st_ino}-{pid}"


class NodeCgroups:
    """The cgroups of one stand-in node, below that of the process that makes them.

    A node holds a lock on its cgroup as long as it lives: a pid tells nothing to a process of another pid namespace,
    and a cgroup that no process has entered yet can be removed by anybody."""

    def __init__(self) -> None:
        parents = hierarchies()
        for parent in parents:
            for left in parent.glob(f"{_NODE}*"):
                _remove_if_left(left)
        self._roots = [parent / node_name(os.getpid()) for parent in parents]
        self._locks = [_made_and_locked(root) for root in self._roots]

    def make(self, pod_uid: str, container_id: str) -> list[str]:
        paths = [root / "kubepods/burstable" / f"pod{pod_uid}" / container_id for root in self._roots]
        for path in paths:
            path.mkdir(parents=True)
        return [str(path) for path in paths]

    def remove(self, pod_uid: str) -> None:
        """All of a pod, whose processes have ended."""
        for root in self._roots:
            _remove(root / "kubepods/burstable" / f"pod{pod_uid}")

    def close(self) -> None:
        for root in self._roots:
            _remove(root)
        while self._locks:
            os.close(self._locks.pop())


def _made_and_locked(root: Path) -> int:
    while True:
        root.mkdir(exist_ok=True)
        with suppress(FileNotFoundError):
            lock = os.open(root, os.O_RDONLY | os.O_DIRECTORY)
            fcntl.flock(lock, fcntl.LOCK_EX)
            with suppress(FileNotFoundError):
                if root.stat().st_ino == os.fstat(lock).st_ino:
                    return lock
            os.close(lock)  # another node took it for one that was left, before it was locked


def _remove_if_left(root: Path) -> None:
    """The cgroup of a node that was killed."""
    with suppress(OSError):
        lock = os.open(root, os.O_RDONLY | os.O_DIRECTORY)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            _remove(root, within_s=0.0)
        finally:
            os.close(lock)


def _remove(cgroup: Path, *, within_s: float = REMOVED_WITHIN_S) -> None:
    """With those below it. A cgroup can be removed a moment after its last process has ended."""
    until_s = time.monotonic() + within_s
    while cgroup.exists():
        for folder, _, _ in os.walk(cgroup, topdown=False):
            with suppress(OSError):
                os.rmdir(folder)
        if time.monotonic() >= until_s:
            return
        time.sleep(0.01)  # between two tries; nothing is decided by it
