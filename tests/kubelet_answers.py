"""Answers of a kubelet's pod-resources socket, encoded by protobuf's own library from the public schema.

The part of k8s.io/kubelet/pkg/apis/podresources/v1/api.proto with what a kubelet fills in beside it (cpus, memory,
topology), so that readers meet fields that they have to pass over.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from google.protobuf import (  # type: ignore[import-untyped] # SAFETY: tests only; its stubs are another package
    descriptor_pb2,
    descriptor_pool,
    message_factory,
)

_STRING, _INT64, _MESSAGE = 9, 3, 11
"""``FieldDescriptorProto.Type``."""
_SCHEMA: Mapping[str, Sequence[tuple[str, int, int | str]]] = {
    "NUMANode": [("ID", 1, _INT64)],
    "NUMATopology": [("nodes", 1, "NUMANode")],
    "ContainerDevices": [("resource_name", 1, _STRING), ("device_ids", 2, _STRING), ("topology", 3, "NUMATopology")],
    "ContainerMemory": [("memory_type", 1, _STRING), ("size", 2, _INT64), ("topology", 3, "NUMATopology")],
    "CDIDevice": [("name", 1, _STRING)],
    "ClaimResource": [
        ("cdi_devices", 1, "CDIDevice"), ("driver_name", 2, _STRING), ("pool_name", 3, _STRING),
        ("device_name", 4, _STRING),
    ],
    "DynamicResource": [
        ("claim_name", 2, _STRING), ("claim_namespace", 3, _STRING), ("claim_resources", 4, "ClaimResource"),
    ],
    "ContainerResources": [
        ("name", 1, _STRING), ("devices", 2, "ContainerDevices"), ("cpu_ids", 3, _INT64),
        ("memory", 4, "ContainerMemory"), ("dynamic_resources", 5, "DynamicResource"),
    ],
    "PodResources": [("name", 1, _STRING), ("namespace", 2, _STRING), ("containers", 3, "ContainerResources")],
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


def _pool() -> Any:
    file = descriptor_pb2.FileDescriptorProto(name="podresources.proto", package="v1", syntax="proto3")
    for name, fields in _SCHEMA.items():
        message = file.message_type.add(name=name)
        for label, number, kind in fields:
            one = message.field.add(name=label, number=number, label=3 if label in _REPEATED else 1)
            one.type = _MESSAGE if isinstance(kind, str) else kind
            if isinstance(kind, str):
                one.type_name = f".v1.{kind}"
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return pool


_POOL = _pool()


def _new(name: str, /, **values: object) -> Any:
    return message_factory.GetMessageClass(_POOL.FindMessageTypeByName(f"v1.{name}"))(**values)
