"""A namespace of an API server about whose pods our own webhook is asked, which our controller's process serves: for
workloads that other controllers run there. The kubelet is played, for pods that name a scheduler that nobody is."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

from integration.kubernetes.chart_accounts import installed
from integration.kubernetes.controller_process import running_controller
from integration.kubernetes.injected_pods import CONFIGURATIONS, PROBE_IMAGE, asking, dry_run, pod_webhook
from integration.kubernetes.played_kubelet import play_kubelet
from integration.kubernetes.target import KubeTarget, eventually
from integration.server_process import free_port
from tidegauge.core.jobs.kubernetes import INJECTED, PROFILE_LABEL
from tidegauge_scheduler_hooks.kubernetes.client.api import open_api
from tidegauge_scheduler_hooks.kubernetes.events import CONTROLLER
from tidegauge_scheduler_hooks.kubernetes.injection.certificates import renewed
from tidegauge_scheduler_hooks.kubernetes.ports import EVENTS, PODS, Object, ObjectNotFoundError, Resource

WITHIN_S = 120.0
NODES = "/api/v1/nodes"
NOBODY = "tidegauge-test-nobody"
ADOPTED = "tidegauge.dev/test"
"""The label of namespaces about whose pods the webhook is asked."""


class OurProcesses:
    """The controller, with the webhook and with the rights that the chart gives it, for all namespaces that have
    ``labels``."""

    def __init__(self, kube: KubeTarget, folder: Path, system: str, stack: ExitStack) -> None:
        self.labels = {ADOPTED: system}
        made = renewed(None, ["localhost"], now_s=time.time())
        (folder / "tls.crt").write_bytes(made.certificate)
        (folder / "tls.key").write_bytes(made.key)
        self.release = stack.enter_context(installed(kube, system, folder, {"workloads": {"actions": True}}))
        port = free_port()
        arguments = [
            f"--kubeconfig={self.release.kubeconfig('controller')}", f"--namespace={system}",
            "--webhook-host=127.0.0.1", f"--webhook-port={port}",
            f"--probe-image={PROBE_IMAGE}", f"--certificate-dir={folder}",
        ]  # fmt: skip
        self.process = stack.enter_context(running_controller(folder, arguments))
        webhook = pod_webhook(port, self.labels, trusted=made.trusted)
        configuration = f"{CONFIGURATIONS}/{self.release.cluster_name}"
        kube.admin.do("PATCH", configuration, {"webhooks": [webhook]}, content_type="application/merge-patch+json")


class AdoptedNamespace:
    """``adopted_namespace`` makes one."""

    def __init__(self, kube: KubeTarget, name: str) -> None:
        self.name = name
        self.api = open_api(kube.kubeconfig, qps=500, burst=500, timeout_s=60)
        self._admin = kube.admin

    @property
    def pods(self) -> list[Any]:
        return [
            pod
            for pod in self.api.list(PODS, self.name, label_selector=PROFILE_LABEL)
            if not pod["metadata"].get("deletionTimestamp")
        ]

    @property
    def events(self) -> list[Object]:
        """Ours."""
        return [one for one in self.api.list(EVENTS, self.name) if one.get("reportingController") == CONTROLLER]

    def until(self, true: Callable[[], bool]) -> None:
        def look() -> bool:
            for pod in self.api.list(PODS, self.name):
                play_kubelet(self._admin, pod, node=self.name)
            return true()

        eventually(look, within_s=WITHIN_S)

    def adopt(self, labels: Mapping[str, str] | None) -> None:
        """Have the webhook asked about pods of the namespace; ``None``: not any more."""
        patch: Any = {"metadata": {"labels": labels or {ADOPTED: None}}}
        path = f"/api/v1/namespaces/{self.name}"
        self._admin.do("PATCH", path, patch, content_type="application/merge-patch+json")

    def is_adopted(self) -> bool:
        """A server takes what a namespace is labelled with within moments."""
        made = dry_run(self._admin, self.name, asking("look"))
        return INJECTED in (made["metadata"].get("annotations") or {})

    def managers(self, *resources: Resource) -> Mapping[str, set[str]]:
        """Who wrote to each object, by its uid. The client leaves it out."""
        found: list[Any] = []
        for resource in resources:
            group = f"/apis/{resource.api_version}" if resource.group else f"/api/{resource.version}"
            found += self._admin.do("GET", f"{group}/namespaces/{self.name}/{resource.plural}")["items"]
        return {
            one["metadata"]["uid"]: {entry["manager"] for entry in one["metadata"]["managedFields"]} for one in found
        }

    def story(self, *resources: Resource) -> str:
        """What there is, for whoever reads a failure."""
        found: list[Any] = []
        for resource in (PODS, EVENTS, *resources):
            with suppress(ObjectNotFoundError):  # its kind is not there
                found += self.api.list(resource, self.name)
        return "\n".join(json.dumps(one) for one in found)


@contextmanager
def adopted_namespace(kube: KubeTarget, ours: OurProcesses) -> Iterator[AdoptedNamespace]:
    """With a node of its name, which keeps the server's garbage collector from its pods."""
    with kube.temporary_namespace("adopted") as name:
        kube.admin.do("POST", NODES, {"metadata": {"name": name}, "spec": {"unschedulable": True}})
        try:
            adopted = AdoptedNamespace(kube, name)
            adopted.adopt(ours.labels)
            eventually(adopted.is_adopted)
            yield adopted
        finally:
            kube.admin.ask("DELETE", f"{NODES}/{name}")
