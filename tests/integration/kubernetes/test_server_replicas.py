"""Inference servers in a cluster: one job each, whose replicas are told of by Events and never acted on, with the
rights that the chart gives. The pods are made here, as the controllers of Deployments, StatefulSets and
LeaderWorkerSets (LWS 0.9.0) would make them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import pytest

from fakegpu.rig import Rig
from integration.kubernetes.site import KubeSite, open_site
from integration.kubernetes.target import KubeTarget
from integration.service import eventually
from tidegauge.core.jobs.kubernetes import ACTIONS, PREFIX

pytestmark = [pytest.mark.rig, pytest.mark.timeout(900)]

APPS = "apis/apps/v1"
LWS = "leaderworkerset.sigs.k8s.io/"
POLICY = """
version: 1
mode: {mode}
brakes: {{min_severity: note, warnings_before_stop: 0, min_age: 0s}}
rules:
  - name: full
    when: {{cause: out_of_memory}}
    ladder:
      - {{action: notify}}
      - {{action: requeue, without_checkpoint: true}}
"""


class Servers:
    """Controllers' work: objects, and their pods."""

    def __init__(self, site: KubeSite) -> None:
        self._site = site
        self._bench = site.bench

    def object(self, kind: str, plural: str, name: str) -> str:
        """A server's object; returns its uid."""
        labels, container = {"app": name}, {"name": "server", "image": "example.org/server:1"}
        template = {"metadata": {"labels": labels}, "spec": {"containers": [container]}}
        spec = {"replicas": 1, "selector": {"matchLabels": labels}, "template": template}
        body = {"apiVersion": "apps/v1", "kind": kind, "metadata": {"name": name}, "spec": spec}
        return str(self._bench.create(plural, body, group=APPS)["metadata"]["uid"])

    def pod(
        self, name: str, above: tuple[str, str, str], labels: Mapping[str, str], *, gpu: int,
        environ: Mapping[str, str] | None = None,
    ) -> None:  # fmt: skip
        """One that serves on that GPU. ``above``: kind, name and uid of its controller."""
        kind, owner, uid = above
        template = self._site.server_template(name, gpu=gpu, environ=environ, annotations={ACTIONS: "requeue"})
        reference = {"apiVersion": "apps/v1", "kind": kind, "name": owner, "uid": uid, "controller": True}
        metadata = {**template["metadata"], "name": name, "ownerReferences": [reference]}
        metadata["labels"] = {**metadata["labels"], **labels}
        self._bench.create("pods", {"metadata": metadata, "spec": template["spec"]})

    def deployment(self, name: str, template: str, *ends: str) -> list[str]:
        # The API server of the tests knows no ReplicaSets, and its garbage collector asks for the owner's uid only.
        above = ("ReplicaSet", f"{name}-{template}", self.object("Deployment", "deployments", name))
        pods = [f"{name}-{template}-{end}" for end in ends]
        for gpu, pod in enumerate(pods):
            self.pod(pod, above, {"pod-template-hash": template}, gpu=gpu)
        return pods

    def group(self, name: str, size: int) -> None:
        """The first group of a LeaderWorkerSet."""
        leaders = ("StatefulSet", name, self.object("StatefulSet", "statefulsets", name))
        workers = ("StatefulSet", f"{name}-0", self.object("StatefulSet", "statefulsets", f"{name}-0"))
        for worker in range(size):
            labels = {f"{LWS}name": name, f"{LWS}group-index": "0", f"{LWS}worker-index": str(worker)}
            environ = {"LWS_WORKER_INDEX": str(worker), "LWS_GROUP_SIZE": str(size)}
            pod = f"{name}-0-{worker}" if worker else f"{name}-0"
            self.pod(pod, workers if worker else leaders, labels, gpu=2 + worker, environ=environ)

    def delete(self, *pods: str) -> None:
        for pod in pods:
            self._site.admin.do("DELETE", self._bench.path("pods", pod))
        for pod in pods:
            self._bench.gone("pods", pod)


