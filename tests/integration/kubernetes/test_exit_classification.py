"""The examples of docs/kubernetes_actions.md: failures of pods that were known to leak are told from others."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from integration.kubernetes.target import KubeTarget, eventually
from kube_standins.jobset import StandInJobSets
from scheduler_hooks.kubernetes.workload_samples import templates_of
from tidegauge.core.jobs.kubernetes import LEAK_CONDITION
from tidegauge_scheduler_hooks.kubernetes.client.api import open_api
from tidegauge_scheduler_hooks.kubernetes.owners import JOB, JOBSET, OwnerKind, at, condition, is_true
from tidegauge_scheduler_hooks.kubernetes.ports import PODS, KubeApi, Patch

PAGE = Path(__file__).parents[3] / "docs" / "kubernetes_actions.md"

pytestmark = pytest.mark.usefixtures("job_controller")


@pytest.fixture(scope="module", autouse=True)
def jobsets(kube: KubeTarget, tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    with StandInJobSets(kube.kubeconfig, tmp_path_factory.mktemp("jobsets")):
        yield


@pytest.fixture
def api(kube: KubeTarget) -> KubeApi:
    return open_api(kube.kubeconfig, qps=200, burst=200, timeout_s=60)


def example(kind: OwnerKind) -> Any:
    """As the page has it, for a scheduler that is nobody: no real node takes its pods."""
    texts = re.findall(r"```yaml\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
    (found,) = [obj for obj in map(yaml.safe_load, texts) if obj["kind"] == kind.name]
    for path in templates_of(kind, found):
        template: Any = at(found, path)
        template["spec"]["schedulerName"] = "tidegauge-test-nobody"
    return found


def the_pod(api: KubeApi, namespace: str) -> Any:
    return eventually(lambda: next(iter(api.list(PODS, namespace)), None))


def fail(api: KubeApi, pod: Any, *, leaked: bool) -> None:
    """The kubelet's word that the pod failed, after the controller's that it leaks."""
    namespace, name = pod["metadata"]["namespace"], pod["metadata"]["name"]
    if leaked:
        conditions = [{"type": LEAK_CONDITION, "status": "True"}]
        marked = {"status": {"conditions": conditions}}
        api.patch(PODS, namespace, name, marked, how=Patch.STRATEGIC, subresource="status")
    ended = {"terminated": {"exitCode": 1, "reason": "Error"}}
    status = {"name": "train", "image": "i", "imageID": "i", "ready": False, "restartCount": 0, "state": ended}
    body = {"status": {"phase": "Failed", "containerStatuses": [status]}}
    api.patch(PODS, namespace, name, body, how=Patch.STRATEGIC, subresource="status")


def test_a_job_that_leaked_fails_at_once(api: KubeApi, namespace: str) -> None:
    api.create(JOB.resource, namespace, example(JOB))
    fail(api, the_pod(api, namespace), leaked=True)
    job = eventually(lambda: api.get(JOB.resource, namespace, "train"), lambda job: is_true(job, "Failed"))
    assert (condition(job, "Failed") or {})["reason"] == "PodFailurePolicy"


def test_a_job_that_failed_otherwise_is_tried_again(api: KubeApi, namespace: str) -> None:
    api.create(JOB.resource, namespace, example(JOB))
    fail(api, the_pod(api, namespace), leaked=False)
    job = eventually(lambda: api.get(JOB.resource, namespace, "train"), lambda job: at(job, ("status", "failed")) == 1)
    assert not is_true(job, "Failed")


def test_a_job_set_whose_job_leaked_fails_at_once(api: KubeApi, namespace: str) -> None:
    api.create(JOBSET.resource, namespace, example(JOBSET))
    fail(api, the_pod(api, namespace), leaked=True)
    eventually(lambda: api.get(JOBSET.resource, namespace, "train"), lambda obj: is_true(obj, "Failed"))


def test_a_job_set_whose_job_failed_otherwise_is_started_again(api: KubeApi, namespace: str) -> None:
    api.create(JOBSET.resource, namespace, example(JOBSET))
    fail(api, the_pod(api, namespace), leaked=False)
    obj = eventually(
        lambda: api.get(JOBSET.resource, namespace, "train"), lambda obj: at(obj, ("status", "restarts")) == 1
    )
    assert not is_true(obj, "Failed")
