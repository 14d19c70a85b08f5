"""The kubelet's answer: what is read by hand says the same as protobuf's own library."""

from __future__ import annotations

from typing import Any

from google.protobuf.message import (  # type: ignore[import-untyped] # SAFETY: tests only; its stubs are another package
    DecodeError,
)

from fuzz.oracles import require
from fuzz.target import Target
from kubelet_answers import Claim, Container, Pod, encode, response
from tidegauge.agent.kubernetes.pod_resources import holders_by_device
from tidegauge.agent.ports import HeldBy

_UUID = "GPU-8a1b2c3d-0000-1111-2222-333344445555"


def one(data: bytes) -> None:
    try:
        found = holders_by_device(data)
    except ValueError as error:
        require(_refused(data) or "wire type" in str(error), f"protobuf reads what ours refuses: {error}")
        return
    for uuid, holders in found.items():
        require(uuid.startswith(("GPU-", "MIG-")) and len(uuid) < 100 and bool(holders), f"{uuid}: {holders}")
    try:
        theirs = response(data)
    except DecodeError:
        return  # in a part that ours passes over, or deeper than theirs goes
    known = {
        HeldBy(pod.namespace, pod.name, container.name) for pod in theirs.pod_resources for container in pod.containers
    }
    ours = {held for holders in found.values() for held in holders}
    require(ours <= known, f"containers that protobuf does not find: {ours - known}")
    missed = {uuid for uuid in _uuids(theirs) if uuid not in found}
    require(not missed, f"devices that only protobuf finds: {missed}")


def _refused(data: bytes) -> bool:
    try:
        response(data)
    except DecodeError:
        return True
    return False


def _uuids(theirs: Any) -> set[str]:
    """Whole names that are a GPU's and nothing besides, which nobody can read in two ways."""
    from tidegauge.agent.kubernetes.pod_resources import _DEVICE

    names = (name for pod in theirs.pod_resources for one in pod.containers for devices in one.devices
             for name in devices.device_ids)  # fmt: skip
    return {name for name in names if _DEVICE.fullmatch(name)}


def seeds() -> list[bytes]:
    shared = Container(
        "main", {"nvidia.com/gpu": [_UUID, f"{_UUID}::3"]}, [Claim("gpu.nvidia.com", "gpu-0", [f"k8s/x={_UUID}"])]
    )
    return [b"", encode([]), encode([Pod("team", "a-0", [shared]), Pod("team", "a-1", [Container("c")])])]


TARGET = Target(
    one,
    seeds,
    words=(_UUID.encode(), b"\xff" * 10, b"\x0a\x80\x01", b"\xf8\xff\xff\xff\x0f", b"\x0b", b"\x00"),
    most_bytes=4096,
)
