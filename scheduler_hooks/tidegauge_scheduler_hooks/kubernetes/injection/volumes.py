"""The volume that carries the probe into a pod and its rings out, its mounts, and the container that fills it. Pure."""

from __future__ import annotations

import posixpath
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from itertools import count
from typing import Any

from tidegauge_scheduler_hooks.kubernetes.injection.names import (
    INIT_CONTAINER,
    INSTALL_COMMAND,
    PROBE_FOLDER,
    PROBE_PART,
    RUN_FOLDER,
    RUN_PART,
)


@dataclass(frozen=True)
class InjectionOptions:
    """The admin's options of the injection."""

    probe_image: str
    """Image with ``install-probe.sh`` and the probe."""
    shared_gpu_replicas: int | None = None
    """The number of pods that share one GPU by NVIDIA's device plugin (its ``replicas``). ``None``: not known, and no
    fraction follows from ``nvidia.com/gpu.shared``."""
    probe_resources: Mapping[str, Any] | None = None
    """``requests`` and ``limits`` of the init container; in a pod of QoS class Guaranteed it requests its limits.
    ``None`` or empty: CPU and memory of the first watched container, which waits meanwhile. Then the pod requests no
    more than before (the larger of both counts), its QoS class stays, and a LimitRange or quota that the pod satisfies
    is satisfied."""


SIZE_LIMIT_BYTES = 256 << 20
"""A bound, no reservation: the probe takes 1 MiB, a rank 1 MiB for each GPU that it uses, and a ring gets its full
length while 64 MiB are free. It counts as memory of the pod."""
PROBE_USER = 65534
"""The init container's user where the pod names root. Else it names none, as OpenShift refuses all but a namespace's
own: it is the pod's, or the namespace's, or the probe image's."""
_READ_ONLY = ("configMap", "downwardAPI", "image", "projected", "secret")
"""Volumes that the kubelet always mounts read-only."""
_COPIED = ("cpu", "memory", "ephemeral-storage")


def free_name(wanted: str, taken: Collection[str | None]) -> str:
    """``wanted``, with a number where the owner uses it."""
    return next(name for n in count() if (name := f"{wanted}-{n}" if n else wanted) not in taken)


def volume(name: str) -> Mapping[str, Any]:
    """The volume, in memory: rings are written all the time, and must not wait for a disk."""
    return {"name": name, "emptyDir": {"medium": "Memory", "sizeLimit": f"{SIZE_LIMIT_BYTES >> 20}Mi"}}


def mounts(
    container: Mapping[str, Any], name: str, volumes: Sequence[Mapping[str, Any]] = ()
) -> tuple[list[Mapping[str, Any]], list[str]]:
    """Mounts for a watched container, and warnings. None where the owner has something at the probe's place;
    without the run directory the probe writes to /dev/shm, where agents look as well. ``volumes``: the pod's.

    ``subPath``: the kubelet makes a missing folder when the container starts, with the volume's mode; the init
    container has made both by then, the run directories with a sticky bit that the volume does not have."""
    fixed = {one.get("name") for one in volumes if _is_read_only(one)}
    theirs = [
        (_place(mount.get("mountPath")), bool(mount.get("readOnly")) or mount.get("name") in fixed)
        for mount in container.get("volumeMounts") or []
    ]
    theirs += [(_place(device.get("devicePath")), False) for device in container.get("volumeDevices") or []]
    if _in_the_way(PROBE_FOLDER, theirs):
        return [], [f"container {container['name']} has a volume at {PROBE_FOLDER}: it is not watched"]
    found: list[Mapping[str, Any]] = [
        {"name": name, "mountPath": PROBE_FOLDER, "subPath": PROBE_PART, "readOnly": True}
    ]
    if not _in_the_way(RUN_FOLDER, theirs):
        found.append({"name": name, "mountPath": RUN_FOLDER, "subPath": f"{RUN_PART}/{container['name']}"})
    return found, []


