"""Replicas of inference servers, known by what the controllers of Deployments, StatefulSets and LeaderWorkerSets write
on their pods. Pure: no object above a pod is read, so that no role of ours needs a right to these kinds.

Sources: ``getNewReplicaSet`` in pkg/controller/deployment/sync.go of Kubernetes (a ReplicaSet is called after its
Deployment and the hash of the template, which its pods have as a label), ``getPodName`` in
pkg/controller/statefulset/stateful_set_utils.go, and leaderworkerset_types.go of LWS 0.9.0.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from tidegauge_scheduler_hooks.kubernetes.owners import POD, Owned, controller_of

LWS_NAME = "leaderworkerset.sigs.k8s.io/name"
LWS_GROUP = "leaderworkerset.sigs.k8s.io/group-index"
TEMPLATE_HASH = "pod-template-hash"
REPLICA_LABELS = (LWS_NAME, LWS_GROUP, TEMPLATE_HASH)


class Replica(NamedTuple):
    """One replica of a server: a pod, or a group of pods of a LeaderWorkerSet."""

    kind: str
    """Of the server: ``Deployment``, ``StatefulSet``, ``LeaderWorkerSet``."""
    server: str
    """Its name."""
    name: str
    """ "replica 3" where replicas are numbered, which a pod's successor is too; of a Deployment "pod NAME"."""


def replica_of(metadata: Mapping[str, Any]) -> Replica | None:
    """The replica that a pod is, or is a part of; ``None`` for a pod of anything else. ``metadata`` is the pod's; while
    a pod is created it may lack what its ``name`` is made of.

    What a pod's labels and references say is its author's word, which counts in the pod's own namespace only."""
    labels: Mapping[str, str] = metadata.get("labels") or {}
    pod: str = metadata.get("name") or ""
    if labels.get(LWS_NAME):
        group = labels.get(LWS_GROUP)
        return Replica("LeaderWorkerSet", labels[LWS_NAME], f"replica {group}" if group else f"pod {pod}")
    above = controller_of({"metadata": metadata})
    if above is None or above.group != "apps":
        return None
    if above.kind == "StatefulSet":
        return Replica("StatefulSet", above.name, f"replica {pod.rpartition('-')[2]}")
    server, _, template = above.name.rpartition("-")
    if above.kind == "ReplicaSet" and server and template == labels.get(TEMPLATE_HASH):
        return Replica("Deployment", server, f"pod {pod}")
    return None


def replica_with(owned: Owned) -> Replica | None:
    """The same, of a pod whose topmost known owner this is: none where something that can be acted on is above it."""
    return replica_of(owned.obj["metadata"]) if owned.kind is POD else None


def are_one(first: Owned, other: Owned) -> bool:
    """Whether the pods with these owners are of one workload: of one object, or of one replica."""
    if first.uid == other.uid:
        return True
    replica = replica_with(first)
    in_one_namespace = first.obj["metadata"].get("namespace") == other.obj["metadata"].get("namespace")
    return replica is not None and replica == replica_with(other) and in_one_namespace
