"""A stand-in node at work: its Node object, the pods that are bound to it, and those that it binds itself."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from kube_standins.api import MERGE, STRATEGIC, Api, ApiError, Object
from kube_standins.cgroups import NodeCgroups
from kube_standins.containers import Mount, now
from kube_standins.devices import RESOURCE, Devices
from kube_standins.images import Image
from kube_standins.pod_environ import Here
from kube_standins.pod_resources import serve_pod_resources
from kube_standins.pod_run import PodHost, PodRun
from kube_standins.pod_status import ENDED

_log = logging.getLogger(__name__)

NODE_LABEL = "tidegauge.dev/stand-in"
"""Of the node, with its name as the value; and the key of its taint."""
HEARTBEAT_S = 10.0
BIND_AFTER_S = 0.3
"""How long a pod is left to a scheduler, before this node binds it itself."""
LOOK_EVERY_S = 0.1
HOST_IP = "127.0.0.1"


@dataclass(frozen=True)
class NodeOptions:
    """What ``StandInNode`` was told."""

    name: str
    folder: Path
    device_ids: Sequence[str] = ()
    labels: Mapping[str, str] = field(default_factory=dict)
    images: Mapping[str, Image] = field(default_factory=dict)
    visible: Sequence[Mount] = ()
    pod_resources: Path | None = None


class Kubelet:
    """Works in threads of its own from ``start`` to ``close``."""

    def __init__(self, api: Api, options: NodeOptions) -> None:
        self._api = api
        self._name = options.name
        self._labels = {"kubernetes.io/hostname": options.name, NODE_LABEL: options.name, **options.labels}
        self._taint = {"key": NODE_LABEL, "value": options.name, "effect": "NoSchedule"}
        self._devices = Devices(options.device_ids)
        self._pod_resources = options.pod_resources
        self._stop = threading.Event()
        self._cgroups = NodeCgroups()
        self._host = PodHost(api, options.folder / "pods", self._cgroups, options.images, options.visible, self._stop)
        self._runs: dict[str, PodRun] = {}
        self._waiting: dict[str, tuple[Object, float]] = {}
        """Pods that may be for us, and when they were first seen (CLOCK_MONOTONIC)."""
        self._addresses = 0
        self._lock = threading.Lock()
        self._end_pod_resources: Callable[[], None] = lambda: None

    def start(self) -> None:
        """Raises ``ApiError`` if the node cannot be registered."""
        self._register()
        if self._pod_resources is not None:
            self._end_pod_resources = serve_pod_resources(self._pod_resources, self._devices.holdings)
        for work in (self._beat, self._follow_bound, self._follow_unbound, self._bind):
            threading.Thread(target=work, name=work.__name__, daemon=True).start()

    def close(self) -> None:
        """All pods killed and gone, the Node as well, as far as the server still answers."""
        self._stop.set()
        with self._lock:
            runs = list(self._runs.values())
        for run in runs:
            run.wake()
        for run in runs:
            run.join()
        self._cgroups.close()
        self._end_pod_resources()
        try:
            self._api.call("DELETE", f"/api/v1/nodes/{self._name}")
        except ApiError as error:
            _log.warning("the node stays registered: %s", error)

    def _register(self) -> None:
        metadata = {"name": self._name, "labels": self._labels}
        node = {"apiVersion": "v1", "kind": "Node", "metadata": metadata, "spec": {"taints": [self._taint]}}
        try:
            self._api.call("POST", "/api/v1/nodes", node)
        except ApiError as error:
            if error.status != 409:
                raise
            self._api.call("PATCH", f"/api/v1/nodes/{self._name}", {"metadata": {"labels": self._labels}}, how=MERGE)
        self._say_ready()
        # The server adds a taint to every new node, and it takes a controller to see that it is ready and remove it.
        self._api.call("PATCH", f"/api/v1/nodes/{self._name}", {"spec": {"taints": [self._taint]}}, how=MERGE)

    def _say_ready(self) -> None:
        room = {
            "cpu": "64",
            "memory": "256Gi",
            "ephemeral-storage": "256Gi",
            "pods": "110",
            RESOURCE: str(len(self._devices.all)),
        }
        ready = {
            "type": "Ready", "status": "True", "reason": "KubeletReady", "message": "a stand-in of a test",
            "lastHeartbeatTime": now(), "lastTransitionTime": now(),
        }  # fmt: skip
        addresses = [{"type": "InternalIP", "address": HOST_IP}, {"type": "Hostname", "address": self._name}]
        status = {"capacity": room, "allocatable": room, "conditions": [ready], "addresses": addresses}
        self._api.call("PATCH", f"/api/v1/nodes/{self._name}/status", {"status": status}, how=STRATEGIC)

    def _beat(self) -> None:
        while not self._stop.wait(HEARTBEAT_S):
            try:
                self._say_ready()
            except ApiError as error:  # noqa: PERF203 - ten seconds apart
                _log.warning("%s", error)

    def _follow_bound(self) -> None:
        mine = {"fieldSelector": f"spec.nodeName={self._name}"}
        for pod, gone in self._api.changes("/api/v1/pods", mine, self._stop):
            with self._lock:
                self._waiting.pop(pod["metadata"]["uid"], None)
                run = self._runs.get(pod["metadata"]["uid"])
                if run is not None:
                    run.hear(pod, gone=gone)
                elif not gone:
                    self._begin(pod)

    def _begin(self, pod: Object) -> None:
        """With the lock held."""
        uid = pod["metadata"]["uid"]
        if (pod.get("status") or {}).get("phase") in ENDED and not pod["metadata"].get("deletionTimestamp"):
            return
        devices = self._devices.take(pod)
        if devices is None:
            self._refuse(pod)
            return
        self._addresses += 1
        # Addresses of the loopback network, all of which are this machine: pods have no network of their own.
        pod_ip = f"127.77.{self._addresses // 250 % 250}.{self._addresses % 250 + 1}"
        here = Here(self._name, pod_ip, HOST_IP, self._api.address)
        run = PodRun(self._host, pod, here, devices)
        self._runs[uid] = run

        def give_back() -> None:
            # Before the API server hears that it has ended: from then on a scheduler sends others here.
            self._devices.give_back(uid)

        def forget() -> None:
            give_back()
            with self._lock:
                self._runs.pop(uid, None)

        run.start(give_back, forget)

    def _refuse(self, pod: Object) -> None:
        """As a kubelet does with more than it has."""
        metadata = pod["metadata"]
        status = {
            "phase": "Failed",
            "reason": "UnexpectedAdmissionError",
            "message": f"Allocate failed: the node has {len(self._devices.all)} {RESOURCE}, and too few are free",
        }
        path = f"/api/v1/namespaces/{metadata['namespace']}/pods/{metadata['name']}/status"
        try:
            self._api.call("PATCH", path, {"status": status}, how=STRATEGIC)
        except ApiError as error:
            _log.warning("%s", error)

    def _follow_unbound(self) -> None:
        for pod, gone in self._api.changes("/api/v1/pods", {"fieldSelector": "spec.nodeName="}, self._stop):
            with self._lock:
                uid = pod["metadata"]["uid"]
                if gone or not self._suits(pod):
                    self._waiting.pop(uid, None)
                else:
                    _, since_s = self._waiting.get(uid, (pod, time.monotonic()))
                    self._waiting[uid] = pod, since_s

    def _suits(self, pod: Object) -> bool:
        """The pod asks for this node, bears its taint, and waits for nothing else."""
        spec, metadata = pod["spec"], pod["metadata"]
        if metadata.get("deletionTimestamp") or spec.get("schedulingGates"):
            return False
        selected = self._labels.items() >= (spec.get("nodeSelector") or {}).items()
        return selected and any(_tolerates(each, self._taint) for each in spec.get("tolerations") or ())

    def _bind(self) -> None:
        while not self._stop.wait(LOOK_EVERY_S):
            due_s = time.monotonic() - BIND_AFTER_S
            with self._lock:
                due = [pod for pod, since_s in self._waiting.values() if since_s <= due_s]
            for pod in due:
                if self._devices.has_room_for(pod):
                    self._bind_one(pod)

    def _bind_one(self, pod: Object) -> None:
        metadata = pod["metadata"]
        target = {"apiVersion": "v1", "kind": "Node", "name": self._name}
        names = {"name": metadata["name"], "namespace": metadata["namespace"], "uid": metadata["uid"]}
        binding: dict[str, Any] = {"apiVersion": "v1", "kind": "Binding", "metadata": names, "target": target}
        try:
            self._api.call(
                "POST", f"/api/v1/namespaces/{metadata['namespace']}/pods/{metadata['name']}/binding", binding
            )
        except ApiError as error:
            if error.may_pass:
                return
            # A scheduler was quicker, or the pod is gone: the watches tell.
        with self._lock:
            self._waiting.pop(metadata["uid"], None)


def _tolerates(toleration: Object, taint: Object) -> bool:
    """Toleration v1: what is left out fits all."""
    if toleration.get("effect") not in (None, "", taint["effect"]):
        return False
    if toleration.get("operator") == "Exists":
        return toleration.get("key") in (None, "", taint["key"])
    return (toleration.get("key"), toleration.get("value")) == (taint["key"], taint["value"])
