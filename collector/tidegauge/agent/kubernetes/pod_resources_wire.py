"""Decodes the kubelet's list of containers and their devices from protobuf, without generated code.

``ListPodResourcesResponse`` of k8s.io/kubelet/pkg/apis/podresources/v1/api.proto; the encoding is that of
protobuf.dev/programming-guides/encoding. Unknown fields are skipped.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping

from tidegauge.agent.ports import HeldBy
from tidegauge.core.ids import DeviceUuid

POD_RESOURCES = 1
"""Of the response."""
POD_NAME, POD_NAMESPACE, CONTAINERS = 1, 2, 3
"""Of a pod."""
CONTAINER_NAME, DEVICES, DYNAMIC_RESOURCES = 1, 2, 5
"""Of a container."""
DEVICE_IDS = 2
"""Of the devices of one resource (``nvidia.com/gpu``): ``GPU-…``, ``MIG-…``, of a time slice ``GPU-…::3``."""
CLAIM_RESOURCES = 4
"""Of a dynamic resource (DRA)."""
CDI_DEVICES, DEVICE_NAME = 1, 4
"""Of a claim: whatever the driver calls its devices; one that puts the UUID into their names can be understood."""
CDI_NAME = 1

MAX_VARINT_BYTES = 10
_UUID = r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}"
_DEVICE = re.compile(rf"(?<![0-9A-Za-z])(?:MIG-GPU-{_UUID}/[0-9]{{1,3}}/[0-9]{{1,3}}|(?:GPU|MIG)-{_UUID})")
"""As NVML writes them, ``MIG-GPU-…/1/0`` before driver 470."""


def holders_by_device(response: bytes) -> Mapping[DeviceUuid, frozenset[HeldBy]]:
    """The containers that each GPU or MIG instance was given to: several where it is shared. Raises ``ValueError`` for
    bytes that are no such response."""
    found: dict[DeviceUuid, set[HeldBy]] = {}
    for pod in _messages(response, POD_RESOURCES):
        name, namespace = _text(pod, POD_NAME), _text(pod, POD_NAMESPACE)
        for container in _messages(pod, CONTAINERS):
            held = HeldBy(namespace, name, _text(container, CONTAINER_NAME))
            for text in _device_names(container):
                for uuid in _DEVICE.findall(text):
                    found.setdefault(DeviceUuid(uuid), set()).add(held)
    return {uuid: frozenset(holders) for uuid, holders in found.items()}


def _device_names(container: bytes) -> Iterator[str]:
    for devices in _messages(container, DEVICES):
        yield from _texts(devices, DEVICE_IDS)
    for resource in _messages(container, DYNAMIC_RESOURCES):
        for claim in _messages(resource, CLAIM_RESOURCES):
            yield from _texts(claim, DEVICE_NAME)
            for device in _messages(claim, CDI_DEVICES):
                yield from _texts(device, CDI_NAME)


def _text(message: bytes, number: int) -> str:
    """Of a field that there is once; the last counts, as in every reader of protobuf."""
    return ([*_texts(message, number)] or [""])[-1]


def _texts(message: bytes, number: int) -> Iterator[str]:
    return (value.decode() for value in _messages(message, number))


def _messages(message: bytes, number: int) -> Iterator[bytes]:
    """Every value of a field that has a length: a text, or a message of its own."""
    at = 0
    while at < len(message):
        key, at = _varint(message, at)
        field, form = key >> 3, key & 7
        if form == 0:
            _, at = _varint(message, at)
            continue
        if form == 2:
            length, at = _varint(message, at)
        elif form in (1, 5):
            length = 8 if form == 1 else 4
        else:
            raise ValueError(f"wire type {form}")
        if length > len(message) - at:
            raise ValueError(f"a field of {length} bytes with only {len(message) - at} left")
        if field == number and form == 2:
            yield message[at : at + length]
        at += length


def _varint(message: bytes, at: int) -> tuple[int, int]:
    """A number, and where it ends."""
    number = 0
    for index, byte in enumerate(message[at : at + MAX_VARINT_BYTES]):
        number |= (byte & 0x7F) << (7 * index)
        if byte < 0x80:
            return number, at + index + 1
    raise ValueError("a number without an end")
