"""The GPUs of a stand-in node: which container has which, as a device plugin gives them out."""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from kube_standins.api import Object

RESOURCE = "nvidia.com/gpu"


class Holding(NamedTuple):
    """What one container has."""

    namespace: str
    pod: str
    container: str
    device_ids: tuple[str, ...]


class Devices:
    """``device_ids``: ``GPU-UUID``, ``MIG-UUID``, or ``GPU-UUID::N`` for a time slice. Threads may share it."""

    def __init__(self, device_ids: Sequence[str]) -> None:
        self.all = tuple(device_ids)
        self._held: dict[str, list[Holding]] = {}
        self._lock = threading.Lock()

    def has_room_for(self, pod: Object) -> bool:
        with self._lock:
            return len(self._free()) >= sum(map(wanted, pod["spec"]["containers"]))

    def take(self, pod: Object) -> Mapping[str, Mapping[str, str]] | None:
        """The environment that they give, by container; ``None`` where there are too few."""
        metadata = pod["metadata"]
        with self._lock:
            free = self._free()
            holdings = []
            for container in pod["spec"]["containers"]:
                count = wanted(container)
                if count > len(free):
                    return None
                mine, free = free[:count], free[count:]
                if mine:
                    holdings.append(Holding(metadata["namespace"], metadata["name"], container["name"], mine))
            self._held[metadata["uid"]] = holdings
        return {
            each.container: {"NVIDIA_VISIBLE_DEVICES": ",".join(one.partition("::")[0] for one in each.device_ids)}
            for each in holdings
        }

    def give_back(self, pod_uid: str) -> None:
        with self._lock:
            self._held.pop(pod_uid, None)

    def holdings(self) -> list[Holding]:
        with self._lock:
            return [each for holdings in self._held.values() for each in holdings]

    def _free(self) -> tuple[str, ...]:
        held = {one for holdings in self._held.values() for each in holdings for one in each.device_ids}
        return tuple(one for one in self.all if one not in held)


def wanted(container: Object) -> int:
    """How many GPUs a container asks for."""
    return int((container.get("resources") or {}).get("limits", {}).get(RESOURCE, 0))
