"""Cgroups of pods, named as a kubelet's cgroupfs driver does: ``…/kubepods/burstable/podUID/CONTAINER``."""

from __future__ import annotations

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


class NodeCgroups:
    """The cgroups of one stand-in node, below that of the process that makes them."""

    def __init__(self) -> None:
        self._parents = hierarchies()
        for parent in self._parents:
            for left in parent.glob(f"{_NODE}*"):
                if not Path(f"/proc/{left.name.removeprefix(_NODE)}").exists():
                    _remove(left, within_s=0.0)  # of a node that was killed
        self._roots = [parent / f"{_NODE}{os.getpid()}" for parent in self._parents]

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
