"""Answers of a kubelet's pod-resources socket, encoded by protobuf's own library from the public schema.

The part of k8s.io/kubelet/pkg/apis/podresources/v1/api.proto with what a kubelet fills in beside it (cpus, memory,
topology), so that readers meet fields that they have to pass over.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from protobuf_schema import INT64, STRING, message_maker

_SCHEMA: Mapping[str, Sequence[tuple[str, int, int | str]]] = {
    "NUMANode": [("ID", 1, INT64)],
    "NUMATopology": [("nodes", 1, "NUMANode")],
    "ContainerDevices": [("resource_name", 1, STRING), ("device_ids", 2, STRING), ("topology", 3, "NUMATopology")],
    "ContainerMemory": [("memory_type", 1, STRING), ("size", 2, INT64), ("topology", 3, "NUMATopology")],
    "CDIDevice": [("name", 1, STRING)],
    "ClaimResource": [
        ("cdi_devices", 1, "CDIDevice"), ("driver_name", 2, STRING), ("pool_name", 3, STRING),
        ("device_name", 4, STRING),
    ],
    "DynamicResource": [
        ("claim_name", 2, STRING), ("claim_namespace", 3, STRING), ("claim_resources", 4, "ClaimResource"),
    ],
    "ContainerResources": [
        ("name", 1, STRING), ("devices", 2, "ContainerDevices"), ("cpu_ids", 3, INT64),
        ("memory", 4, "ContainerMemory"), ("dynamic_resources", 5, "DynamicResource"),
    ],
    "PodResources": [("name", 1, STRING), ("namespace", 2, STRING), ("containers", 3, "ContainerResources")],
    "ListPodResourcesResponse": [("pod_resources", 1, "PodResources")],
}  # fmt: skip
_REPEATED = {
    "nodes", "device_ids", "cdi_devices", "claim_resources", "devices", "cpu_ids", "memory", "dynamic_resources",
    "containers", "pod_resources",
}  # fmt: skip


@dataclass(frozen=True)
class Claim:
    """A device by a dynamic resource claim."""

    driver: str
    device: str
    cdi_names: Sequence[str] = ()


@dataclass(frozen=True)
class Container:
    name: str
    devices: Mapping[str, Sequence[str]] = field(default_factory=dict)
    """Device ids by resource."""
    claims: Sequence[Claim] = ()


@dataclass(frozen=True)
class Pod:
    namespace: str
    name: str
    containers: Sequence[Container] = ()


def encode(pods: Iterable[Pod]) -> bytes:
    """``ListPodResourcesResponse``."""
    encoded: bytes = _new("ListPodResourcesResponse", pod_resources=[_pod(pod) for pod in pods]).SerializeToString()
    return encoded


def response(content: bytes) -> Any:
    """The same message as protobuf's own library reads it. Raises its ``DecodeError``."""
    return _new("ListPodResourcesResponse").FromString(content)


def _pod(pod: Pod) -> Any:
    return _new("PodResources", name=pod.name, namespace=pod.namespace, containers=[_of(one) for one in pod.containers])


def _of(container: Container) -> Any:
    topology = _new("NUMATopology", nodes=[_new("NUMANode", ID=1)])
    return _new(
        "ContainerResources",
        name=container.name,
        devices=[
            _new("ContainerDevices", resource_name=resource, device_ids=list(ids), topology=topology)
            for resource, ids in container.devices.items()
        ],
        cpu_ids=[0, 1, 300],
        memory=[_new("ContainerMemory", memory_type="memory", size=1 << 40, topology=topology)],
        dynamic_resources=[
            _new("DynamicResource", claim_name="gpu", claim_namespace="team", claim_resources=[_claim(claim)])
            for claim in container.claims
        ],
    )


def _claim(claim: Claim) -> Any:
    return _new(
        "ClaimResource",
        driver_name=claim.driver,
        pool_name="node-a",
        device_name=claim.device,
        cdi_devices=[_new("CDIDevice", name=name) for name in claim.cdi_names],
    )


_new = message_maker(_SCHEMA, _REPEATED)
