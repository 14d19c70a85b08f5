"""Reads a process's pod and container from its cgroup path, as kubelet and container runtimes name them.

The kernel guarantees it: a container cannot leave the cgroup it was started in. One that may create cgroups creates
them below its own, under any name, so the outermost pod in a path counts.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from tidegauge.core.jobs.kubernetes import PodCgroup

_UID = r"([0-9a-f]{8}(?:[-_][0-9a-f]{4}){3}[-_][0-9a-f]{12}|[0-9a-f]{32})"
"""Of a pod from the API server, or of a static one, whose uid is a hash of its manifest."""
_SLICE = re.compile(rf"(?:.+-)?kubepods(?:-burstable|-besteffort)?-pod{_UID}\.slice(?::[a-z-]+:([0-9a-f]{{64}}))?")
"""The kubelet's driver is systemd: ``kubepods-burstable-pod8a1c_….slice``, with ``_`` for ``-``. Under a containerd
whose own driver is cgroupfs the container follows in the same name, ``….slice:cri-containerd:7f3a…``."""
_FOLDER = re.compile(rf"pod{_UID}")
"""The driver is cgroupfs: ``/kubepods/burstable/pod8a1c-…``; without a class for Guaranteed pods."""
_CLASSES = ("burstable", "besteffort")
_CONTAINER = re.compile(r"(?:[a-z][a-z0-9-]*-)?([0-9a-f]{64})(?:\.scope)?")
"""``7f3a…``, ``cri-containerd-7f3a….scope``, ``crio-…``, ``docker-…``, ``libpod-…``."""
_MONITOR = "crio-conmon-"
"""cri-o's process beside a container, which is not in it."""
_USERS_OWN = re.compile(
    r"user\.slice|(?!(?:containerd|k3s|k3s-agent|rke2-server|rke2-agent)\.service).+\.service|libpod.*|lxc.*"
)
"""Below these a user of the node may make cgroups of any name, if root let them (``Delegate=`` of
systemd.resource-control(5)). Services that run containers are root's."""

_ENGINES = re.compile(
    r"/(?:(?!user\.slice)[^/]+\.slice/)+(?:docker|libpod|nerdctl)-(?P<id>[0-9a-f]{64})\.scope(?:/|$)"
    r"|/(?:docker/|libpod_parent/libpod-|default/)(?P<id_>[0-9a-f]{64})(?:/|$)"
)
"""Docker, Podman and nerdctl of root's where systemd makes their cgroups, and where they do themselves. From the root
down: below any other cgroup somebody may be allowed to make some of these names."""


def pod_cgroup_of(cgroup: str) -> PodCgroup | None:
    """The pod that ``/proc/PID/cgroup`` places a process in, see cgroups(7); ``None`` outside pods.

    Where hierarchies (cgroup v1) name several pods none is believed: the kubelet puts a container below one.
    """
    found = {pod for line in cgroup.split("\n") if (pod := _pod_in(line.split(":", 2)[-1])) is not None}
    if len({pod.pod_uid for pod in found}) != 1:
        return None
    containers = {pod.container_id for pod in found} - {None}
    return PodCgroup(found.pop().pod_uid, containers.pop() if len(containers) == 1 else None)


def container_of(cgroup: str) -> str | None:
    """The container that an engine of root's put a process into, outside pods, by ``/proc/PID/cgroup``; ``None`` where
    there is none, or hierarchies (cgroup v1) name several."""
    matches = [_ENGINES.match(line.split(":", 2)[-1]) for line in cgroup.split("\n")]
    found = {match["id"] or match["id_"] for match in matches if match is not None}
    return found.pop() if len(found) == 1 else None


def _pod_in(path: str) -> PodCgroup | None:
    parts = path.split("/")[1:]
    for at, uid, container_id in _pods(parts):
        if any(_USERS_OWN.fullmatch(part) for part in parts[:at]):
            return None
        below = parts[at + 1] if at + 1 < len(parts) else ""
        match = None if below.startswith(_MONITOR) else _CONTAINER.fullmatch(below)
        return PodCgroup(uid.replace("_", "-"), container_id or (match[1] if match is not None else None))
    return None


def _pods(parts: Sequence[str]) -> Iterator[tuple[int, str, str | None]]:
    """``(position, uid, container id in the same name)`` of each name that is a pod's, the outermost first."""
    for at, part in enumerate(parts):
        match = _SLICE.fullmatch(part)
        if match is not None:
            yield at, match[1], match[2]
            continue
        match = _FOLDER.fullmatch(part)
        if match is not None and _is_kubelets(parts[:at]):
            yield at, match[1], None


def _is_kubelets(above: Sequence[str]) -> bool:
    """Whether the kubelet keeps pods there. Seen from a cgroup namespace that is a pod's own, paths begin with ``..``
    and may leave out what that pod has in common with others: ``/../../pod8a1c-…/7f3a…``."""
    parents = list(above[-2:])
    if parents and parents[-1] in _CLASSES:
        parents.pop()
    return bool(parents) and parents[-1] in ("kubepods", "..")