def probe_container(
    spec: Mapping[str, Any], watched: Sequence[Mapping[str, Any]], volume_name: str, options: InjectionOptions
) -> Mapping[str, Any]:
    """The init container for the ``watched`` ones, as Pod Security ``restricted`` demands it."""
    security: dict[str, Any] = {
        "allowPrivilegeEscalation": False,
        "capabilities": {"drop": ["ALL"]},
        "privileged": False,
        "readOnlyRootFilesystem": True,
        "runAsNonRoot": True,
        "seccompProfile": {"type": "RuntimeDefault"},
    }
    if (spec.get("securityContext") or {}).get("runAsUser") == 0:
        security.update(runAsUser=PROBE_USER, runAsGroup=PROBE_USER)
    taken = [one.get("name") for part in ("initContainers", "containers") for one in spec.get(part) or []]
    return {
        "name": free_name(INIT_CONTAINER, taken),
        "image": options.probe_image,
        "command": list(INSTALL_COMMAND),
        "args": [container["name"] for container in watched],
        "resources": _without_devices(spec, _resources(spec, watched[0], options.probe_resources)),
        "securityContext": security,
        "volumeMounts": [{"name": volume_name, "mountPath": INSTALL_COMMAND[1]}],
    }


def _resources(
    spec: Mapping[str, Any], waiting: Mapping[str, Any], wanted: Mapping[str, Any] | None
) -> Mapping[str, Any]:
    """Those of the init container. A Burstable one would make its pod Burstable, which then loses CPUs of its own."""
    if not wanted:
        return _like(waiting)
    if not _is_guaranteed(spec) or _is_guaranteed({"containers": [{"resources": wanted}]}):
        return wanted
    alike = {**_like(waiting).get("limits", {}), **(wanted.get("requests") or {}), **(wanted.get("limits") or {})}
    return {"requests": alike, "limits": alike}


def _without_devices(spec: Mapping[str, Any], resources: Mapping[str, Any]) -> Mapping[str, Any]:
    """The same, and explicitly none of each device (a resource with a domain) that a container of the pod names: else a
    LimitRange with a ``max`` for it gives the init container that many (``SetDefaults_LimitRangeItem``), of which a
    quota and the scheduler count. One for other devices has given them to the pod's own containers
    already: the LimitRanger comes before webhooks."""
    theirs = [one.get("resources") or {} for part in ("initContainers", "containers") for one in spec.get(part) or []]
    names = {name for amounts in theirs for part in ("requests", "limits") for name in amounts.get(part) or {}}
    none = {name: "0" for name in sorted(names) if "/" in name}
    return {part: {**none, **(resources.get(part) or {})} for part in ("requests", "limits")} if none else resources


def _is_guaranteed(spec: Mapping[str, Any]) -> bool:
    """Whether the pod's QoS class is Guaranteed by its containers, those before it included (``ComputePodQOS`` in
    pkg/apis/core/v1/helper/qos). API servers write amounts in one way only, and limits as requests that are missing."""
    if spec.get("resources"):  # the pod's own alone count
        return False
    parts = [one.get("resources") or {} for part in ("initContainers", "containers") for one in spec.get(part) or []]
    return all(
        (limit := (resources.get("limits") or {}).get(name)) is not None
        and (resources.get("requests") or {}).get(name, limit) == limit
        for resources in parts
        for name in ("cpu", "memory")
    )


def _like(container: Mapping[str, Any]) -> Mapping[str, Any]:
    """Requests and limits of another container, less its GPUs and other devices."""
    resources = container.get("resources") or {}
    parts = {part: resources.get(part) or {} for part in ("requests", "limits")}
    return {
        part: kept
        for part, amounts in parts.items()
        if (kept := {name: amount for name, amount in amounts.items() if name in _COPIED})
    }


def _is_read_only(one: Mapping[str, Any]) -> bool:
    """Whether nothing can be made in a volume, whatever its mount says: by what it is, or because it says so."""
    return any(
        kind in _READ_ONLY or bool((source or {}).get("readOnly")) for kind, source in one.items() if kind != "name"
    )


def _place(given: Any) -> str:
    """The mount point; /var/run is /run in nearly every image. The kubelet takes a relative one as below the root."""
    path = posixpath.normpath("/" + str(given or "").lstrip("/"))
    return path.removeprefix("/var") if path == "/var/run" or path.startswith("/var/run/") else path


def _in_the_way(path: str, theirs: Collection[tuple[str, bool]]) -> bool:
    """Whether ``path`` cannot be mounted: it is taken, has something below it, or lies in what cannot be written to."""
    return any(
        place == path or place.startswith(f"{path}/") or (read_only and path.startswith(f"{place.rstrip('/')}/"))
        for place, read_only in theirs
    )
