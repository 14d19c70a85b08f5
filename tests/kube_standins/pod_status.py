"""A pod's status as a kubelet writes it, made of what its containers do. Values only."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

from kube_standins.containers import Ended, now
from kube_standins.pod_environ import Here

ENDED = ("Succeeded", "Failed")
"""Phases of a pod none of whose containers will run again."""


class Restarts(Enum):
    """When a container begins again (Pod v1, ``restartPolicy``)."""

    NEVER = "Never"
    ON_FAILURE = "OnFailure"
    ALWAYS = "Always"

    def after(self, exit_code: int) -> bool:
        return self is Restarts.ALWAYS or (self is Restarts.ON_FAILURE and exit_code != 0)


@dataclass
class ContainerStory:
    """What became of one container so far."""

    name: str
    image: str
    restarts: Restarts
    container_id: str | None = None
    """64 hexadecimal digits, new at every start."""
    began: str | None = None
    """When it was seen to run; ``None`` before, and once it has ended."""
    ended: Ended | None = None
    """How the last start ended."""
    last: Ended | None = None
    """How the one before ended."""
    starts: int = 0
    has_run: bool = False
    """At least once."""
    waiting: tuple[str, str] = field(default=("ContainerCreating", ""))
    """Reason and message."""
    given_up: bool = False
    """It will not be begun again: the pod is being deleted."""

    @property
    def over(self) -> bool:
        return self.ended is not None and (self.given_up or not self.restarts.after(self.ended.exit_code))

    @property
    def failed(self) -> bool:
        return self.over and self.ended is not None and self.ended.exit_code != 0

    def status(self) -> dict[str, Any]:
        """A ``ContainerStatus``."""
        status: dict[str, Any] = {
            "name": self.name,
            "image": self.image,
            "imageID": self.image,
            "restartCount": max(0, self.starts - 1),
            "ready": self.began is not None,
            "started": self.began is not None,
            "state": self._state(),
        }
        if self.container_id is not None:
            status["containerID"] = f"containerd://{self.container_id}"
        if self.last is not None:
            status["lastState"] = {"terminated": _terminated(self.last)}
        return status

    def _state(self) -> dict[str, Any]:
        if self.began is not None:
            return {"running": {"startedAt": self.began}}
        if self.ended is not None and self.over:
            return {"terminated": {**_terminated(self.ended), "containerID": f"containerd://{self.container_id}"}}
        reason, message = self.waiting
        return {"waiting": {"reason": reason, **({"message": message} if message else {})}}


def phase_of(inits: Sequence[ContainerStory], mains: Sequence[ContainerStory]) -> str:
    """Pod v1, ``status.phase``. Init containers that always restart (sidecars) do not count."""
    if any(init.failed for init in inits if init.restarts is not Restarts.ALWAYS):
        return "Failed"
    if mains and all(main.over for main in mains):
        return "Failed" if any(main.failed for main in mains) else "Succeeded"
    return "Running" if all(main.has_run for main in mains) else "Pending"


def status_of(
    inits: Sequence[ContainerStory], mains: Sequence[ContainerStory], here: Here, began: str
) -> dict[str, Any]:
    """For a strategic merge patch, which leaves conditions of others as they are."""
    phase = phase_of(inits, mains)
    ready = phase == "Running" and all(main.began is not None for main in mains)
    initialised = all(init.began is not None if init.restarts is Restarts.ALWAYS else init.over and not init.failed
                      for init in inits)  # fmt: skip
    ended = {"reason": "PodCompleted"} if phase in ("Succeeded", "Failed") else {}
    return {
        "phase": phase,
        "startTime": began,
        "hostIP": here.host_ip,
        "hostIPs": [{"ip": here.host_ip}],
        "podIP": here.pod_ip,
        "podIPs": [{"ip": here.pod_ip}],
        "conditions": [
            {"type": "PodScheduled", "status": "True"},
            {"type": "Initialized", "status": str(initialised), **ended},
            {"type": "ContainersReady", "status": str(ready), **ended},
            {"type": "Ready", "status": str(ready), **ended},
        ],
        "initContainerStatuses": [init.status() for init in inits],
        "containerStatuses": [main.status() for main in mains],
    }


def with_times(status: Mapping[str, Any], before: Mapping[str, Any] | None) -> dict[str, Any]:
    """With ``lastTransitionTime`` of each condition: now where it differs from ``before``."""
    known = {each["type"]: each for each in (before or {}).get("conditions", ())}
    conditions = []
    for condition in status["conditions"]:
        old = known.get(condition["type"], {})
        same = old.get("status") == condition["status"]
        conditions.append({**condition, "lastTransitionTime": old["lastTransitionTime"] if same else now()})
    return {**status, "conditions": conditions}


def _terminated(ended: Ended) -> dict[str, Any]:
    return {
        "exitCode": ended.exit_code,
        "reason": ended.reason,
        "message": ended.message,
        "startedAt": ended.began,
        "finishedAt": ended.finished,
    }
