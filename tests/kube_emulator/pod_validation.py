"""What a pod, or the template of one, must be."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from kube_emulator.causes import label_name_causes, missing, unsupported, wrong

_FIELD_PATHS = re.compile(
    r"metadata\.(name|namespace|uid)|metadata\.(labels|annotations)\['[^']+'\]"
    r"|spec\.(nodeName|serviceAccountName)|status\.(hostIP|podIP|hostIPs|podIPs)"
)
_STANDARD_RESOURCES = ("cpu", "memory", "ephemeral-storage")


def pod_spec_causes(spec: Mapping[str, Any], at: str) -> Iterator[str]:
    """``at`` is where it is: ``spec``, ``spec.template.spec``."""
    volumes = spec.get("volumes") or []
    for place, volume in enumerate(volumes):
        yield from _volume_causes(volume, f"{at}.volumes[{place}]")
    names = [volume.get("name") for volume in volumes]
    yield from _duplicates(names, f"{at}.volumes", "name")
    if not spec.get("containers"):
        yield missing(f"{at}.containers")
    if spec.get("restartPolicy") not in ("Always", "OnFailure", "Never"):
        yield unsupported(f"{at}.restartPolicy", spec.get("restartPolicy"), "Always", "Never", "OnFailure")
    init, main = spec.get("initContainers") or [], spec.get("containers") or []
    for place, container in enumerate(init):
        yield from _container_causes(container, names, f"{at}.initContainers[{place}]")
        if container.get("restartPolicy") not in (None, "Always"):
            yield unsupported(f"{at}.initContainers[{place}].restartPolicy", container["restartPolicy"], "Always")
    for place, container in enumerate(main):
        yield from _container_causes(container, names, f"{at}.containers[{place}]")
    yield from _duplicates([each.get("name") for each in (*init, *main)], f"{at}.containers", "name")


def _duplicates(values: Sequence[Any], at: str, key: str) -> Iterator[str]:
    for place, value in enumerate(values):
        if value in values[:place]:
            yield f"{at}[{place}].{key}: Duplicate value: {json.dumps(value)}"


def _volume_causes(volume: Mapping[str, Any], at: str) -> Iterator[str]:
    yield from label_name_causes(f"{at}.name", volume.get("name") or "")
    sources = [key for key in volume if key != "name"]
    if not sources:
        yield missing(at, "must specify a volume type")
    for extra in sources[1:]:
        yield f"{at}.{extra}: Forbidden: may not specify more than 1 volume type"
    medium = (volume.get("emptyDir") or {}).get("medium", "")
    if medium not in ("", "Memory") and not medium.startswith("HugePages"):
        yield unsupported(f"{at}.emptyDir.medium", medium, "", "HugePages", "Memory")


def _container_causes(container: Mapping[str, Any], volumes: Sequence[Any], at: str) -> Iterator[str]:
    yield from label_name_causes(f"{at}.name", container.get("name") or "")
    if not container.get("image"):
        yield missing(f"{at}.image")
    if container.get("imagePullPolicy") not in ("Always", "IfNotPresent", "Never"):
        yield unsupported(f"{at}.imagePullPolicy", container.get("imagePullPolicy"), "Always", "IfNotPresent", "Never")
    for place, entry in enumerate(container.get("env") or []):
        yield from _variable_causes(entry, f"{at}.env[{place}]")
    mounts = container.get("volumeMounts") or []
    for place, mount in enumerate(mounts):
        yield from _mount_causes(mount, volumes, f"{at}.volumeMounts[{place}]")
    paths = [mount.get("mountPath") for mount in mounts]
    for place, path in enumerate(paths):
        if path and path in paths[:place]:
            yield wrong(f"{at}.volumeMounts[{place}].mountPath", path, "must be unique")
    yield from _resource_causes(container.get("resources") or {}, f"{at}.resources")


def _mount_causes(mount: Mapping[str, Any], volumes: Sequence[Any], at: str) -> Iterator[str]:
    if mount.get("name") not in volumes:
        yield f"{at}.name: Not found: {json.dumps(mount.get('name'))}"
    if not mount.get("mountPath"):
        yield missing(f"{at}.mountPath")
    path = str(mount.get("subPath", ""))
    if path.startswith("/") or ".." in path.split("/"):
        yield wrong(f"{at}.subPath", path, "must be a relative path without '..'")


def _variable_causes(entry: Mapping[str, Any], at: str) -> Iterator[str]:
    name = entry.get("name") or ""
    if not name:
        yield missing(f"{at}.name")
    elif "=" in name or not (name.isascii() and name.isprintable()):
        words = "a valid environment variable name must consist only of printable ASCII characters other than '='"
        yield wrong(f"{at}.name", name, words)
    source = entry.get("valueFrom")
    if source is None:
        return
    if entry.get("value"):
        yield wrong(f"{at}.valueFrom", "", "may not be specified when `value` is not empty")
    if len(source) != 1:
        yield wrong(f"{at}.valueFrom", "", "must specify one of the sources, and only one")
    path = (source.get("fieldRef") or {}).get("fieldPath")
    if path is not None and not _FIELD_PATHS.fullmatch(path):
        yield wrong(f"{at}.valueFrom.fieldRef.fieldPath", path, "error converting fieldPath")


def _resource_causes(resources: Mapping[str, Any], at: str) -> Iterator[str]:
    """Resources with a domain of their own (GPUs) cannot be overcommitted: limit and request are one."""
    limits, requests = resources.get("limits") or {}, resources.get("requests") or {}
    for name in dict.fromkeys([*limits, *requests]):
        if "/" not in name:
            if name not in _STANDARD_RESOURCES and not name.startswith("hugepages-"):
                yield wrong(f"{at}.limits[{name}]", name, "must be a standard resource type or fully qualified")
        elif name not in limits:
            yield missing(f"{at}.limits", "Limit must be set for non overcommitable resources")
        elif requests.get(name) != limits[name]:
            yield wrong(f"{at}.requests", requests.get(name), f"must be equal to {name} limit of {limits[name]}")
