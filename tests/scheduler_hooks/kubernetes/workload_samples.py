"""Workloads of every kind as their owners submit them, and the pods that their controllers make."""

from __future__ import annotations

import base64
import copy
import json
from collections.abc import Callable, Mapping
from typing import Any

from fakes.kube_patches import patched
from tidegauge.core.jobs.kubernetes import ACTIONS, PROFILE_LABEL
from tidegauge_scheduler_hooks.kubernetes.owners import KINDS, OwnerKind, Path, at
from tidegauge_scheduler_hooks.kubernetes.ports import Patch

NAMESPACE = "team-a"
SUBMITTED_WITH = {"PYTORCH_CUDA_ALLOC_CONF": "max_split_size_mb:128"}
"""The environment that every container was submitted with."""
TEMPLATE: Mapping[str, Any] = {
    "metadata": {"labels": {PROFILE_LABEL: "auto", "app": "train"}},
    "spec": {
        "restartPolicy": "Never",
        "containers": [
            {
                "name": "node",
                "image": "train:1",
                "env": [{"name": name, "value": value} for name, value in SUBMITTED_WITH.items()],
                "resources": {"limits": {"nvidia.com/gpu": "1"}},
            }
        ],
    },
}
"""A pod template; a TrainJob's is in its runtime."""


def template() -> Any:
    return copy.deepcopy(dict(TEMPLATE))


def workload(kind: str, name: str, *, namespace: str = NAMESPACE, actions: str | None = "requeue") -> dict[str, Any]:
    """As submitted: no status, no uid."""
    annotations = {} if actions is None else {ACTIONS: actions}
    return {
        "apiVersion": KINDS[kind].resource.api_version,
        "kind": kind,
        "metadata": {"name": name, "namespace": namespace, "labels": {"team": "a"}, "annotations": annotations},
        "spec": _spec(kind),
    }


def _spec(kind: str) -> dict[str, Any]:
    if kind == "Job":
        return {"backoffLimit": 0, "parallelism": 1, "completions": 1, "template": template()}
    if kind == "JobSet":
        job = {"spec": {"backoffLimit": 0, "template": template()}}
        return {
            "replicatedJobs": [
                {"name": "driver", "replicas": 1, "template": job},
                {"name": "workers", "replicas": 2, "template": copy.deepcopy(job)},
            ]
        }
    if kind == "TrainJob":
        return {"runtimeRef": {"name": "torch-distributed"}, "trainer": {"numNodes": 1}}
    if kind == "PyTorchJob":
        replica: Any = {"replicas": 1, "restartPolicy": "OnFailure", "template": template()}
        replica["template"]["spec"]["containers"][0]["name"] = "pytorch"  # its webhook asks for one of that name
        return {"pytorchReplicaSpecs": {"Master": replica, "Worker": copy.deepcopy(replica)}, "runPolicy": {}}
    return {
        "entrypoint": "python train.py",
        "shutdownAfterJobFinishes": True,
        "rayClusterSpec": {
            "headGroupSpec": {"rayStartParams": {}, "template": template()},
            "workerGroupSpecs": [{"groupName": "gpu", "replicas": 1, "rayStartParams": {}, "template": template()}],
        },
    }


def owned_by(owner: Mapping[str, Any]) -> list[dict[str, Any]]:
    """``metadata.ownerReferences`` of what ``owner`` controls."""
    return [
        {
            "apiVersion": owner["apiVersion"],
            "kind": owner["kind"],
            "name": owner["metadata"]["name"],
            "uid": owner["metadata"]["uid"],
            "controller": True,
        }
    ]


def templates_of(kind: OwnerKind, obj: Mapping[str, Any]) -> list[Path]:
    """The paths of its pod templates, which end in a PodTemplateSpec. A TrainJob's are in its runtime."""
    spec = obj["spec"]
    if kind.name == "Job":
        return [("spec", "template")]
    if kind.name == "JobSet":
        jobs = range(len(spec["replicatedJobs"]))
        return [("spec", "replicatedJobs", index, "template", "spec", "template") for index in jobs]
    if kind.name == "PyTorchJob":
        return [("spec", "pytorchReplicaSpecs", name, "template") for name in spec["pytorchReplicaSpecs"]]
    if kind.name == "RayJob":
        groups = range(len(at(spec, ("rayClusterSpec", "workerGroupSpecs"))))
        workers: list[Path] = [("spec", "rayClusterSpec", "workerGroupSpecs", index, "template") for index in groups]
        return [("spec", "rayClusterSpec", "headGroupSpec", "template"), *workers]
    return []


def admitted(answer: Callable[[bytes], Mapping[str, Any]], pod: Mapping[str, Any], namespace: str) -> Any:
    """The pod as the API server stores it once the webhook has answered."""
    request = {"uid": "u", "operation": "CREATE", "namespace": namespace, "object": pod,
               "resource": {"group": "", "version": "v1", "resource": "pods"}}  # fmt: skip
    body = json.dumps({"apiVersion": "admission.k8s.io/v1", "request": request}).encode()
    response = answer(body)["response"]
    made: Any = copy.deepcopy(dict(pod))
    if "patch" in response:
        made = patched(made, json.loads(base64.b64decode(response["patch"])), Patch.JSON)
    return made
