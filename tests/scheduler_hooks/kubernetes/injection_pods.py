"""Pods for the tests of the injection, and what comes out of them."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any

from fakes.kube_patches import patched
from tidegauge.core.jobs.kubernetes import IMAGE_PYTHONPATH, PROFILE_LABEL
from tidegauge_scheduler_hooks.kubernetes.injection.plan import Injection, plan_injection
from tidegauge_scheduler_hooks.kubernetes.injection.volumes import InjectionOptions
from tidegauge_scheduler_hooks.kubernetes.ports import Patch

OPTIONS = InjectionOptions("registry.example/tidegauge-probe:1")
ONE_GPU = {"limits": {"nvidia.com/gpu": "1"}}
Pod = dict[str, Any]


def pod(*containers: Mapping[str, Any], labels: Mapping[str, str] | None = None, **annotations: str) -> Pod:
    """A pod that asks for ``auto``. Annotations by the last part of their name, ``memory_fraction="0.5"``."""
    metadata: Pod = {"name": "train-0", "labels": {PROFILE_LABEL: "auto"} if labels is None else dict(labels)}
    if annotations:
        metadata["annotations"] = {
            f"tidegauge.dev/{name.replace('_', '-')}": text for name, text in annotations.items()
        }
    return {"metadata": metadata, "spec": {"containers": list(containers) or [{"name": "main", "image": "i"}]}}


def plan(
    given_pod: Pod,
    *,
    namespace: Mapping[str, str] | None = None,
    declared: str | None = None,
    options: InjectionOptions = OPTIONS,
) -> Any:
    """``namespace``: its labels; ``declared``: the ``PYTHONPATH`` that it says its images set."""
    said = {"labels": namespace or {}, "annotations": {} if declared is None else {IMAGE_PYTHONPATH: declared}}
    return plan_injection(given_pod, namespace="team", namespace_metadata=said, options=options)


def injected(given_pod: Pod, *, options: InjectionOptions = OPTIONS) -> Any:
    """The pod afterwards. The one before is not changed."""
    before = copy.deepcopy(given_pod)
    outcome = plan(given_pod, options=options)
    assert isinstance(outcome, Injection), outcome
    assert given_pod == before
    return patched(given_pod, outcome.operations, Patch.JSON)


def environ(given_pod: Any, container: int = 0) -> dict[str, str]:
    """Literal values by name; of a name that is there twice the last, as Kubernetes does it."""
    return {one["name"]: one.get("value", "") for one in given_pod["spec"]["containers"][container]["env"]}
