"""Plays the kubelet of pods that name a scheduler that nobody is: they are placed, they run, and end when deleted."""

from __future__ import annotations

from typing import Any

from integration.kubernetes.target import Connection, binding


def play_kubelet(admin: Connection, pod: Any, *, node: str = "no-such-node") -> bool:
    """Take the next step of a pod's life; whether it runs from now on. A node that is not there is enough for some
    seconds: then the server's garbage collector removes its pods."""
    metadata, phase = pod["metadata"], pod["status"].get("phase")
    path = f"/api/v1/namespaces/{metadata['namespace']}/pods"
    if metadata.get("deletionTimestamp") and phase == "Running":
        _status(admin, f"{path}/{metadata['name']}", {"phase": "Failed"})
    elif metadata.get("deletionTimestamp"):
        body = {"gracePeriodSeconds": 0, "preconditions": {"uid": metadata["uid"]}}
        assert admin.ask("DELETE", f"{path}/{metadata['name']}", body).code in (200, 202, 404, 409)
    elif phase == "Pending" and not pod["spec"].get("schedulingGates"):
        if not pod["spec"].get("nodeName"):  # a pod without a node would go without a trace when it is deleted
            answer = admin.ask("POST", f"{path}/{metadata['name']}/binding", binding(metadata["name"], node))
            if answer.code in (404, 409):  # deleted meanwhile
                return False
            assert answer.code == 201, answer
        status = {
            "phase": "Running",
            "conditions": [{"type": "Ready", "status": "True"}],
            "containerStatuses": [_container(pod, one["name"], running=True) for one in pod["spec"]["containers"]],
            "initContainerStatuses": [
                _container(pod, one["name"], running=False) for one in pod["spec"].get("initContainers", ())
            ],
        }
        return _status(admin, f"{path}/{metadata['name']}", status)
    return False


def _container(pod: Any, name: str, *, running: bool) -> dict[str, Any]:
    digits = pod["metadata"]["uid"].replace("-", "") * 2
    return {"name": name, "image": "i", "imageID": "i", "containerID": f"containerd://{digits}", "ready": True,
            "restartCount": 0, "state": {"running": {}} if running else {"terminated": {"exitCode": 0}}}  # fmt: skip


def _status(admin: Connection, path: str, status: dict[str, Any]) -> bool:
    """Whether it is written: the pod may have gone meanwhile."""
    answer = admin.ask("PATCH", f"{path}/status", {"status": status}, content_type="application/merge-patch+json")
    assert answer.code in (200, 404, 409), answer
    return answer.code == 200