@pytest.fixture(scope="module")
def site(kube: KubeTarget, rig: Rig, tmp_path_factory: pytest.TempPathFactory) -> Iterator[KubeSite]:
    folder = tmp_path_factory.mktemp("site")
    folder.chmod(0o755)
    if kube.emulator is None:
        pytest.skip("this cluster has controllers of its own, which would not know these pods")
    with (
        kube.temporary_namespace("system") as system,
        kube.temporary_namespace("alice") as alice,
        open_site(kube, rig, folder, namespaces=[system, alice], policy=POLICY) as one,
    ):
        yield one


def test_replicas_of_servers_are_told_of_and_left_alone_until_they_are_scaled_to_none(site: KubeSite) -> None:
    servers, namespace = Servers(site), site.bench.namespace
    chat, big = f"{namespace}/chat", f"{namespace}/big"
    pods = servers.deployment("chat", "6d4cf56db", "a", "b")
    servers.group("big", 2)
    groups = {f"pod {pod}": [0] for pod in pods}
    eventually(lambda: living(site, chat) == groups, "both replicas of the Deployment", within_s=300)
    eventually(lambda: living(site, big) == {"replica 0": [0, 1]}, "the group, with both of its pods", within_s=300)
    views = [view for view in site.service.answer("/api/v1/jobs")["jobs"] if view["job_id"] in (chat, big)]
    assert {(view["job_id"], view["attempt"], *view["replicas"].values()) for view in views} == {
        (chat, 0, "Deployment", 2, 0),
        (big, 0, "LeaderWorkerSet", 1, 0),
    }

    site.full(pods[0]).touch()
    eventually(lambda: any(one["decision"]["action"] == "requeue" for one in site.decisions(chat)), "it would act")
    eventually(lambda: "GpuMemoryIncident" in reasons(site, pods[0]), "an Event on the replica's pod")
    assert f"{chat} (pod {pods[0]})" in site.service.call("jobs").out
    requeue = next(one for one in site.decisions(chat) if one["decision"]["action"] == "requeue")
    assert requeue["decision"]["disposition"] == "withheld"
    assert requeue["decision"]["reason"].startswith("a Deployment serves requests")
    assert [incident["group_name"] for incident in site.incidents(chat)] == [f"pod {pods[0]}"]
    assert living(site, chat) == groups, "it serves on"
    for pod in pods:
        metadata = site.admin.do("GET", site.bench.path("pods", pod))["metadata"]
        assert {name for name in metadata["annotations"] if name.startswith(PREFIX)} == {ACTIONS, f"{PREFIX}injected"}
    assert "GpuMemoryIncident" not in reasons(site, pods[1])

    servers.delete("big-0", "big-0-1")
    eventually(lambda: record(site, big).get("end") == "cancelled", "the job has ended", within_s=150)
    assert site.incidents(big) == [], "a server that is scaled to none has no incident"
    assert living(site, chat) == groups


def test_a_pod_of_a_stateful_set_that_is_made_again_goes_on_as_its_replica(site: KubeSite) -> None:
    servers, job = Servers(site), f"{site.bench.namespace}/state"
    above = ("StatefulSet", "state", servers.object("StatefulSet", "statefulsets", "state"))
    seen = []
    for _ in range(2):
        servers.pod("state-0", above, {"apps.kubernetes.io/pod-index": "0"}, gpu=1)
        eventually(lambda: living(site, job) == {"replica 0": [0]}, "the replica", within_s=300)
        seen += [(one["process"]["pid"], one["identity"]["attempt"]) for one in site.ranks(job)]
        servers.delete("state-0")
        eventually(lambda: living(site, job) == {}, "its process has ended")
    assert len({pid for pid, _ in seen}) == 2
    assert {attempt for _, attempt in seen} == {0}
    assert site.incidents(job) == []


def living(site: KubeSite, job: str) -> dict[str, list[int]]:
    """The numbers of a job's living ranks, by group."""
    found: dict[str, list[int]] = {}
    for view in site.service.answer("/api/v1/jobs")["jobs"]:
        numbers = sorted(one["identity"]["rank"] for one in view["ranks"] if one["alive"])
        if view["job_id"] == job and numbers:
            found[view["group_name"]] = numbers
    return found


def reasons(site: KubeSite, pod: str) -> set[str]:
    return {str(event["reason"]) for event in site.events(pod)}


def record(site: KubeSite, job: str) -> dict[str, Any]:
    done = site.service.call("job", job, "--json")
    return dict(done.json["record"]) if done.code == 0 else {}
