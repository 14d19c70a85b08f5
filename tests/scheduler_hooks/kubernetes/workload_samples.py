"""Workloads of every kind as their owners submit them, and the pods that their controllers make."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any

from tidegauge.core.jobs.kubernetes import ACTIONS, PROFILE_LABEL
from tidegauge_scheduler_hooks.kubernetes.owners import KINDS

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
        replica = {"replicas": 1, "restartPolicy": "OnFailure", "template": template()}
        return {"pytorchReplicaSpecs": {"Master": replica, "Worker": copy.deepcopy(replica)}, "runPolicy": {}}
    return {
        "entrypoint": "python train.py",
        "shutdownAfterJobFinishes": True,
        "rayClusterSpec": {
            "headGroupSpec": {"rayStartParams": {}, "template": template()},
            "workerGroupSpecs": [{"groupName": "gpu", "replicas": 1, "template": template()}],
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
