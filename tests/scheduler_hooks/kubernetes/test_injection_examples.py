"""The manifests of examples/kubernetes: their pods would be watched, and the Job is one by the API server's schema."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import yaml

from tidegauge.core.jobs.kubernetes import PROFILE_LABEL
from tidegauge_scheduler_hooks.kubernetes.injection.plan import Injection, plan_injection
from tidegauge_scheduler_hooks.kubernetes.injection.volumes import InjectionOptions

EXAMPLES = sorted((Path(__file__).parents[3] / "examples" / "kubernetes").glob("*.yaml"))


def pod_templates(value: Any) -> Iterator[Any]:
    """Whatever in an object has the shape of a pod's template."""
    if isinstance(value, dict):
        if "containers" in (value.get("spec") or {}):
            yield value
        for inner in value.values():
            yield from pod_templates(inner)
    elif isinstance(value, list):
        for inner in value:
            yield from pod_templates(inner)


def labels_in(value: Any) -> Iterator[str]:
    if isinstance(value, dict):
        if PROFILE_LABEL in value:
            yield value[PROFILE_LABEL]
        for inner in value.values():
            yield from labels_in(inner)
    elif isinstance(value, list):
        for inner in value:
            yield from labels_in(inner)


def test_there_is_one_for_each_kind() -> None:
    kinds = {yaml.safe_load(path.read_text())["kind"] for path in EXAMPLES}
    assert kinds == {"Job", "JobSet", "TrainJob", "PyTorchJob", "RayJob"}


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_the_pods_of_an_example_are_watched_without_a_complaint(path: Path) -> None:
    example = yaml.safe_load(path.read_text())
    assert set(labels_in(example)) == {"auto"}
    for template in pod_templates(example):
        if PROFILE_LABEL not in (template.get("metadata", {}).get("labels") or {}):
            assert "gpu" not in str(template)  # nothing is lost by not watching it
            continue
        outcome = plan_injection(template, namespace="team", namespace_metadata={}, options=InjectionOptions("i"))
        assert isinstance(outcome, Injection)
        assert outcome.warnings == ()


@pytest.mark.parametrize("version", ["1.33", "1.36"])
def test_the_job_is_one_for_the_api_server(version: str) -> None:
    [job] = [one for path in EXAMPLES if (one := yaml.safe_load(path.read_text()))["kind"] == "Job"]
    kubernetes_validate.validate(job, version, strict=True)
