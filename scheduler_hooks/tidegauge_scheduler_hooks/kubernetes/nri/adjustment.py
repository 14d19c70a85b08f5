"""What the plugin puts into a container: a pure function of the pod and of the container as the runtime is about to
make it. Here the environment is the merged one of image and pod, so that no ``PYTHONPATH`` is hidden."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from pathlib import PurePath
from typing import Any

from tidegauge.core.jobs.kubernetes import CONTAINERS, INJECTED, PROFILE_LABEL
from tidegauge_scheduler_hooks.kubernetes.injection.environment import with_probe_first
from tidegauge_scheduler_hooks.kubernetes.injection.names import PROBE_FOLDER, RUN_FOLDER
from tidegauge_scheduler_hooks.kubernetes.injection.owner_settings import own_settings
from tidegauge_scheduler_hooks.kubernetes.injection.plan import asked_level, common_variables, own_variables
from tidegauge_scheduler_hooks.kubernetes.injection.volumes import SIZE_LIMIT_BYTES, InjectionOptions, mounts
from tidegauge_scheduler_hooks.kubernetes.nri.messages import Adjustment, PodSandbox, RuntimeContainer, RuntimeMount

_GPU_NODE = re.compile(r"/dev/(nvidia[0-9]+|nvidia-caps/.*|kfd|dxg)")
_GPU_MOUNT = "/var/run/nvidia-container-devices/"
"""NVIDIA's device plugin names GPUs by mounts below it, where it is told to."""
_GPU_CDI = re.compile(r"(.*\.)?nvidia\.com/|(.*\.)?amd\.com/gpu")
_NO_GPUS = ("", "void", "none", "all")
"""Values of ``NVIDIA_VISIBLE_DEVICES`` that give none. ``all`` is what CUDA's images say of themselves, also in pods
that have no GPU; a device plugin names them."""


@dataclass(frozen=True)
class NriOptions:
    """The admin's options of the plugin."""

    namespaces: Mapping[str, str] = field(default_factory=dict)
    """Levels of the namespaces whose pods are watched without a label of their own."""
    excluded: Collection[str] = ()
    """Namespaces whose pods are never touched."""


def adjustment(pod: PodSandbox, container: RuntimeContainer, *, options: NriOptions, probe: PurePath) -> Adjustment:
    """An empty one: the container stays as it is. ``probe`` is the folder with the probe, on the node."""
    level, _ = asked_level(pod.labels, _label_of(pod.namespace, options))
    if level is None or level == "off" or pod.namespace in options.excluded or INJECTED in pod.annotations:
        return Adjustment()
    if not _is_chosen(pod, container):
        return Adjustment()
    places = _free_places(container)
    if PROBE_FOLDER not in places:
        return Adjustment(left_alone=f"something is mounted at {PROBE_FOLDER}")
    if "PYTHONPATH" in container.set_twice:
        return Adjustment(left_alone="its image and its pod set PYTHONPATH, and a runtime changes only the image's")
    return Adjustment(_environ(pod, container, level), [mount for place, mount in _mounts(probe) if place in places])


def _label_of(namespace: str, options: NriOptions) -> Mapping[str, str]:
    return {PROFILE_LABEL: options.namespaces[namespace]} if namespace in options.namespaces else {}


def _is_chosen(pod: PodSandbox, container: RuntimeContainer) -> bool:
    """By the pod's owner, else for its GPU: nobody sees here whether another container of the pod has one."""
    named = pod.annotations.get(CONTAINERS)
    if named is not None:
        return container.name in {name.strip() for name in named.split(",")}
    return has_gpu(container)


def has_gpu(container: RuntimeContainer) -> bool:
    """By what device plugins and drivers hand in: variables, device nodes, mounts, names of the Container Device
    Interface."""
    return (
        container.environ.get("NVIDIA_VISIBLE_DEVICES", "") not in _NO_GPUS
        or any(_GPU_NODE.fullmatch(path) for path in container.devices)
        or any(mount.destination.startswith(_GPU_MOUNT) for mount in container.mounts)
        or any(_GPU_CDI.match(name) for name in container.cdi_devices)
    )


def _free_places(container: RuntimeContainer) -> set[str]:
    theirs = [{"mountPath": one.destination, "readOnly": "ro" in one.options} for one in container.mounts]
    found, _ = mounts({"name": container.name, "volumeMounts": theirs}, "")
    return {mount["mountPath"] for mount in found}


def _mounts(probe: PurePath) -> tuple[tuple[str, RuntimeMount], ...]:
    """The probe, as everybody's on the node; and a run directory of the container's own, in memory that counts as its
    own, which ends with it."""
    bind = RuntimeMount(PROBE_FOLDER, "bind", str(probe), ("bind", "ro", "nosuid", "nodev"))
    of_its_own = ("nosuid", "nodev", "noexec", "mode=1777", f"size={SIZE_LIMIT_BYTES}")
    return (PROBE_FOLDER, bind), (RUN_FOLDER, RuntimeMount(RUN_FOLDER, "tmpfs", "tmpfs", of_its_own))


def _environ(pod: PodSandbox, container: RuntimeContainer, level: str) -> Mapping[str, str]:
    metadata: Mapping[str, Any] = {"name": pod.name, "labels": pod.labels, "annotations": pod.annotations}
    fields = {"metadata.namespace": pod.namespace, "metadata.name": pod.name, "metadata.uid": pod.uid}
    common, _ = common_variables(metadata, pod.namespace, level, own_settings(metadata, pod.namespace))
    own, _ = own_variables({"name": container.name}, pod.annotations, InjectionOptions(probe_image=""))
    found = {
        one["name"]: fields[one["valueFrom"]["fieldRef"]["fieldPath"]] if "valueFrom" in one else one["value"]
        for one in (*common, *own)
        if one["name"] not in container.environ
    }
    return {**found, "PYTHONPATH": with_probe_first(container.environ.get("PYTHONPATH", ""))}
