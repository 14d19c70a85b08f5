"""Deployments and StatefulSets with the pods that kube-controller-manager makes of them: the webhook and the head call
the job by the server's name, and each replica by its own."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any

import pytest

from integration.kubernetes.adopted_namespace import NOBODY, AdoptedNamespace, OurProcesses, adopted_namespace
from integration.kubernetes.target import KubeTarget
from scheduler_hooks.kubernetes.restart_contract import environ
from tidegauge.core.jobs.kubernetes import PROFILE_LABEL
from tidegauge_scheduler_hooks.kubernetes.client.api import open_api
from tidegauge_scheduler_hooks.kubernetes.client.watches import ClientWatches
from tidegauge_scheduler_hooks.kubernetes.owners import KINDS
from tidegauge_scheduler_hooks.kubernetes.pod_directory import PodDirectory
from tidegauge_scheduler_hooks.kubernetes.ports import Resource

pytestmark = pytest.mark.timeout(300)
KINDS_OF_SERVERS = {kind: Resource("apps", "v1", f"{kind.lower()}s", kind) for kind in ("Deployment", "StatefulSet")}
REPLICAS = 2


class Site:
    """A server called ``chat`` whose replicas run when a test begins."""

    def __init__(self, adopted: AdoptedNamespace, directory: PodDirectory, kind: str) -> None:
        self.adopted = adopted
        self.directory = directory
        self.kind = kind
        self.resource = KINDS_OF_SERVERS[kind]
        labels = {"app": "chat"}
        container = {"name": "server", "image": "example.org/server:1"}
        template = {
            "metadata": {"labels": {**labels, PROFILE_LABEL: "stats"}},
            "spec": {"schedulerName": NOBODY, "containers": [container]},
        }
        spec = {"replicas": REPLICAS, "selector": {"matchLabels": labels}, "template": template}
        body = {"apiVersion": "apps/v1", "kind": kind, "metadata": {"name": "chat"}, "spec": spec}
        adopted.api.create(self.resource, adopted.name, body)
        self.until_they_run()

    def until_they_run(self, without: frozenset[str] = frozenset()) -> None:
        def run() -> bool:
            found = {pod["metadata"]["uid"]: pod["status"].get("phase") for pod in self.adopted.pods}
            known = [self.directory.pod_of(uid) for uid in found]
            return list(found.values()) == ["Running"] * REPLICAS and None not in known and not found.keys() & without

        self.adopted.until(run)

    @property
    def uids(self) -> frozenset[str]:
        return frozenset(pod["metadata"]["uid"] for pod in self.adopted.pods)

    @property
    def told(self) -> set[tuple[str, str]]:
        """What programs are told: job and attempt."""
        found: list[Any] = [environ(pod) for pod in self.adopted.pods]
        return {(one["TIDEGAUGE_JOB_ID"], one["TIDEGAUGE_ATTEMPT"]) for one in found}

    @property
    def replicas(self) -> set[tuple[str, str, str]]:
        """What the head knows: job, kind and replica."""
        found = [self.directory.pod_of(uid) for uid in self.uids]
        return {(one.job_id, str(one.kind), str(one.replica)) for one in found if one is not None}

    @property
    def names(self) -> set[str]:
        if self.kind == "Deployment":
            return {f"pod {pod['metadata']['name']}" for pod in self.adopted.pods}
        return {f"replica {number}" for number in range(REPLICAS)}


@pytest.fixture(scope="module")
def ours(kube: KubeTarget, tmp_path_factory: pytest.TempPathFactory) -> Iterator[OurProcesses]:
    if kube.emulator is not None:
        pytest.skip("the emulator has no controllers of Deployments and StatefulSets")
    with kube.temporary_namespace("system") as system, ExitStack() as stack:
        yield OurProcesses(kube, tmp_path_factory.mktemp("ours"), system, stack)


@pytest.fixture(params=KINDS_OF_SERVERS)
def site(request: pytest.FixtureRequest, kube: KubeTarget, job_controller: None, ours: OurProcesses) -> Iterator[Site]:
    with adopted_namespace(kube, ours) as adopted, ExitStack() as stack:
        watches = ClientWatches(open_api(ours.release.kubeconfig("head"), timeout_s=60), namespaces=[adopted.name])
        stack.callback(watches.close)
        yield Site(adopted, PodDirectory(watches, KINDS), request.param)


def test_replicas_are_groups_of_one_job_before_and_after_a_rollout(site: Site) -> None:
    job = f"{site.adopted.name}/chat"
    before = site.uids
    assert site.told == {(job, "0")}
    assert site.replicas == {(job, site.kind, name) for name in site.names}
    rollout = {"spec": {"template": {"metadata": {"annotations": {"rollout": "2"}}}}}
    site.adopted.api.patch(site.resource, site.adopted.name, "chat", rollout)
    site.until_they_run(without=before)
    assert site.told == {(job, "0")}
    assert site.replicas == {(job, site.kind, name) for name in site.names}
