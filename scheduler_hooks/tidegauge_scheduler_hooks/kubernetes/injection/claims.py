"""Which job a pod says that it belongs to, by what its controllers wrote on it. Pure.

A claim: what counts is what the head finds by the chain of owners (``PodFacts``). Ranks go by this until they are told.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tidegauge.core.jobs.kubernetes import ATTEMPT, COPY_OF

RESTART_ATTEMPT = "jobset.sigs.k8s.io/restart-attempt"
"""How often JobSet's controller started the whole set again."""

_NAME_LABELS = (
    COPY_OF,
    "ray.io/originated-from-cr-name",  # the RayJob; ray.io/cluster is then a name with a random end
    "training.kubeflow.org/job-name",
    "jobset.sigs.k8s.io/jobset-name",  # a TrainJob's JobSet has its name
    "ray.io/cluster",
    "batch.kubernetes.io/job-name",
    "job-name",
)
"""From the topmost owner down."""
_MAX_ATTEMPT = 1 << 24
"""More than the probe takes for a count."""


def claimed_name(metadata: Mapping[str, Any]) -> str:
    """The name of the job. ``metadata`` is a pod's when it is created: its name may be missing."""
    labels = metadata.get("labels") or {}
    for label in _NAME_LABELS:
        if labels.get(label):
            return str(labels[label])
    owners = metadata.get("ownerReferences") or []
    controller = next((owner["name"] for owner in owners if owner.get("controller")), None)
    return str(controller or metadata.get("name") or str(metadata.get("generateName") or "pod").rstrip("-"))


def claimed_attempt(metadata: Mapping[str, Any]) -> int:
    """How often the job was started before, by Tidegauge and by its own controller."""
    annotations, labels = metadata.get("annotations") or {}, metadata.get("labels") or {}
    return _count(annotations.get(ATTEMPT)) + _count(labels.get(RESTART_ATTEMPT))


def _count(text: str | None) -> int:
    if text is None or not (text.isascii() and text.isdigit() and len(text) <= 9):
        return 0
    return min(int(text), _MAX_ATTEMPT)
