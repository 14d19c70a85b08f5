"""The admission check ``tidegauge.dev/memory`` under Kueue itself, by the controller with the rights that the chart
gives it. Needs a real API server on which Kueue runs (``TIDEGAUGE_TEST_NEIGHBOURS`` names Job)."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from integration.kubernetes.chart_accounts import installed
from integration.kubernetes.controller_process import running_controller
from integration.kubernetes.kueue_site import KUEUE, open_queue
from integration.kubernetes.target import Connection, KubeTarget, eventually
from integration.kubernetes.test_real_neighbours import NEIGHBOURS, THERE
from tidegauge.core.jobs.kubernetes import NEEDED_MEMORY
from tidegauge_scheduler_hooks.kubernetes.controller.memory_checks import CONTROLLER_NAME, MISFIT_EVENT
from tidegauge_scheduler_hooks.kubernetes.owners import is_true
from tidegauge_scheduler_hooks.kubernetes.workloads import QUEUE_LABEL

pytestmark = [
    pytest.mark.skipif("Job" not in THERE, reason=f"{NEIGHBOURS} does not name Job"),
    pytest.mark.timeout(300),
]
MERGE = "application/merge-patch+json"


class Site:
    """A queue whose GPUs have 40 GiB, with our check."""

    def __init__(self, admin: Connection, namespace: str) -> None:
        self._admin = admin
        self._namespace = namespace
        self.check = f"{KUEUE}/admissionchecks/{namespace}"
        self.flavor = f"{KUEUE}/resourceflavors/{namespace}"
        self.queue = f"{KUEUE}/clusterqueues/{namespace}"
        self._jobs = f"/apis/batch/v1/namespaces/{namespace}/jobs"

    def submit(self, needed: str) -> None:
        container = {"name": "main", "image": "i", "resources": {"limits": {"nvidia.com/gpu": "1"}}}
        metadata = {"annotations": {NEEDED_MEMORY: needed}}
        template = {"metadata": metadata, "spec": {"restartPolicy": "Never", "containers": [container]}}
        body = {"metadata": {"name": "train", "labels": {QUEUE_LABEL: "gpus"}}, "spec": {"template": template}}
        self._admin.do("POST", self._jobs, body)

    @property
    def workload(self) -> Any:
        found = self._admin.do("GET", f"{KUEUE}/namespaces/{self._namespace}/workloads")["items"]
        return found[0] if found else {"spec": {}}

    @property
    def state(self) -> tuple[str, str]:
        """Of the check, and its message."""
        (one,) = self.workload.get("status", {}).get("admissionChecks") or [{"state": "", "message": ""}]
        return one["state"], one["message"]

    @property
    def is_suspended(self) -> bool:
        return bool(self._admin.do("GET", f"{self._jobs}/train")["spec"]["suspend"])

    def events(self) -> list[str]:
        events = self._admin.do("GET", f"/apis/events.k8s.io/v1/namespaces/{self._namespace}/events")["items"]
        return [one["note"] for one in events if one["reason"] == MISFIT_EVENT and one["regarding"]["name"] == "train"]


@pytest.fixture
def open_site(kube: KubeTarget, admin: Connection, namespace: str, tmp_path: Path) -> Iterator[Callable[..., Site]]:
    with kube.temporary_namespace("system") as system, ExitStack() as stack:

        def opened(*, reject: bool) -> Site:
            values = {"kueueCheck": {"enabled": True, "reject": reject}, "injection": {"mode": "none"}}
            release = stack.enter_context(installed(kube, system, tmp_path, values))
            stack.enter_context(running_controller(tmp_path, release.controller_arguments()))
            site = Site(admin, namespace)
            open_queue(kube, namespace, stack)
            admin.do(
                "PATCH",
                site.flavor,
                {"metadata": {"annotations": {"tidegauge.dev/gpu-memory": "40Gi"}}},
                content_type=MERGE,
            )
            check = {"metadata": {"name": namespace}, "spec": {"controllerName": CONTROLLER_NAME}}
            admin.do(
                "POST",
                f"{KUEUE}/admissionchecks",
                {"apiVersion": "kueue.x-k8s.io/v1beta2", "kind": "AdmissionCheck", **check},
            )
            stack.callback(admin.ask, "DELETE", site.check)
            eventually(lambda: is_true(admin.do("GET", site.check), "Active"))
            checks = {"spec": {"admissionChecksStrategy": {"admissionChecks": [{"name": namespace}]}}}
            admin.do("PATCH", site.queue, checks, content_type=MERGE)
            return site

        yield opened


def test_a_job_that_fits_passes_without_a_word(open_site: Callable[..., Site]) -> None:
    site = open_site(reject=True)
    site.submit("20Gi")
    eventually(lambda: is_true(site.workload, "Admitted"))
    assert site.state[0] == "Ready"
    eventually(lambda: not site.is_suspended)
    assert site.events() == []


def test_a_job_that_will_not_fit_is_told_and_starts(open_site: Callable[..., Site]) -> None:
    site = open_site(reject=False)
    site.submit("61Gi")
    eventually(lambda: is_true(site.workload, "Admitted"))
    state, message = site.state
    assert (state, "will not fit" in message) == ("Ready", True)
    (note,) = eventually(site.events)
    assert note.endswith("It was not held")
    eventually(lambda: not site.is_suspended)


def test_where_the_admin_says_so_it_is_rejected(open_site: Callable[..., Site]) -> None:
    site = open_site(reject=True)
    site.submit("61Gi")
    eventually(lambda: site.workload["spec"].get("active") is False)
    (note,) = eventually(site.events)
    assert note.endswith("Rejected")
    eventually(lambda: not is_true(site.workload, "QuotaReserved"))
    assert site.is_suspended
